"""How exactly a GPU multiplies: in float32, or in TF32, which is several times faster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def torch_products(*, exact: bool) -> Iterator[None]:
    """Torch's own products and convolutions in float32 if they are to be exact, else in TF32 where a GPU has it."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    _set("highest" if exact else "high", not exact)
    try:
        yield
    finally:
        _set(*before)


def _set(products: str, convolutions: bool) -> None:
    torch.set_float32_matmul_precision(products)
    torch.backends.cudnn.allow_tf32 = convolutions
