"""How often Python looks for garbage in a process that runs for days.

By default it looks among old objects only once those that have survived are a quarter of all: an edge has 200,000 from
its libraries alone, so it takes ten minutes or more. Until then cycles that died old stay, and so do the lists of free
tuples, which are emptied only then.
"""

from __future__ import annotations

import gc

_YOUNG, _MIDDLE, _OLD = 700, 5, 1  # at an edge, young objects every few seconds, all of them about once a minute


def collect_often() -> None:
    """Look for garbage often, but not among what exists now, which is code: call this when all is imported."""
    gc.collect()
    gc.freeze()
    gc.collect()  # counts what is old again: nothing
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)
