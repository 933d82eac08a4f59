"""Functions of a user's own that are called while a run is played, and that may end it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hatdfed.core.round import RoundRecord
from hatdfed.errors import ConfigError, HatdfedError
from hatdfed.runs.recorder import OnRound, RunStopped
from hatdfed.runs.result import RunResult
from hatdfed.runs.round_row import round_row
from hatdfed.setup.config import Config


class Callback:
    """Inherit it and write what you need: what is left out does nothing."""

    def on_round_end(self, record: dict[str, Any]) -> bool | None:
        """Called after every round with its figures, as in `result.rounds`; return True to end the run after it."""
        return None

    def on_run_end(self, result: RunResult) -> None:
        """Called with the result, once, also of a run that was ended early."""


def check_callbacks(callbacks: object) -> None:
    """Refuse what is no list of callbacks, before a round is played."""
    if not isinstance(callbacks, Sequence) or isinstance(callbacks, str):
        raise ConfigError(f"callbacks is {callbacks!r:.100}, but must be a list, such as [MyCallback()].")
    for each in callbacks:
        if isinstance(each, type):
            raise ConfigError(f"callbacks has the class {each.__name__}, but must have objects: {each.__name__}().")
        for name in ("on_round_end", "on_run_end"):
            if not callable(getattr(each, name, None)):
                raise ConfigError(f"callbacks has {each!r:.100}, which lacks {name}. Inherit hatdfed.Callback.")


def tell_rounds(callbacks: Sequence[Callback], on_round: OnRound | None) -> OnRound | None:
    """What tells every round to `on_round` and to the callbacks, and ends the run if one of them asks for it."""
    check_callbacks(callbacks)
    if not callbacks:
        return on_round

    def tell(config: Config, record: RoundRecord) -> None:
        if on_round is not None:
            on_round(config, record)
        row = dict(round_row(record, None))
        answers = [_call(callback, "on_round_end", dict(row), f"after round {record.t + 1}") for callback in callbacks]
        for callback, answer in zip(callbacks, answers, strict=True):
            if answer is True:
                raise RunStopped(type(callback).__name__)

    return tell


def tell_end(callbacks: Sequence[Callback], result: RunResult) -> None:
    """Tell the result to the callbacks."""
    for callback in callbacks:
        _call(callback, "on_run_end", result, "after the last round")


def _call(callback: Callback, name: str, argument: Any, when: str) -> Any:
    try:
        return getattr(callback, name)(argument)
    except Exception as error:
        raise HatdfedError(
            f"{name} of the callback {type(callback).__name__} failed {when} ({type(error).__name__}: {error}). "
            "Rounds so far are kept in the run's folder, if it has one; fix the callback and resume the run."
        ) from error
