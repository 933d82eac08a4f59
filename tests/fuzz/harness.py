"""Feeds bad input to one reader after another: it is read or refused in a sentence, quickly, in little memory.

A target says what to feed and to whom. `try_case` runs one case and raises `DefectError` for everything that a user or
an operator would call a defect: an error that is no sentence, a case that takes too long, and memory beyond what the
input declares.
"""

from __future__ import annotations

import signal
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Literal

from hatdfed.errors import HatdfedError

MIB = 1 << 20
MOST_SECONDS = 5.0  # of the processor for one case; nearly all take less than a millisecond
LONGEST_SENTENCE = 2000  # characters: a refusal never quotes its input at length

Kind = Literal["message", "file"]


class DefectError(AssertionError):
    """What a reader must never do with bad input."""


@dataclass(frozen=True, eq=False)
class Target:
    """One reader of input that somebody else wrote."""

    name: str
    kind: Kind
    make: Callable[[Random], Any]  # a case
    read: Callable[[Any, Path], object]  # reads it, with a folder for its files; refuses by a `HatdfedError`
    most_bytes: Callable[[Any], int]  # that reading a case may allocate


@dataclass
class Tally:
    """What came of the cases of one target."""

    read: int = 0
    refused: int = 0
    most_allocated_bytes: int = 0
    slowest_seconds: float = 0.0


def make_case(target: Target, seed: int, number: int) -> Any:
    """The case of this number, the same on every machine."""
    return target.make(Random(f"{seed} {target.name} {number}"))  # noqa: S311 (no secret)


def try_case(target: Target, case: Any, folder: Path, tally: Tally) -> None:
    """Feed one case to its reader."""
    allowed = target.most_bytes(case)
    began = time.perf_counter()
    tracemalloc.start(1)
    try:
        with _stop_after(MOST_SECONDS):
            is_read = _is_read(target, case, folder)
        allocated = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    if allocated > allowed:
        raise DefectError(f"{target.name} allocated {allocated} bytes, but {allowed} are enough for what it was given")
    tally.read, tally.refused = tally.read + is_read, tally.refused + (not is_read)
    tally.most_allocated_bytes = max(tally.most_allocated_bytes, allocated)
    tally.slowest_seconds = max(tally.slowest_seconds, time.perf_counter() - began)


def _is_read(target: Target, case: Any, folder: Path) -> bool:
    try:
        target.read(case, folder)
    except HatdfedError as error:
        check_sentence(str(error))
        return False
    return True


def check_sentence(text: str) -> None:
    """Whether a refusal is one that a person can read."""
    if not text.strip() or "Traceback" in text or len(text) > LONGEST_SENTENCE:
        raise DefectError(f"a refusal that is no sentence: {text!r:.200}")


@contextmanager
def _stop_after(seconds: float) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise DefectError(f"a case took more than {seconds:g} s")

    # Of the processor's time, since the machine may be busy; a case that only waits is stopped a little later.
    timers = {signal.ITIMER_PROF: (signal.SIGPROF, seconds), signal.ITIMER_REAL: (signal.SIGALRM, 6 * seconds)}
    before = {word: signal.signal(word, stop) for word, _ in timers.values()}
    for timer, (_, limit) in timers.items():
        signal.setitimer(timer, limit)
    try:
        yield
    finally:
        for timer in timers:
            signal.setitimer(timer, 0)
        for word, handler in before.items():
            signal.signal(word, handler)


def memory_folder() -> str | None:
    """A place for files that need not survive anything, in memory where there is one."""
    shared = Path("/dev/shm")  # noqa: S108 (folders in it are made by tempfile)
    return str(shared) if shared.is_dir() else None


def share_out(targets: Sequence[Target], kind: Kind, num_cases: int) -> Counter[str]:
    """Share the cases of one kind out evenly over its targets."""
    names = [target.name for target in targets if target.kind == kind]
    each, more = divmod(num_cases, len(names))
    return Counter({name: each + (place < more) for place, name in enumerate(names)})
