"""Pools of threads that are all there from the start.

A pool of the standard library starts a thread only when all others are busy, which may be the first time after hours.
Every thread takes memory of its own, for its stack and for what the C library keeps for it: a process whose pools are
still growing grows with them.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor


def make_pool(threads: int, name: str) -> ThreadPoolExecutor:
    """Make a pool and start all of its threads."""
    pool, together = ThreadPoolExecutor(threads, thread_name_prefix=name), threading.Barrier(threads)
    for begun in [pool.submit(together.wait) for _ in range(threads)]:  # none is idle before the last one has begun
        begun.result()
    return pool
