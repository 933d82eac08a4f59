"""A fleet of real machines behind the same protocol as every other fleet: a plan goes out, reports come back.

Models never pass through the coordinator, which needs no torch: each edge runs the `EdgeProgram` and keeps its state.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.coordinator import Coordinator
from hatdfed.core.fleet import MOST_CONFUSED, FinalAccuracy, Snapshot
from hatdfed.core.round import RoundPlan, RoundReport, ServerReport
from hatdfed.deploy.coordinator.edge_hub import EdgeHub
from hatdfed.deploy.coordinator.membership import Manifest
from hatdfed.deploy.failpoints import failpoint
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.errors import TroubleError

T = TypeVar("T")
_MAX_ROUNDS = 10**9


class WaitFor(Protocol):
    """Runs a coroutine on the event loop while the main loop waits for it in a thread of its own."""

    def __call__(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`."""


class RemoteFleet:
    """N servers on other machines, reached through the hub."""

    def __init__(
        self,
        hub: EdgeHub,
        manifest: Manifest,
        coordinator_for: Callable[[int], Coordinator],
        wait_for: WaitFor,
        *,
        final_seconds: float,
        metrics: Sequence[str] = (),
    ) -> None:
        """`coordinator_for` gives the coordinator of N servers, for its prices and limits of reports.

        Edges have `final_seconds` to measure their last models. `metrics` are those that the settings ask for.
        """
        self._hub = hub
        self._coordinator_for = coordinator_for
        self._wait_for = wait_for
        self._final_seconds = final_seconds
        self._metrics = metrics
        self.num_params = manifest.num_params
        self.round_seconds = 0.0  # from the announcement of the last round to its last report

    @property
    def num_servers(self) -> int:
        """N, as of now: servers may join."""
        return self._hub.membership.num_servers

    @property
    def computed_by(self) -> dict[str, str]:
        """The fleet's name: what edges compute with is their own choice."""
        return {"fleet": "remote"}

    @property
    def refused(self) -> Counter[str]:
        """Refusals by reason, of edges and of the hub, since this start of the coordinator."""
        return self._hub.refused + self._hub.open_round.refused

    def validation_accuracy(self) -> NDArray[np.float64]:
        """Return [N] the accuracies that servers joined with; their mean for servers that no edge plays yet."""
        members = self._hub.membership.members
        known = {member.index: member.accuracy for member in members if member.accuracy is not None}
        mean = float(np.mean(list(known.values()))) if known else 0.0
        return np.array([known.get(index, mean) for index in range(self.num_servers)])

    def run_round(self, plan: RoundPlan) -> RoundReport:
        """Announce the plan and wait for the reports; the same plan again gives what the servers did the first time."""
        failpoint("before-announce")
        announced = time.perf_counter()
        coordinator = self._coordinator_for(plan.draw.topology.num_servers)
        report = self._wait_for(self._hub.play(plan, coordinator.prices, coordinator.limits))
        self.round_seconds = time.perf_counter() - announced
        failpoint("after-reports")
        return replace(report, servers=tuple(map(self._keep_metrics, report.servers)))

    def _keep_metrics(self, report: ServerReport | None) -> ServerReport | None:
        """A report with the metrics that were asked for, None where the edge tells none, and without others."""
        return None if report is None else report._replace(metrics={n: report.metrics.get(n) for n in self._metrics})

    def final_accuracy(self) -> FinalAccuracy:
        """Ask edges for the accuracies of their last models; on validation data if any of them has no test data."""
        self._wait_for(self._hub.finish(self._final_seconds))
        figures = [self._hub.final[index] for index in sorted(self._hub.final)]
        if not figures:
            raise TroubleError(
                "No server reported its final figures, so there are no results. Start it again to retry."
            )
        private = tuple(map(self._count_private_rounds, range(self.num_servers)))
        if not all(each.has_test for each in figures):
            validation = np.array([each.validation_accuracy for each in figures])
            return FinalAccuracy(validation, validation, validation, "validation", private)
        overall = np.array([each.accuracy for each in figures])
        personal = np.array([np.nan if each.without_classes else each.personal_accuracy for each in figures])
        own = np.array([each.own_accuracy if each.HasField("own_accuracy") else each.accuracy for each in figures])
        told_by_all = set.intersection(*(set(each.metrics) for each in figures))
        names = [*sorted(told_by_all - set(self._metrics)), *self._metrics]  # those of the task, then of the settings
        metrics = {name: np.array([each.metrics.get(name, np.nan) for each in figures]) for name in names}
        confusion = _add_confusions(figures)
        return FinalAccuracy(overall, personal, own, private_rounds=private, metrics=metrics, confusion=confusion)

    def _count_private_rounds(self, index: int) -> int | None:
        """Return what an edge counted: it alone knows of rounds that it repeated, or whose report was lost."""
        figures = self._hub.final.get(index)
        if figures is None or not figures.HasField("private_rounds"):
            return None
        return figures.private_rounds if 0 <= figures.private_rounds <= _MAX_ROUNDS else None

    def snapshot(self) -> Snapshot:
        """Nothing: every edge keeps its own state."""
        return {}

    def restore(self, snapshot: Snapshot) -> None:
        """Nothing to do: edges that return bring their state."""

    def close(self) -> None:
        """Nothing to do: the coordinator's process dismisses the edges."""


def _add_confusions(figures: Sequence[pb.FinalFigures]) -> NDArray[np.int64] | None:  # -> [C, C]
    """Add up what edges counted; None where one of them has told nothing, or a table of another size."""
    classes = math.isqrt(len(figures[0].confusion))
    if not 0 < classes <= MOST_CONFUSED or {len(each.confusion) for each in figures} != {classes**2}:
        return None
    counted = [np.array(each.confusion, dtype=np.int64) for each in figures]
    total: NDArray[np.int64] = np.sum(counted, axis=0).reshape(classes, classes)
    return total
