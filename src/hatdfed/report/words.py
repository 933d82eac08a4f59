"""Numbers as people read them, for pages and reports: always with a unit, a dash where nothing is known."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

from hatdfed.report.findings import energy_unit, format_joules
from hatdfed.runs.statistics import PairedDifference

_UNKNOWN = "–"
_NARROW = "\N{NO-BREAK SPACE}"


def percent(value: float | None, sd: float | None = None) -> str:
    """An accuracy.

    >>> percent(64.02, 1.23), percent(None)
    ('64.0\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}1.2\N{NO-BREAK SPACE}%', '–')
    """
    if value is None:
        return _UNKNOWN
    return f"{value:.1f} ± {sd:.1f} %".replace(" ", _NARROW) if sd is not None else f"{value:.1f}{_NARROW}%"


def joules(value: float | None, sd: float | None = None) -> str:
    """An energy in the unit that suits it, with three digits.

    >>> joules(15981.0)
    '16.0\N{NO-BREAK SPACE}kJ'
    """
    if value is None:
        return _UNKNOWN
    if sd or not value:
        return format_joules(value, sd or 0.0).replace(" ", _NARROW)
    unit = energy_unit(value)
    decimals = max(0, 2 - math.floor(math.log10(float(f"{abs(value) / unit.joules:.3g}"))))
    return f"{value / unit.joules:,.{decimals}f}{_NARROW}{unit.symbol}"


def count(value: float | None) -> str:
    """A number of things."""
    return _UNKNOWN if value is None else f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def difference(value: PairedDifference | None, unit: str, *, same_world: bool = True) -> list[str]:
    """A paired difference and its 95 % interval, or why there is none."""
    if not same_world:
        return ["another world:", "not paired"]
    if value is None:
        return ["no shared seed"]
    mean = f"{value.mean:+.1f}{_NARROW}{unit}"
    spread = "(one seed)" if value.low is None or value.high is None else f"[{value.low:+.1f}, {value.high:+.1f}]"
    return [part.replace("-", "−") for part in (mean, spread)]


def ago(moment: float | None) -> str:
    """How long ago a moment was."""
    if moment is None:
        return _UNKNOWN
    seconds = max(0.0, time.time() - moment)
    for size, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size:
            number = int(seconds // size)
            return f"{number} {unit}{'s' if number > 1 else ''} ago"
    return "just now" if seconds < 5 else f"{int(seconds)} seconds ago"


def moment(seconds: float) -> str:
    """A moment as this machine's clock shows it, with its time zone.

    >>> moment(0.0)[4:8]
    '-01-'
    """
    return datetime.fromtimestamp(seconds).astimezone().isoformat(sep=" ", timespec="seconds")


def unparted(sentence: str) -> str:
    """A sentence in which no number is parted from its unit at the end of a line."""
    return re.sub(r"(?<=\d) (?=[%kMJ±])", _NARROW, sentence)


def breakable(path: str) -> list[str]:
    """A path in the parts between which a line may be broken."""
    return path.replace("/", "/\n").split("\n")


FILTERS: dict[str, Callable[..., Any]] = {
    "percent": percent,
    "joules": joules,
    "count": count,
    "difference": difference,
    "ago": ago,
    "moment": moment,
    "breakable": breakable,
}
