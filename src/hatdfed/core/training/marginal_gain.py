"""Training where it pays: each server's probability to train follows what its training has brought for a joule.

A server gains accuracy in a round in which it trains, and also in one in which it only merges what others have learned.
What its training is worth is the difference, estimated by moving averages of both gains. Gains are small and noisy, so
a server's own estimate counts only as far as there are observations behind it; the rest is the estimate over all. The
probabilities are proportional to this worth for a joule of training and upload, between `least` and 1, and scaled so
that a share `saved` of the usual training is left out on average. Because everybody trains at times and rests at times,
both gains stay known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from hatdfed.core.effort import Effort
from hatdfed.core.training.base import Mask, TrainingContext, TrainingOutcome, Vector, train_some
from hatdfed.errors import ConfigError

_STEPS = 60  # of a bisection: more than a float has digits


class Gains(NamedTuple):
    """What rounds have brought each server."""

    trained: Vector  # [N] moving average of the gain in accuracy, over rounds in which it trained
    rested: Vector  # [N] and over those in which it did not
    joules: Vector  # [N] of training and uploads, over rounds in which it trained
    num_trained: Vector  # [N] observations behind them, older ones counting less
    num_rested: Vector  # [N]


@dataclass(frozen=True)
class MarginalGain:
    """Servers train with a probability that follows the gain of their training for a joule."""

    name: ClassVar[str] = "marginal-gain"
    looks_at_data: ClassVar[bool] = True  # accuracies decide who trains

    saved: float = 0.4  # share of the usual rounds of training that is left out
    least: float = 0.2  # probability with which a server trains at least
    memory: float = 0.9  # factor by which an observation counts less with every further one
    doubt: float = 5.0  # observations at which a server's own estimate counts as much as that of all
    warm_up: float = 0.05  # share of the run, at its beginning, in which everybody trains

    def __post_init__(self) -> None:
        if not 0 <= self.saved < 1 or not 0 < self.least <= 1 - self.saved:
            raise ConfigError(
                f"training.saved is {self.saved} and training.least {self.least}, but saved is a share below 1, and "
                "least is above 0 and no more than the share that is left."
            )
        if not 0 <= self.memory < 1 or self.doubt <= 0 or not 0 <= self.warm_up < 1:
            raise ConfigError("training.memory and training.warm_up are shares below 1, training.doubt is above 0.")

    def init(self, num_servers: int) -> Gains:
        """Nothing is known."""
        return Gains(*(np.zeros(num_servers) for _ in Gains._fields))

    def grow(self, state: Gains, num_servers: int) -> Gains:
        """Nothing is known of new servers."""
        return Gains(*(np.concatenate([each, np.zeros(num_servers - len(each))]) for each in state))

    def find_most_passes(self, passes: int) -> int:
        """As many as the settings say."""
        return passes

    def propose(self, state: Gains, context: TrainingContext, rng: np.random.Generator) -> Effort:
        """Draw who trains."""
        return train_some(context, rng.random(context.num_servers) < self.find_probability(state, context))

    def update(self, state: Gains, outcome: TrainingOutcome, context: TrainingContext) -> Gains:
        """Learn from the servers that took part and reported."""
        gain = outcome.accuracy - outcome.accuracy_before
        known = np.isfinite(gain) & context.active
        trained: Mask = known & (outcome.effort.passes > 0)
        rested: Mask = known & ~trained
        return Gains(
            trained=self._average(state.trained, state.num_trained, gain, trained),
            rested=self._average(state.rested, state.num_rested, gain, rested),
            joules=self._average(state.joules, state.num_trained, outcome.joules, trained),
            num_trained=np.where(trained, 1 + self.memory * state.num_trained, state.num_trained),
            num_rested=np.where(rested, 1 + self.memory * state.num_rested, state.num_rested),
        )

    def find_probability(self, state: Gains, context: TrainingContext) -> Vector:
        """The probability of each server to train; after the warm-up, its mean over those present is 1 − `saved`."""
        if context.t < self.warm_up * context.horizon:
            return np.ones(context.num_servers)
        worth = self._find_worth(state, context)
        return _scale(worth, context.active, 1 - self.saved, self.least)

    def _find_worth(self, state: Gains, context: TrainingContext) -> Vector:
        """Gain of training beyond that of merging alone, for a joule; above 0."""
        usual = context.training_joules + context.upload_joules
        joules = np.where(state.num_trained > 0, state.joules, usual)
        trained = _shrink(state.trained, state.num_trained, self.doubt)
        rested = _shrink(state.rested, state.num_rested, self.doubt)
        gain = trained - rested
        # Noise can hide the worth of training altogether; what counts then is the price.
        return np.maximum(gain, 0.1 * max(float(np.abs(gain).mean()), 1e-9)) / np.maximum(joules, 1e-12)

    def _average(self, average: Vector, count: Vector, value: Vector, is_new: Mask) -> Vector:
        """The moving average after one more value for some."""
        weight = 1 + self.memory * count
        return np.where(is_new, (np.where(is_new, value, 0.0) + self.memory * count * average) / weight, average)


def _shrink(average: Vector, count: Vector, doubt: float) -> Vector:
    """Own averages, drawn towards that of all the more the fewer observations are behind them."""
    total = count.sum()
    of_all = float((average * count).sum() / total) if total else 0.0
    return (count * average + doubt * of_all) / (count + doubt)


def _scale(worth: Vector, active: Mask, mean: float, least: float) -> Vector:
    """Probabilities proportional to `worth`, between `least` and 1, with this mean over the active servers."""
    if not active.any():
        return np.zeros(len(worth))
    low, high = 0.0, 1 / float(worth[active].min())
    for _ in range(_STEPS):
        middle = (low + high) / 2
        is_enough = np.clip(middle * worth[active], least, 1.0).mean() >= mean
        low, high = (low, middle) if is_enough else (middle, high)
    return np.clip(high * worth, least, 1.0)
