"""How long the steps of local training are in a round, as a share of the learner's own: shorter towards the end.

A step of full length on a few images moves a model to and fro. While servers still learn that does not matter; the
models of the last round are better without it.
"""

from __future__ import annotations

from dataclasses import dataclass

from hatdfed.errors import ConfigError


@dataclass(frozen=True)
class StepSchedule:
    """Full length, and over the last part of a run in a straight line down to almost nothing."""

    rounds: int = 1  # K
    cool_down: float = 0.0  # share of the run, at its end, in which steps become shorter

    def __post_init__(self) -> None:
        if not 0 <= self.cool_down <= 1:
            raise ConfigError(f"learner.cool_down is {self.cool_down}, but must be a share between 0 and 1.")

    def at(self, t: int) -> float:
        """In round t, counted from 0. A run that goes on beyond its rounds keeps the last length."""
        left = max(1, self.rounds - t)
        return min(1.0, left / (1 + self.cool_down * self.rounds))
