"""How many compiled kernels are kept by oneDNN, with which PyTorch computes convolutions on a CPU.

It compiles about a dozen for every new length of a batch, and by default keeps 1024. Which devices come in a round
decides how long its batches are: an edge that kept them all would grow for hours.
"""

from __future__ import annotations

import os

_VARIABLE = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"  # read when the first kernel is compiled
_OLDER_NAME = "DNNL_PRIMITIVE_CACHE_CAPACITY"
_KEPT = 32  # those of the last two or three lengths: another one costs a twentieth of a millisecond


def keep_few_kernels() -> None:
    """Keep only the kernels that were used last, unless the user has decided on a number."""
    if _OLDER_NAME not in os.environ:
        os.environ.setdefault(_VARIABLE, str(_KEPT))
