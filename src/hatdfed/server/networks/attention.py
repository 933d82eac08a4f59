"""Transformers: a small vision transformer, and a small decoder for next-token prediction.

A. Vaswani et al. Attention is all you need. NeurIPS 2017. Layer norm comes before each part, and queries, keys and
values have no bias: that of the keys would have no effect, and its gradient would be nothing but rounding errors.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 (the usual name)
from torch import Tensor, nn

from hatdfed.errors import ConfigError
from hatdfed.server.networks.shapes import Shape, TokenEmbedding, require_image

_PATCH = 4
_POSITION_SPREAD = 0.02


def vit_tiny(shape: Shape, num_outputs: int) -> nn.Module:
    """A vision transformer for images of 8 to 64 pixels: patches of 4×4, width 192, 3 heads, 6 blocks.

    A. Dosovitskiy et al. An image is worth 16×16 words. ICLR 2021. Width and heads are those of H. Touvron et al.
    Training data-efficient image transformers. ICML 2021 (DeiT-Ti); the mean over patches is read out.
    """
    channels, height, width = require_image("vit-tiny", shape, _PATCH)
    if height % _PATCH or width % _PATCH:
        raise ConfigError(
            f"network vit-tiny needs images whose sides are multiples of {_PATCH}, but these have {height}×{width}."
        )
    return VisionTransformer((channels, height, width), num_outputs, width=192, heads=3, depth=6)


def decoder(shape: Shape, num_outputs: int) -> nn.Module:
    """A causal transformer for token ids [L] of a vocabulary of `num_outputs`: width 128, 4 heads, 4 blocks."""
    if len(shape) != 1:
        raise ConfigError(
            f"network decoder is for sequences of token ids, but a sample has the shape {list(shape)}. "
            "Choose another one, such as --set network=mlp."
        )
    return Decoder(shape[0], num_outputs, width=128, heads=4, depth=4)


class VisionTransformer(nn.Module):
    """Patches of an image as tokens that attend to each other."""

    def __init__(self, shape: tuple[int, int, int], num_outputs: int, *, width: int, heads: int, depth: int) -> None:
        super().__init__()
        channels, height, image_width = shape
        num_patches = (height // _PATCH) * (image_width // _PATCH)
        self.embedding = nn.Linear(channels * _PATCH * _PATCH, width)
        self.position = nn.Parameter(_POSITION_SPREAD * torch.randn(num_patches, width))
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads, is_causal=False) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.readout = nn.Linear(width, num_outputs)

    def forward(self, images: Tensor) -> Tensor:
        """[n, C, H, W] -> [n, outputs]."""
        n, channels, height, width = images.shape
        cut = images.view(n, channels, height // _PATCH, _PATCH, width // _PATCH, _PATCH)
        patches = cut.permute(0, 2, 4, 1, 3, 5).reshape(n, -1, channels * _PATCH * _PATCH)
        h = self.blocks(self.embedding(patches) + self.position)
        logits: Tensor = self.readout(self.norm(h).mean(dim=1))
        return logits


class Decoder(nn.Module):
    """Tokens that attend to themselves and those before them."""

    def __init__(self, length: int, vocabulary: int, *, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.embedding = TokenEmbedding(vocabulary, width)
        self.position = nn.Parameter(_POSITION_SPREAD * torch.randn(length, width))
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads, is_causal=True) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.readout = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """[n, L] -> [n, L, vocabulary]."""
        h = self.embedding(tokens) + self.position[: tokens.shape[1]]
        logits: Tensor = self.readout(self.norm(self.blocks(h)))
        return logits


class TransformerBlock(nn.Module):
    """Self-attention and two fully connected layers, each beside a connection around it."""

    def __init__(self, width: int, heads: int, *, is_causal: bool) -> None:
        super().__init__()
        self.heads, self.is_causal = heads, is_causal
        self.attention_norm = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width, bias=False)
        self.projection = nn.Linear(width, width)
        self.connected_norm = nn.LayerNorm(width)
        self.connected = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """[n, L, width] -> [n, L, width]."""
        n, length, width = x.shape
        joined = self.queries_keys_values(self.attention_norm(x)).view(n, length, 3, self.heads, width // self.heads)
        query, key, value = joined.permute(2, 0, 3, 1, 4).unbind(dim=0)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=self.is_causal)
        x = x + self.projection(attended.transpose(1, 2).reshape(n, length, width))
        summed: Tensor = x + self.connected(self.connected_norm(x))
        return summed
