"""Networks that servers train, by name. Any `nn.Module` can be added; these are built in."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import nn

from hatdfed.errors import ConfigError, require_one_of
from hatdfed.registry import Registry

Shape = tuple[int, ...]  # of one sample: of images channels, height and width
NetworkMaker = Callable[[Shape, int], nn.Module]  # shape of a sample, number of outputs -> module


def paper_cnn(shape: Shape, num_outputs: int) -> nn.Module:
    """The paper's network: two convolutions, two fully connected layers and an output layer (D5).

    As in the released code there is no activation between the fully connected layers. Counted as in the paper (weights
    and batch norm scales, no biases) it has exactly 1,474,416 parameters for Fashion-MNIST and 4,224,242 for CIFAR-10.
    """
    return _paper_cnn(shape, num_outputs, nn.Identity)


def paper_cnn_relu(shape: Shape, num_outputs: int) -> nn.Module:
    """The paper's network with a ReLU after each fully connected layer."""
    return _paper_cnn(shape, num_outputs, nn.ReLU)


def small_cnn(shape: Shape, num_outputs: int) -> nn.Module:
    """A network for small images such as the embedded digits: about 14,000 parameters."""
    channels, height, width = _image_shape(shape)
    if min(height, width) < 4:
        raise ConfigError(f"network small-cnn needs images of 4×4 or larger, but these have {height}×{width}.")
    return nn.Sequential(
        *_stage(channels, 16, padding=1),
        *_stage(16, 32, padding=1),
        nn.Flatten(),
        nn.Linear(32 * (height // 4) * (width // 4), 64),
        nn.ReLU(),
        nn.Linear(64, num_outputs),
    )


def small_cnn_group_norm(shape: Shape, num_outputs: int) -> nn.Module:
    """small-cnn with group norm, which treats every image by itself, as private training needs it."""
    channels, height, width = _image_shape(shape)
    if min(height, width) < 4:
        raise ConfigError(
            f"network small-cnn-group-norm needs images of 4×4 or larger, but these have {height}×{width}."
        )
    return nn.Sequential(
        *_group_norm_stage(channels, 16),
        *_group_norm_stage(16, 32),
        nn.Flatten(),
        nn.Linear(32 * (height // 4) * (width // 4), 64),
        nn.ReLU(),
        nn.Linear(64, num_outputs),
    )


def linear(shape: Shape, num_outputs: int) -> nn.Module:
    """One linear layer: softmax regression, or linear regression."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), num_outputs))


def mlp(shape: Shape, num_outputs: int) -> nn.Module:
    """Two hidden layers, for feature vectors."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(shape), 64),
        nn.ReLU(),
        nn.Linear(64, 64),
        nn.ReLU(),
        nn.Linear(64, num_outputs),
    )


_BUILT_IN: dict[str, NetworkMaker] = {
    "paper-cnn": paper_cnn,
    "paper-cnn-relu": paper_cnn_relu,
    "small-cnn": small_cnn,
    "small-cnn-group-norm": small_cnn_group_norm,
    "linear": linear,
    "mlp": mlp,
}

PRIVATE_NETWORK = "small-cnn-group-norm"  # what to use instead of one that cannot be trained privately

NETWORKS: Registry[NetworkMaker] = Registry(
    "hatdfed.networks", _BUILT_IN, wanted="a function of a sample's shape and the number of outputs", fits=callable
)


def find_network(name: str) -> NetworkMaker:
    """Look up the network called `name`."""
    require_one_of("network", name, NETWORKS)
    return NETWORKS[name]


def _image_shape(shape: Shape) -> tuple[int, int, int]:
    if len(shape) != 3:
        raise ConfigError(
            f"This network is for images of channels, height and width, but a sample has the shape {list(shape)}. "
            "Choose another one, such as --set network=linear."
        )
    channels, height, width = shape
    return channels, height, width


def _paper_cnn(shape: Shape, num_outputs: int, activation: Callable[[], nn.Module]) -> nn.Module:
    channels, height, width = _image_shape(shape)
    # The paper gives two parameter counts and no layer sizes; these match the first exactly and the second within 46.
    wide, narrow = (600, 120) if channels == 1 else (1200, 365)
    features = 64 * ((height // 2 - 2) // 2) * ((width // 2 - 2) // 2)
    if min(height, width) < 8:
        raise ConfigError(f"network paper-cnn needs images of 8×8 or larger, but these have {height}×{width}.")
    return nn.Sequential(
        *_stage(channels, 32, padding=1),
        *_stage(32, 64, padding=0),
        nn.Flatten(),
        nn.Linear(features, wide),
        activation(),
        nn.Dropout(0.25),
        nn.Linear(wide, narrow),
        activation(),
        nn.Linear(narrow, num_outputs),
    )


def _stage(channels_in: int, channels_out: int, *, padding: int) -> list[nn.Module]:
    return [
        nn.Conv2d(channels_in, channels_out, 3, padding=padding),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(),
        nn.MaxPool2d(2),
    ]


def _group_norm_stage(channels_in: int, channels_out: int) -> list[nn.Module]:
    return [
        nn.Conv2d(channels_in, channels_out, 3, padding=1),
        nn.GroupNorm(4, channels_out),
        nn.ReLU(),
        nn.MaxPool2d(2),
    ]
