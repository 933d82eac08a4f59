"""What the main loop and the recorder ask of a fleet, however and wherever its servers are run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.round import RoundPlan, RoundReport

Snapshot = Mapping[str, NDArray[Any]]
Accuracies = NDArray[np.float64]  # [N], fractions


MOST_CONFUSED = 100  # classes of which a table of confusions is kept


class FinalAccuracy(NamedTuple):
    """What the models are worth after the last round, for the n servers that could be measured."""

    overall: Accuracies  # [n] on data that all servers have in common
    personal: Accuracies  # [n] on each server's own mix of labels
    own: Accuracies  # [n] on data as the server sees them; the same as `overall` where all see the same
    # (accuracies are mean scores of the task; `personal` is nan where samples have no class labels)
    measured_on: str = "test"  # "validation" where there are no test data
    private_rounds: tuple[int | None, ...] | None = None  # [N] rounds of private training, where servers count them
    metrics: Mapping[str, NDArray[np.float64]] = MappingProxyType({})  # [n] the task's own, such as perplexity
    # [C, C] test samples of a class (row) that models took for a class (column), all servers together; None: unknown
    confusion: NDArray[np.int64] | None = None


class Fleet(Protocol):
    """The N servers of one run."""

    @property
    def num_servers(self) -> int:
        """N."""

    @property
    def num_params(self) -> int:
        """P, the numbers in a model."""

    @property
    def computed_by(self) -> Mapping[str, str | int]:
        """Which fleet this is and what it computes with, for the reader of a result."""

    @property
    def refused(self) -> Counter[str]:
        """How many messages servers have refused, by reason; a run that goes on adds those of its earlier rounds."""

    def validation_accuracy(self) -> Accuracies:
        """[N] of the models as they are now, on validation data."""

    def run_round(self, plan: RoundPlan) -> RoundReport:
        """Train, exchange, merge, measure.

        May be asked for the same round again until the next one is asked for, and then gives the same result.
        """

    def final_accuracy(self) -> FinalAccuracy:
        """Measure the models on test data: once, after the last round."""

    def snapshot(self) -> Snapshot:
        """What has to be kept here for the servers to go on later, as named arrays."""

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to what `snapshot` remembers."""

    def close(self) -> None:
        """Give back what the servers occupy elsewhere."""


class FleetGroup(Protocol):
    """The fleets of several runs that play their rounds together; one run is the case of one."""

    @property
    def fleets(self) -> Sequence[Fleet]:
        """One for each run."""

    def run_rounds(self, plans: Mapping[int, RoundPlan]) -> Mapping[int, RoundReport]:
        """One round of the runs that have a plan; runs are numbered as `fleets` are."""

    def close(self) -> None:
        """Close all fleets."""


class SeparateFleets:
    """Fleets that share nothing: in every round each plays when its turn comes."""

    def __init__(self, *fleets: Fleet) -> None:
        self.fleets = fleets

    def run_rounds(self, plans: Mapping[int, RoundPlan]) -> Mapping[int, RoundReport]:
        """One after another."""
        return {run: self.fleets[run].run_round(plan) for run, plan in plans.items()}

    def close(self) -> None:
        """One after another."""
        for fleet in self.fleets:
            fleet.close()


def measure_accuracy(
    correct: NDArray[Any], labels: NDArray[np.int64], label_shares: NDArray[np.float64]
) -> FinalAccuracy:  # [N, n], [n], [N, classes]
    """Compute accuracies from the test samples that each server classifies correctly, and the labels of its own data.

    The personal accuracy is taken label by label and weighted by these shares: what personalised methods such as DAC
    aim at. A label that the test data lack counts nowhere; of a server that has no other, it is unknown.
    """
    by_label = np.stack([correct[:, labels == label].mean(axis=1) for label in np.unique(labels)], axis=1)
    held = label_shares[:, np.unique(labels)]
    overall = correct.mean(axis=1)
    total = held.sum(axis=1)
    personal = np.divide((by_label * held).sum(axis=1), total, out=np.full(len(held), np.nan), where=total > 0)
    return FinalAccuracy(overall, personal, overall)
