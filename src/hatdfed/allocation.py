"""How the C library treats memory that tensors give back.

By default glibc returns buffers of a few megabytes to the system and faults them in again, page by page, at the next
allocation. A round does that thousands of times.
"""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # names of mallopt's parameters in <malloc.h>
_LARGEST_KEPT = 32 << 20  # bytes; the most that glibc accepts
_FREE_KEPT = 1 << 30  # bytes


def keep_freed_memory() -> bool:
    """Ask the C library to keep what is freed for the next tensor; whether it will."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    wanted = {_MMAP_THRESHOLD: _LARGEST_KEPT, _TRIM_THRESHOLD: _FREE_KEPT, _TOP_PAD: _LARGEST_KEPT}
    accepted = [mallopt(parameter, value) == 1 for parameter, value in wanted.items()]
    return all(accepted)
