"""What networks are made from: the shape of a sample and the number of outputs."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from hatdfed.errors import ConfigError

Shape = tuple[int, ...]  # of one sample: of images channels, height and width
NetworkMaker = Callable[[Shape, int], nn.Module]  # shape of a sample, number of outputs -> module


def require_image(network: str, shape: Shape, least_side: int) -> tuple[int, int, int]:
    """Return channels, height and width; refuse samples that are no images, or too small."""
    if len(shape) != 3:
        raise ConfigError(
            f"network {network} is for images of channels, height and width, but a sample has the shape {list(shape)}. "
            "Choose another one, such as --set network=mlp."
        )
    channels, height, width = shape
    if min(height, width) < least_side:
        raise ConfigError(
            f"network {network} needs images of {least_side}×{least_side} or larger, but these have {height}×{width}."
        )
    return channels, height, width


class TokenEmbedding(nn.Embedding):
    """A vector for each token id; samples that are no token ids are refused with a sentence."""

    def forward(self, tokens: Tensor) -> Tensor:
        """[n, L] -> [n, L, width]."""
        if tokens.is_floating_point():
            raise ConfigError(
                f"This network reads token ids, which are integers, but samples are {tokens.dtype} of the shape "
                f"{list(tokens.shape[1:])}. Choose another network, such as --set network=mlp."
            )
        return super().forward(tokens)
