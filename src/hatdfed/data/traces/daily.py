"""Traces of days and weeks: values that rise and fall with the hour, and office hours."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.traces import Trace
from hatdfed.errors import ConfigError
from hatdfed.randomness import stream

HOUR, DAY, WEEK = 3600.0, 86400.0, 7 * 86400.0
_STEP = 1800.0  # seconds between the rows of a wave
_SHORTEST_PRESENCE = 0.25  # hours, however late somebody comes and however early they leave
_WEEKEND = (5, 6)  # days of a week that begins on Monday


def make_diurnal(
    seed: int, servers: int, *, low: float, high: float, peak_hour: float, spread_hours: float, noise: float
) -> Trace:
    """One wave a day for each server, for rates, prices or carbon: highest around `peak_hour`, lowest 12 hours later.

    The peaks of servers differ by a normal number of hours with the standard deviation `spread_hours`; every value has
    a factor of its own, log-normal with the standard deviation `noise`.
    """
    if not 0 <= low <= high:
        raise ConfigError(f"--low is {low:g} and --high is {high:g}; wanted numbers with 0 ≤ low ≤ high.")
    rng = stream(seed, "trace-diurnal")
    peaks = peak_hour * HOUR + spread_hours * HOUR * rng.standard_normal(servers)
    seconds = np.arange(0.0, DAY, _STEP)
    wave = 0.5 + 0.5 * np.cos(2 * np.pi * (seconds[:, None] - peaks) / DAY)
    factors = np.exp(noise * rng.standard_normal(wave.shape))
    return Trace(seconds, (low + (high - low) * wave) * factors, is_linear=True, period=DAY)


def make_office_hours(
    seed: int,
    servers: int,
    *,
    first_hour: float,
    last_hour: float,
    jitter_hours: float,
    with_weekend: bool,
    is_inverted: bool,
) -> Trace:
    """A week that begins on Monday: 1 during office hours and 0 otherwise, or the reverse.

    Every server comes and goes by itself on every day: normal around the two hours, with the standard deviation
    `jitter_hours`.
    """
    if not 0 <= first_hour < last_hour <= 24:
        raise ConfigError(
            f"--from is {first_hour:g} and --to is {last_hour:g}; wanted hours of a day, the first before the last."
        )
    rng = stream(seed, "trace-office")
    jitter = jitter_hours * rng.standard_normal((2, servers, 7))
    begins = np.clip(first_hour + jitter[0], 0.0, 24.0 - _SHORTEST_PRESENCE)
    ends = np.clip(last_hour + jitter[1], begins + _SHORTEST_PRESENCE, 24.0)
    days = [day for day in range(7) if with_weekend or day not in _WEEKEND]
    starts = np.arange(7)[days] * DAY
    begins, ends = (np.round(starts + HOUR * hours[:, days]) for hours in (begins, ends))
    seconds = np.unique(np.concatenate([[0.0], begins.ravel(), ends.ravel()]))
    seconds = seconds[seconds < WEEK]
    is_there = np.stack([_is_within(seconds, *each) for each in zip(begins, ends, strict=True)], axis=1)
    return Trace(seconds, (is_there != is_inverted).astype(np.float64), period=WEEK)


def _is_within(
    seconds: NDArray[np.float64], begins: NDArray[np.float64], ends: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """[n] whether each time lies in one of these spans."""
    within = (begins[:, None] <= seconds) & (seconds < ends[:, None])
    return np.asarray(np.logical_or.reduce(within), dtype=bool)
