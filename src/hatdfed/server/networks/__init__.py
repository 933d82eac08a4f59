"""Networks that servers train, by name. Any `nn.Module` can be added; these are built in."""

from __future__ import annotations

from torch import nn

from hatdfed.errors import OWN_THING, require_one_of
from hatdfed.registry import Registry
from hatdfed.server.networks.attention import decoder, vit_tiny
from hatdfed.server.networks.connected import linear, mlp
from hatdfed.server.networks.convolutional import (
    lenet_group_norm,
    paper_cnn,
    paper_cnn_relu,
    small_cnn,
    small_cnn_group_norm,
)
from hatdfed.server.networks.recurrent import lstm
from hatdfed.server.networks.residual import resnet_18_group_norm
from hatdfed.server.networks.shapes import NetworkMaker, Shape

__all__ = [
    "NETWORKS",
    "PRIVATE_NETWORK",
    "NetworkMaker",
    "Shape",
    "find_network",
    "linear",
    "paper_cnn",
    "paper_cnn_relu",
    "small_cnn",
]

_BUILT_IN: dict[str, NetworkMaker] = {
    "paper-cnn": paper_cnn,
    "paper-cnn-relu": paper_cnn_relu,
    "small-cnn": small_cnn,
    "small-cnn-group-norm": small_cnn_group_norm,
    "linear": linear,
    "mlp": mlp,
    "lenet-group-norm": lenet_group_norm,
    "resnet-18-group-norm": resnet_18_group_norm,
    "vit-tiny": vit_tiny,
    "lstm": lstm,
    "decoder": decoder,
}

PRIVATE_NETWORK = "small-cnn-group-norm"  # what to use instead of one that cannot be trained privately

NETWORKS: Registry[NetworkMaker] = Registry(
    "hatdfed.networks",
    _BUILT_IN,
    wanted="a class or function that takes a sample's shape and the number of outputs",
    fits=lambda thing: callable(thing) and not isinstance(thing, nn.Module),
)


def find_network(name: str) -> NetworkMaker:
    """Look up the network called `name`."""
    require_one_of("network", name, NETWORKS, OWN_THING)
    return NETWORKS[name]
