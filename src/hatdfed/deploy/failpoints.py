"""Named points at which a process can be made to die, so that tests can check what it leaves behind.

`HATDFED_FAILPOINT=after-plan-commit` ends the process there at once, as a power cut would; `name:3` at the third time.
"""

from __future__ import annotations

import os
from collections import Counter

_VARIABLE = "HATDFED_FAILPOINT"
_reached: Counter[str] = Counter()


def failpoint(name: str) -> None:
    """End the process at once if the environment names this point."""
    wanted = os.environ.get(_VARIABLE)
    if wanted is None:
        return
    point, _, count = wanted.partition(":")
    _reached[name] += point == name
    if point == name and _reached[name] >= int(count or 1):
        os._exit(137)
