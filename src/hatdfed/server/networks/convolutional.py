"""Convolutional networks for small images."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from hatdfed.server.networks.shapes import Shape, require_image


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
    channels, height, width = require_image("small-cnn", shape, 4)
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
    channels, height, width = require_image("small-cnn-group-norm", shape, 4)
    return nn.Sequential(
        *_group_norm_stage(channels, 16),
        *_group_norm_stage(16, 32),
        nn.Flatten(),
        nn.Linear(32 * (height // 4) * (width // 4), 64),
        nn.ReLU(),
        nn.Linear(64, num_outputs),
    )


def lenet_group_norm(shape: Shape, num_outputs: int) -> nn.Module:
    """LeNet with group norm: three 5×5 convolutions and a linear layer; 89,834 parameters for CIFAR-10.

    K. Hsieh et al. The non-IID data quagmire of decentralized machine learning. ICML 2020.
    """
    channels, height, width = require_image("lenet-group-norm", shape, 8)
    return nn.Sequential(
        *_wide_stage(channels, 32),
        *_wide_stage(32, 32),
        *_wide_stage(32, 64),
        nn.Flatten(),
        nn.Linear(64 * (height // 8) * (width // 8), num_outputs),
    )


def _paper_cnn(shape: Shape, num_outputs: int, activation: Callable[[], nn.Module]) -> nn.Module:
    channels, height, width = require_image("paper-cnn", shape, 8)
    # The paper gives two parameter counts and no layer sizes; these match the first exactly and the second within 46.
    wide, narrow = (600, 120) if channels == 1 else (1200, 365)
    features = 64 * ((height // 2 - 2) // 2) * ((width // 2 - 2) // 2)
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


def _wide_stage(channels_in: int, channels_out: int) -> list[nn.Module]:
    return [
        nn.Conv2d(channels_in, channels_out, 5, padding=2),
        nn.GroupNorm(2, channels_out),
        nn.ReLU(),
        nn.MaxPool2d(2),
    ]
