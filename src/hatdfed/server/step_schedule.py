"""Learning-rate schedule: the factor on the learning rate in each round, which decays towards the end of a run.

A full step on a few images adds noise to a model. That does not matter while the servers still learn; the models of
the last round are better without it.
"""

from __future__ import annotations

from dataclasses import dataclass

from hatdfed.errors import ConfigError


@dataclass(frozen=True)
class StepSchedule:
    """Factor 1, then linear decay to almost zero over the last part of a run."""

    rounds: int = 1  # K
    cool_down: float = 0.0  # share of the run, at its end, over which the factor decays

    def __post_init__(self) -> None:
        if not 0 <= self.cool_down <= 1:
            raise ConfigError(f"learner.cool_down is {self.cool_down}, but must be a share between 0 and 1.")

    def at(self, t: int) -> float:
        """Return the factor in round t, counted from 0; it stays constant beyond the last round."""
        left = max(1, self.rounds - t)
        return min(1.0, left / (1 + self.cool_down * self.rounds))
