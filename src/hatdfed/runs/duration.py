"""Simulated seconds as people read them."""

from __future__ import annotations

from typing import NamedTuple


class TimeUnit(NamedTuple):
    """A unit of time and its size in seconds."""

    symbol: str
    seconds: float


def time_unit(largest: float) -> TimeUnit:
    """Choose seconds, minutes or hours, so that `largest` has few digits.

    >>> time_unit(600).symbol
    'min'
    """
    if largest >= 7200:
        return TimeUnit("h", 3600.0)
    return TimeUnit("min", 60.0) if largest >= 120 else TimeUnit("s", 1.0)


def format_seconds(seconds: float) -> str:
    """Format simulated seconds with three digits and a unit.

    >>> format_seconds(0.5), format_seconds(600), format_seconds(86400)
    ('0.5 s', '10 min', '24 h')
    """
    unit = time_unit(seconds)
    value = seconds / unit.seconds
    return f"{value:,.0f} {unit.symbol}" if value >= 999.5 else f"{value:.3g} {unit.symbol}"
