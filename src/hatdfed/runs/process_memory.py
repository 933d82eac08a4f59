"""What a process keeps in memory for days: in the C library, in Python and in oneDNN.

By default glibc returns buffers of a few megabytes to the system and faults them in again, page by page, at the next
allocation. A round does that thousands of times. Once such a buffer was freed it does the opposite with others of its
size, and what is kept lies in pieces between what is used: an edge with little memory is better off giving all of it
back.

By default Python looks for garbage among old objects only once those that have survived are a quarter of all: an edge
has 200,000 from its libraries alone, so it takes ten minutes or more. Until then cycles that died old stay, and so do
the lists of free tuples, which are emptied only then.

oneDNN, with which PyTorch computes convolutions on a CPU, compiles about a dozen kernels for every new length of a
batch, and by default keeps 1024. Which devices come in a round decides how long its batches are: an edge that kept them
all would grow for hours.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import os
import platform
import sys

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8  # mallopt's parameters in <malloc.h>
_LARGEST_KEPT = 32 << 20  # bytes; the most that glibc accepts
_FREE_KEPT = 1 << 30  # bytes
_SMALL = 1 << 17  # bytes; what is larger is given back at once
_ARENAS = 1  # that all threads share: each further one keeps some of what is freed
_TUNABLES = "GLIBC_TUNABLES"  # read when a process starts
_NO_THREAD_CACHES = "glibc.malloc.tcache_count=0"
_YOUNG, _MIDDLE, _OLD = 700, 5, 1  # at an edge, young objects every few seconds, all of them about once a minute
_ONEDNN = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"  # read when the first kernel is compiled
_OLDER_ONEDNN = "DNNL_PRIMITIVE_CACHE_CAPACITY"
_KERNELS_KEPT = 32  # those of the last two or three lengths: another one costs a twentieth of a millisecond


def keep_freed_memory() -> bool:
    """Ask the C library to keep what is freed for the next tensor; whether it will."""
    return _ask({_MMAP_THRESHOLD: _LARGEST_KEPT, _TRIM_THRESHOLD: _FREE_KEPT, _TOP_PAD: _LARGEST_KEPT})


def return_freed_memory() -> bool:
    """Ask the C library to give back what is freed; whether it will. Training is a little slower for it."""
    return _ask({_MMAP_THRESHOLD: _SMALL, _TRIM_THRESHOLD: _SMALL, _ARENA_MAX: _ARENAS})


def keep_no_thread_caches() -> None:
    """Start this process anew, under the same number, without what glibc keeps for every thread; do this first of all.

    A thread keeps up to seven freed pieces of every small size, which nobody else can use and nothing gives back. A
    process with a dozen threads grows for many minutes until all of these caches are full, faster when it is disturbed.
    """
    wanted = os.environ.get(_TUNABLES, "")
    if platform.libc_ver()[0] != "glibc" or "tcache" in wanted:
        return
    os.environ[_TUNABLES] = ":".join(filter(None, (wanted, _NO_THREAD_CACHES)))
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 (no shell: the same program again)


def tidy_freed_memory() -> None:
    """Give back what is free between pieces that are used, once: for a moment when little is used."""
    if (library := _c_library()) is not None:
        with contextlib.suppress(AttributeError):  # another C library
            library.malloc_trim(0)


def collect_often() -> None:
    """Look for garbage often, but not among what exists now, which is code: call this when all is imported."""
    gc.collect()
    gc.freeze()
    gc.collect()  # counts what is old again: nothing
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)


def keep_few_kernels() -> None:
    """Let oneDNN keep only the kernels that were used last, unless the user has decided on a number."""
    if _OLDER_ONEDNN not in os.environ:
        os.environ.setdefault(_ONEDNN, str(_KERNELS_KEPT))


def _ask(wanted: dict[int, int]) -> bool:
    library = _c_library() if sys.platform.startswith("linux") else None
    try:
        mallopt = None if library is None else library.mallopt
    except AttributeError:  # another C library
        mallopt = None
    if mallopt is None:
        return False
    accepted = [mallopt(parameter, value) == 1 for parameter, value in wanted.items()]
    return all(accepted)


@functools.cache  # every other one would bring classes of its own, which stay until they are collected
def _c_library() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(None)
    except OSError:
        return None
