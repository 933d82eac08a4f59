"""Windows on counters that are updated in steps, such as those of GPUs.

A counter that is updated ten times a second does not show what was spent since its last update, so a window that reads
it at any moment may be off by a tenth of a second's energy at each end. Here a window begins just after an update. At
its end the next update is waited for, which tells when the last one in the window was. The power between the first and
the last update is taken for the rest of the window. How often a counter is updated is observed, not assumed. Nothing
changes for a counter that has a new value whenever it is read.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, MutableMapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from hatdfed.meters.base import Reading, Window
from hatdfed.meters.gauges import Counter, CounterGauge
from hatdfed.meters.polling import Attribute, PolledWindow

PATIENCE_SECONDS = 3.0  # without an update, after which a counter is read as it is
_POLL_SECONDS = 0.001  # between two readings while an update is waited for
_OBSERVED = 3  # updates, from which the interval is found


class Watch(NamedTuple):
    """How time is read and passes while an update is waited for."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


REAL_TIME = Watch()


class Update(NamedTuple):
    """A new value of a counter."""

    time: float  # between the last reading of the old value and the first of the new one
    slack: float  # seconds in either direction
    joules: float
    readings: int  # until the new value was there


class Rhythm(NamedTuple):
    """How often a counter is updated."""

    seconds: float  # between two updates; of a counter without steps, between two readings
    jitter: float = 0.0  # how much that may be off
    has_steps: bool = False  # seen: several readings of the same value between updates


Rhythms = MutableMapping[str, Rhythm]  # by the name of a counter


def start_aligned(
    source: str,
    counters: Sequence[Counter],
    rhythms: Rhythms,
    attribute: Attribute,
    *,
    seconds: float,
    watch: Watch = REAL_TIME,
) -> Window:
    """Open a window, after an update of each counter if they have steps; `rhythms` keeps what was observed."""
    known = [_find_rhythm(counter, rhythms, watch) for counter in counters]
    gauge = CounterGauge(source, counters, max(rhythm.seconds for rhythm in known))
    if all(rhythm.has_steps for rhythm in known):
        firsts = wait_for_updates(counters, watch)
        if firsts is not None:
            return AlignedWindow(gauge, firsts, known, attribute, seconds=seconds, watch=watch)
    return PolledWindow(gauge, attribute, seconds=seconds, clock=watch.clock)


def _find_rhythm(counter: Counter, rhythms: Rhythms, watch: Watch) -> Rhythm:
    if counter.name not in rhythms:
        rhythms[counter.name] = observe_rhythm(counter, watch)
    return rhythms[counter.name]


def observe_rhythm(counter: Counter, watch: Watch) -> Rhythm:
    """Wait for some updates and find their interval."""
    updates: list[Update] = []
    while len(updates) < _OBSERVED:
        found = wait_for_updates([counter], watch, [updates[-1].joules] if updates else None)
        if found is None:
            return Rhythm(PATIENCE_SECONDS)
        updates += found
    first, last = updates[0], updates[-1]
    seconds = (last.time - first.time) / (len(updates) - 1)
    intervals = [after.time - before.time for before, after in pairwise(updates)]
    jitter = max(abs(interval - seconds) for interval in intervals) + (first.slack + last.slack) / len(intervals)
    return Rhythm(seconds, jitter, has_steps=all(update.readings > 1 for update in updates[1:]))


def wait_for_updates(
    counters: Sequence[Counter], watch: Watch, shown: Sequence[float] | None = None
) -> list[Update] | None:
    """Read until each counter has another value than `shown`, by default than now; None if one is not updated."""
    began = watch.clock()
    shown = [counter.read() for counter in counters] if shown is None else shown
    asked, found, readings = [began] * len(counters), dict[int, Update](), 0
    while True:
        readings += 1
        for place, counter in enumerate(counters):
            if place in found:
                continue
            now = watch.clock()
            value = counter.read()
            if value != shown[place]:
                earliest, latest = asked[place], watch.clock()
                found[place] = Update((earliest + latest) / 2, (latest - earliest) / 2, value, readings)
            asked[place] = now
        if len(found) == len(counters):
            return [found[place] for place in range(len(counters))]
        if watch.clock() - began > PATIENCE_SECONDS:
            return None
        watch.sleep(_POLL_SECONDS)


class AlignedWindow:
    """A window that began just after an update of each counter."""

    def __init__(
        self,
        gauge: CounterGauge,
        firsts: Sequence[Update],
        rhythms: Sequence[Rhythm],
        attribute: Attribute,
        *,
        seconds: float,
        watch: Watch,
    ) -> None:
        """`gauge` is read every so many `seconds`, to notice a counter that was reset."""
        self._counters, self._firsts, self._rhythms = gauge.counters, firsts, rhythms
        self._attribute, self._watch = attribute, watch
        self._began = watch.clock()
        self._polled = PolledWindow(gauge, _keep, seconds=seconds, clock=watch.clock)

    def stop(self) -> Reading:
        """End the window now, then wait for the next update; raises what went wrong in it, if anything did."""
        ended = self._watch.clock()
        gross = self._polled.stop()
        lasts = [counter.read() for counter in self._counters]
        afters = wait_for_updates(self._counters, self._watch, lasts)
        if afters is None:
            return self._attribute(gross._replace(uncertainty=2 * PATIENCE_SECONDS * gross.gross_watts))
        parts = [
            _Part(self._began, ended, *each).estimate()
            for each in zip(self._firsts, lasts, afters, self._rhythms, strict=True)
        ]
        joules, uncertainty = (math.fsum(column) for column in zip(*parts, strict=True))
        return self._attribute(
            gross._replace(joules=joules, gross_joules=joules, uncertainty=uncertainty, seconds=ended - self._began)
        )


def _keep(reading: Reading) -> Reading:
    return reading


class _Part(NamedTuple):
    """One counter in a window."""

    began: float
    ended: float
    first: Update  # the window began just after it
    last: float  # joules that the counter showed at the end
    after: Update  # the first after the end
    rhythm: Rhythm

    def estimate(self) -> tuple[float, float]:
        """Joules in the window, and their uncertainty."""
        seconds, last_time = self.ended - self.began, self.after.time - self.rhythm.seconds
        most = self.after.joules - self.first.joules
        covered = last_time - self.first.time
        if covered < self.rhythm.seconds / 2:  # no update in the window: it is within a single step
            joules = most * min(1.0, seconds / (self.after.time - self.first.time))
            return joules, max(joules, most - joules)
        watts = (self.last - self.first.joules) / covered
        rest = max(0.0, self.ended - last_time)
        last_watts = (self.after.joules - self.last) / self.rhythm.seconds  # of the rest, and of what came after it
        unknown_seconds = self.first.slack + self.after.slack + self.rhythm.jitter
        # Of the time between the first update and the beginning, where another counter was waited for.
        unknown_seconds += max(0.0, self.began - self.first.time)
        uncertainty = watts * unknown_seconds * max(1.0, seconds / covered) + rest * abs(last_watts - watts)
        return min(watts * seconds, most), uncertainty
