"""Formatting of numbers: for figures and, with dashes for unknown values, for pages and reports."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np

from hatdfed.runs.statistics import PairedDifference

_UNKNOWN = "–"
_NARROW = "\N{NO-BREAK SPACE}"


class EnergyUnit(NamedTuple):
    """A unit of energy and its size in joules."""

    symbol: str
    joules: float


def energy_unit(largest: float) -> EnergyUnit:
    """Choose J, kJ or MJ, so that `largest` has few digits.

    >>> energy_unit(3420).symbol
    'kJ'
    """
    rounded = float(f"{abs(largest):.3g}")  # 999.9 J is written 1 kJ
    if rounded >= 1e6:
        return EnergyUnit("MJ", 1e6)
    return EnergyUnit("kJ", 1e3) if rounded >= 1e3 else EnergyUnit("J", 1.0)


def format_joules(joules: float, sd: float = 0.0) -> str:
    """Format an energy with three digits and a unit, and its standard deviation if there is one.

    >>> format_joules(3421.7), format_joules(0), format_joules(3421.7, 98)
    ('3.42 kJ', '0 J', '3.42 ± 0.10 kJ')
    """
    unit = energy_unit(joules)
    value, around = joules / unit.joules, sd / unit.joules
    decimals = 2 - int(np.floor(np.log10(value))) if 0 < value < 100 else 0
    if sd > 0:  # written also where it rounds to 0: without it, a mean over seeds looks like a single one
        return f"{value:,.{decimals}f} ± {around:,.{decimals}f} {unit.symbol}"
    return f"{value:,.0f} {unit.symbol}" if value >= 999.5 else f"{value:.3g} {unit.symbol}"


def format_percent(percent: float, sd: float = 0.0) -> str:
    """Format a percentage with one decimal, and its standard deviation if there is one.

    >>> format_percent(91.234), format_percent(91.234, 0.42)
    ('91.2 %', '91.2 ± 0.4 %')
    """
    if not np.isfinite(percent):
        return "not reported"
    return f"{percent:.1f} ± {sd:.1f} %" if sd > 0 else f"{percent:.1f} %"


def format_number(value: float, sd: float = 0.0) -> str:
    """Format a number with three digits, and its standard deviation if there is one.

    >>> format_number(16.54), format_number(1234.5), format_number(16.54, 3.21)
    ('16.5', '1,234', '16.5 ± 3.2')
    """
    if not np.isfinite(value):
        return "not reported"
    decimals = int(np.clip(2 - np.floor(np.log10(abs(value))), 0, 3)) if value else 1
    return f"{value:,.{decimals}f} ± {sd:,.{decimals}f}" if sd > 0 else f"{value:,.{decimals}f}"


def percent(value: float | None, sd: float | None = None) -> str:
    """Format an accuracy for a page.

    >>> percent(64.02, 1.23), percent(None)
    ('64.0\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}1.2\N{NO-BREAK SPACE}%', '–')
    """
    if value is None:
        return _UNKNOWN
    return f"{value:.1f} ± {sd:.1f} %".replace(" ", _NARROW) if sd is not None else f"{value:.1f}{_NARROW}%"


def joules(value: float | None, sd: float | None = None) -> str:
    """Format an energy for a page, with three digits in a suitable unit.

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
    """Format a count for a page."""
    return _UNKNOWN if value is None else f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def difference(value: PairedDifference | None, unit: str) -> list[str]:
    """Format a paired difference and its 95 % interval, or why there is none."""
    if value is None:
        return ["no shared seed"]
    mean = f"{value.mean:+z.1f}{_NARROW}{unit}"
    spread = "(one seed)" if value.low is None or value.high is None else f"[{value.low:+z.1f}, {value.high:+z.1f}]"
    return [part.replace("-", "−") for part in (mean, spread)]


def ago(moment: float | None) -> str:
    """Format how long ago a moment was."""
    if moment is None:
        return _UNKNOWN
    seconds = max(0.0, time.time() - moment)
    for size, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size:
            number = int(seconds // size)
            return f"{number} {unit}{'s' if number > 1 else ''} ago"
    return "just now" if seconds < 5 else f"{int(seconds)} seconds ago"


def moment(seconds: float) -> str:
    """Format a moment in local time, with its time zone.

    >>> moment(0.0)[4:8]
    '-01-'
    """
    return datetime.fromtimestamp(seconds).astimezone().isoformat(sep=" ", timespec="seconds")


def keep_units_together(sentence: str) -> str:
    """Join numbers and their units by non-breaking spaces."""
    return re.sub(r"(?<=\d) (?=[%kMJ±])|(?<=±) ", _NARROW, sentence)


def split_path(path: str) -> list[str]:
    """Split a path into the parts between which a line may break.

    >>> split_path("sweep/method=rnd,seed=0")
    ['sweep/', 'method=rnd,', 'seed=0']
    """
    return [part for part in re.split(r"(?<=[/,])", path) if part]


FILTERS: dict[str, Callable[..., Any]] = {
    "percent": percent,
    "joules": joules,
    "count": count,
    "difference": difference,
    "ago": ago,
    "moment": moment,
    "breakable": split_path,
    "units": keep_units_together,
}
