"""Every error that hatdfed raises on purpose.

HatdfedError                  one sentence for the person at the keyboard; the command line exits with 2
├── ConfigError               a setting that cannot work
├── DataError                 a data set that is missing, cut short or not what it claims to be
├── RunFolderError            a run folder that cannot be written, read or resumed
│   └── TroubleError          a full disk, no answer: it may pass, so the command line exits with 3
├── SweepFailedError          a sweep of which no run came to its end (`sweeps.sweep`)
├── UnguardedScriptError      a script that its own worker processes would run again (`workers`)
├── NameTakenError            an edge whose name another process has (`deploy.coordinator.membership`)
├── MissingDependencyError    an optional package that this command needs
├── ClusterError              a Ray cluster that cannot be reached, or cannot do what is asked of it
├── EnergyMeterError          energy that cannot be measured here, or a reading that makes no sense
├── IdentityError             a certificate, key or join token that is missing, wrong or refused
└── WireError                 bytes from another server that are not a message we accept

A sentence says what is wrong, what was found, what was wanted and what to do about it.
"""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


class HatdfedError(Exception):
    """Base of all errors meant to be read by a user."""

    exit_code = 2  # starting again in the same way does not help


class ConfigError(HatdfedError):
    """A setting that cannot work."""


class DataError(HatdfedError):
    """A data set that is missing, cut short or not what it claims to be."""


class RunFolderError(HatdfedError):
    """A run folder that cannot be written, read or resumed."""


class TroubleError(RunFolderError):
    """A temporary problem of the machine or the network; once it is resolved, a restart continues the run."""

    exit_code = 3


class MissingDependencyError(HatdfedError):
    """An optional package that is not installed."""


class ClusterError(HatdfedError):
    """A Ray cluster that cannot be reached, or cannot do what is asked of it."""


class EnergyMeterError(HatdfedError):
    """Energy that cannot be measured here, or a reading that makes no sense."""


class IdentityError(HatdfedError):
    """A certificate, key or join token that is missing, wrong or refused; `reason` is one counted word."""

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


class WireError(HatdfedError):
    """Bytes from another server that are not a message we accept; `reason` is one counted word."""

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


_MEANT = {"gpu": "cuda"}  # names that look more like another one


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The known name nearest to `name`, or all of them, as the end of an error sentence.

    >>> did_you_mean("hat-dfd", ["hat-dfed", "rnd"])
    'Did you mean hat-dfed?'
    >>> did_you_mean("zzz", ["rnd", "full"])
    'Known: full, rnd.'
    """
    names = sorted(known)
    if (meant := _MEANT.get(name)) in names:
        return f"Did you mean {meant}?"
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"Did you mean {near[0]}?" if near else f"Known: {', '.join(names)}."


OWN_THING = " If it is one of your own, import its module first (--import MODULE)."


def require_one_of(key: str, value: str, known: Iterable[str], hint: str = "") -> None:
    """Refuse a named choice that does not exist; `hint` ends the sentence."""
    names = sorted(known)
    if value not in names:
        raise ConfigError(f"{key} is {value!r}, which is not one of the choices. {did_you_mean(value, names)}{hint}")


@contextmanager
def advising_on_interrupt(how_to_go_on: str | None) -> Iterator[None]:
    """Add to a KeyboardInterrupt how to go on, if there is a way; Python prints it below the traceback."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        if how_to_go_on is not None:
            interrupt.add_note(how_to_go_on)
        raise


@contextmanager
def naming_failures(whose: str) -> Iterator[None]:
    """Turn whatever error a user's own code raises into a sentence that names that code and the place in it."""
    try:
        yield
    except HatdfedError:
        raise
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0]
        raise ConfigError(
            f"{whose} failed{_describe_place(error)} ({type(error).__name__}: {reason:.200}). Correct it."
        ) from error


_PACKAGE = str(Path(__file__).parent)


def _describe_place(error: Exception) -> str:
    """The last line of the first file that is neither of this package nor installed; empty if there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    outside = [f for f in frames if not f.filename.startswith(_PACKAGE) and "site-packages" not in f.filename]
    if not outside:
        return ""
    last = [frame for frame in outside if frame.filename == outside[0].filename][-1]
    return f" at line {last.lineno} of {Path(last.filename).name}"
