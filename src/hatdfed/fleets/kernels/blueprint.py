"""What a network is made of, if it is of the kind that can be stacked: stages, then fully connected layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import nn

from hatdfed.fleets.kernels.torch_stage import StageShape
from hatdfed.fleets.stacked.model import NotStackableError

ImageShape = tuple[int, int, int]  # channels, height, width


class StageLayers(NamedTuple):
    """One stage: its shape, the names of its tensors, and batch norm's two constants."""

    shape: StageShape
    weight: str
    bias: str | None
    norm: str  # its tensors are norm.weight, norm.bias, norm.running_mean, norm.running_var
    epsilon: float
    momentum: float


class LinearLayer(NamedTuple):
    """A fully connected layer, by the names of its tensors."""

    weight: str
    bias: str | None


class Relu(NamedTuple):
    """Negative numbers become 0."""


class DropoutLayer(NamedTuple):
    """Number `layer` of the network's dropouts."""

    probability: float
    layer: int


@dataclass(frozen=True)
class Blueprint:
    """Convolutional stages, then a head."""

    stages: tuple[StageLayers, ...]
    head: tuple[LinearLayer | Relu | DropoutLayer, ...]
    features: ImageShape  # what the head is fed with, flattened


def read_blueprint(module: nn.Module, sample: Sequence[int]) -> Blueprint:
    """Take a module apart that is fed with such samples; `NotStackableError` says which part does not fit."""
    if len(sample) != 3:
        raise NotStackableError(f"its samples have the shape {list(sample)}, not channels, height and width")
    image: ImageShape = (sample[0], sample[1], sample[2])
    layers = [(name, layer) for name, layer in _flatten(module) if not isinstance(layer, nn.Identity)]
    _refuse_repeated(module, layers)
    stages: list[StageLayers] = []
    while layers and isinstance(layers[0][1], nn.Conv2d):
        stage = _stage(layers[:4], image)
        stages.append(stage)
        image = (stage.shape.channels_out, *stage.shape.pooled)
        layers = layers[4:]
    if not layers or not _is_plain_flatten(layers[0][1]):
        raise NotStackableError(_after("nn.Flatten", "the convolutional stages", layers))
    return Blueprint(tuple(stages), tuple(_head(layers[1:])), image)


def _flatten(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The layers in the order in which they are called; `named_children` would leave out one that comes twice."""
    if type(module) is not nn.Sequential:  # a subclass may do anything with its layers
        yield prefix.removesuffix("."), module
        return
    for name, child in module._modules.items():
        if child is not None:
            yield from _flatten(child, f"{prefix}{name}.")


def _refuse_repeated(module: nn.Module, layers: list[tuple[str, nn.Module]]) -> None:
    """Layers that share their parameters, and parts that occur twice, are nobody's own."""
    seen: set[int] = set()
    for name, layer in layers:
        if id(layer) in seen and any(True for _ in layer.parameters()):
            raise NotStackableError(f"layer {name} has the parameters of an earlier one")
        seen.add(id(layer))
    containers = list(_containers(module))
    if len({id(part) for part in containers}) < len(containers):
        raise NotStackableError("a group of its layers occurs twice")


def _containers(module: nn.Module) -> Iterator[nn.Module]:
    if type(module) is nn.Sequential:
        yield module
        for child in module._modules.values():
            if child is not None:
                yield from _containers(child)


def _is_plain_flatten(layer: nn.Module) -> bool:
    return type(layer) is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1)


def _stage(layers: list[tuple[str, nn.Module]], image: ImageShape) -> StageLayers:
    kinds = (nn.Conv2d, nn.BatchNorm2d, nn.ReLU, nn.MaxPool2d)
    for (name, layer), kind in zip(layers, kinds, strict=False):
        if type(layer) is not kind:
            raise NotStackableError(f"layer {name} is a {type(layer).__name__} where a stage has a {kind.__name__}")
    if len(layers) < len(kinds):
        raise NotStackableError("its last stage is not complete: convolution, batch norm, ReLU, pooling")
    (conv_name, conv), (norm_name, norm), _, (pool_name, pool) = layers
    assert isinstance(conv, nn.Conv2d)  # noqa: S101 (for the type checker; checked above)
    assert isinstance(norm, nn.BatchNorm2d)  # noqa: S101
    plain = conv.kernel_size == (3, 3) and conv.stride == conv.dilation == (1, 1) and conv.groups == 1
    if not plain or conv.padding not in ((0, 0), (1, 1)) or conv.padding_mode != "zeros":
        raise NotStackableError(f"layer {conv_name} is not a plain 3×3 convolution with padding 0 or 1")
    if not norm.affine or not norm.track_running_stats or norm.momentum is None:
        raise NotStackableError(f"layer {norm_name} is a batch norm without scale, running statistics or momentum")
    if str(pool) != str(nn.MaxPool2d(2)):
        raise NotStackableError(f"layer {pool_name} is not a 2×2 max pooling")
    shape = StageShape(conv.in_channels, conv.out_channels, image[1], image[2], int(conv.padding[0]))
    bias = None if conv.bias is None else f"{conv_name}.bias"
    return StageLayers(shape, f"{conv_name}.weight", bias, norm_name, norm.eps, norm.momentum)


def _head(layers: list[tuple[str, nn.Module]]) -> Iterator[LinearLayer | Relu | DropoutLayer]:
    dropouts, linears = 0, 0
    for name, layer in layers:
        if type(layer) is nn.Linear:
            linears += 1
            yield LinearLayer(f"{name}.weight", None if layer.bias is None else f"{name}.bias")
        elif type(layer) is nn.ReLU:
            if not linears:
                raise NotStackableError(f"layer {name} is a ReLU with no fully connected layer before it")
            linears = 0
            yield Relu()
        elif type(layer) is nn.Dropout and layer.p < 1:
            if layer.p > 0:
                yield DropoutLayer(layer.p, dropouts)
                dropouts += 1
        else:
            raise NotStackableError(
                f"layer {name} is a {type(layer).__name__}; after nn.Flatten only Linear, ReLU, Dropout"
            )
    if not linears:
        raise NotStackableError("its last layer is not fully connected")


def _after(wanted: str, place: str, layers: list[tuple[str, nn.Module]]) -> str:
    found = f"layer {layers[0][0] or 'of its top'} is a {type(layers[0][1]).__name__}" if layers else "nothing follows"
    return f"{found} where {wanted} should follow {place}"
