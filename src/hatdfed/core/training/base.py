"""The plug point of training: how much every server trains in a round, and what is learned from it.

A training policy is a frozen dataclass; its fields are its settings. What it learns is a *state*, a value that goes in
and comes out like that of a topology policy. To add one: write a file with these methods in this package and give the
class a `name`; in a package of your own, an entry point names it. Whatever a policy says, servers that take no part
rest and ask nobody: the coordinator sees to that.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.effort import Effort

S = TypeVar("S")
Vector = NDArray[np.float64]  # [N]
Mask = NDArray[np.bool_]  # [N]


class TrainingContext(NamedTuple):
    """What a training policy may know before a round."""

    t: int
    horizon: int  # K, rounds that the run was started for
    passes: int  # over a round's data, by the settings
    active: Mask  # who takes part
    training_joules: Vector  # of a usual round of each server, at these passes
    upload_joules: Vector  # of its devices in a usual round that uploads anew
    charge: Vector | None = None  # joules left in each server's battery; None: they have none
    capacity: Vector | None = None  # joules that it holds when full, inf on mains

    @property
    def num_servers(self) -> int:
        """N."""
        return len(self.active)


class TrainingOutcome(NamedTuple):
    """What a training policy learns from after a round."""

    effort: Effort  # as it was played
    accuracy: Vector  # of the merged models on validation data, fractions; nan where no report came
    accuracy_before: Vector  # last known
    joules: Vector  # spent on training and uploads


class TrainingPolicy(Protocol[S]):
    """Decides how much every server trains, and learns from what it brought."""

    def init(self, num_servers: int) -> S:
        """The state before the first round."""

    def grow(self, state: S, num_servers: int) -> S:
        """The state after servers joined at the end of the numbering; nobody's knowledge is lost."""

    def find_most_passes(self, passes: int) -> int:
        """The most passes that it ever asks for, where the settings say `passes`."""

    def propose(self, state: S, context: TrainingContext, rng: np.random.Generator) -> Effort:
        """Decide on round `context.t`."""

    def update(self, state: S, outcome: TrainingOutcome, context: TrainingContext) -> S:
        """The state after the round."""


AnyTraining = TrainingPolicy[Any]


class NoState(NamedTuple):
    """The state of a policy that learns nothing."""


class Stateless:
    """What a policy without memory does not need to write."""

    name: ClassVar[str]

    def init(self, num_servers: int) -> NoState:
        """Nothing to remember."""
        return NoState()

    def grow(self, state: NoState, num_servers: int) -> NoState:
        """Nothing to keep."""
        return state

    def find_most_passes(self, passes: int) -> int:
        """As many as the settings say."""
        return passes

    def update(self, state: NoState, outcome: TrainingOutcome, context: TrainingContext) -> NoState:
        """Nothing to learn."""
        return state


def train_some(context: TrainingContext, trains: Mask) -> Effort:
    """Some servers train on new data, as much as the settings say; the others rest and ask nobody."""
    return Effort(np.where(trains, context.passes, 0), trains.copy())
