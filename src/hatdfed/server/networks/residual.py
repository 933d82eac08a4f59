"""Residual networks."""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812 (the usual name)
from torch import Tensor, nn

from hatdfed.server.networks.shapes import Shape, require_image

_GROUPS = 32


def resnet_18_group_norm(shape: Shape, num_outputs: int) -> nn.Module:
    """ResNet-18 for small images, with group norm in place of batch norm: 11.2 million parameters.

    K. He et al. Deep residual learning for image recognition. CVPR 2016. The first layer is a 3×3 convolution without
    pooling, as is usual for CIFAR-10. Y. Wu, K. He. Group normalization. ECCV 2018.
    """
    channels, _, _ = require_image("resnet-18-group-norm", shape, 8)
    layers: list[nn.Module] = [nn.Conv2d(channels, 64, 3, padding=1, bias=False), nn.GroupNorm(_GROUPS, 64), nn.ReLU()]
    width = 64
    for wider, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [ResidualBlock(width, wider, stride), ResidualBlock(wider, wider, 1)]
        width = wider
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, num_outputs))


class ResidualBlock(nn.Module):
    """Two 3×3 convolutions beside a connection around them, which a 1×1 convolution brings to size if need be."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False)
        self.first_norm = nn.GroupNorm(_GROUPS, channels_out)
        self.second = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False)
        self.second_norm = nn.GroupNorm(_GROUPS, channels_out)
        self.around: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            shortcut = nn.Conv2d(channels_in, channels_out, 1, stride, bias=False)
            self.around = nn.Sequential(shortcut, nn.GroupNorm(_GROUPS, channels_out))

    def forward(self, x: Tensor) -> Tensor:
        """[n, C, H, W] -> [n, C', H / stride, W / stride]."""
        h = F.relu(self.first_norm(self.first(x)))
        return F.relu(self.second_norm(self.second(h)) + self.around(x))
