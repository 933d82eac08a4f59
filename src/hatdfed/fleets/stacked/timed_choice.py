"""Which form of a network that can be lifted is the fastest on a GPU: each plays a step of training and an evaluation.

How many servers take part depends on how long a step takes; all of it takes a few seconds at most. Nothing is timed on
a CPU, where a run has the same bits however busy the machine is.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from hatdfed.fleets.stacked.convolutions import Form
from hatdfed.fleets.stacked.lifted import Lifting

_SECONDS = 5.0  # after them no further form is tried
_FIRST_SERVERS = 8
_LOOPED_SERVERS = 2  # a loop takes as much longer as it has more servers
_LONG_STEP = 0.1  # seconds: a GPU that takes so long is busy, and more servers would tell no more
_CLEARLY_FASTER = 10  # than the loop: no other form is tried any more
_GAIN = 0.95  # of the time that a simpler form takes: what another one must stay below
_OTHER_FORMS: tuple[Form, ...] = ("channels_last", "each", "unfolded")  # of convolutions, besides one in groups


class Timing(NamedTuple):
    """What a step and an evaluation took in one form."""

    seconds: float
    training_bytes: int  # of one sample at the peak of the step


class TimedChoice(NamedTuple):
    """The fastest form, and what was found."""

    lifting: Lifting | None  # None: looped over
    training_bytes: int  # of one sample
    reason: str


Measure = Callable[[Lifting | None, int], Timing]  # a form, None: looped over; for so many servers


def find_fastest(
    measure: Measure, most_servers: int, *, convolves: bool, clock: Callable[[], float] = time.monotonic
) -> TimedChoice:
    """Go through the forms, the most promising first, until one is clearly ahead or the time is over.

    A form that fails (it does not fit, or cannot be captured as a graph) is left out.
    """
    end = clock() + _SECONDS
    servers = min(_FIRST_SERVERS, most_servers)
    try:
        lifted = measure(Lifting(), servers)
        while lifted.seconds < _LONG_STEP and servers < most_servers and clock() < end:
            servers = min(2 * servers, most_servers)
            lifted = measure(Lifting(), servers)
    except RuntimeError as error:
        return TimedChoice(None, 0, f"it fails on this device when it is lifted ({_first_line(error)})")
    few = min(_LOOPED_SERVERS, servers)
    loop = measure(None, few)
    loop = loop._replace(seconds=loop.seconds * servers / few)
    best, found = Lifting(), {"lifted": lifted}
    graphs, *others = _other_liftings(convolves=convolves)
    for lifting in (graphs, *others):
        fastest = found[best.name].seconds
        if clock() > end or (lifting is not graphs and fastest * _CLEARLY_FASTER < loop.seconds):
            break
        try:
            found[lifting.name] = measure(lifting, servers)
        except RuntimeError:
            continue
        if found[lifting.name].seconds < _GAIN * fastest:
            best = lifting
    reason = _describe({**found, "looped": loop}, servers)
    if loop.seconds < _GAIN * found[best.name].seconds:
        return TimedChoice(None, 0, reason)
    return TimedChoice(best, found[best.name].training_bytes, reason)


def _other_liftings(*, convolves: bool) -> list[Lifting]:
    return [Lifting(graphs=True), *(Lifting(form, graphs=True) for form in _OTHER_FORMS if convolves)]


def _describe(found: dict[str, Timing], servers: int) -> str:
    """The fastest comes first."""
    ordered = sorted(found.items(), key=lambda pair: pair[1].seconds)
    times = ", ".join(f"{name} {timing.seconds * 1e3:.3g} ms" for name, timing in ordered)
    return f"a step of {servers} servers took {times}"


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
