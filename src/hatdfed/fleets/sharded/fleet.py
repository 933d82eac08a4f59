"""A fleet cut into shards, wherever they run: plans go down in parts, reports come up and are put together.

Models do not pass through here: `Shards` carries letters from shard to shard.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.delivery import SURE, Delivery
from hatdfed.core.energy.energy_model import EnergyPrices
from hatdfed.core.fleet import FinalAccuracy, Snapshot
from hatdfed.core.round import RoundPlan, RoundReport, WorkDone, estimate_consensus_distance
from hatdfed.fleets.sharded.orders import Lost, ShardOrder, cut, cut_lost
from hatdfed.fleets.sharded.shard import Shard, ShardReport, Trained
from hatdfed.fleets.stacked.reports import Measured, round_report
from hatdfed.server.work import Answers, HeldOut

Works = list[WorkDone]  # [N]
FindLost = Callable[[Works], Sequence[Lost]]  # for each shard


class Shards(Protocol):
    """Shards and the post between them."""

    @property
    def bounds(self) -> Sequence[int]:
        """The first server of each shard, and N at the end."""

    def play(self, orders: Sequence[ShardOrder], find_lost: FindLost) -> tuple[Works, list[ShardReport]]:
        """A round: every shard trains, letters are delivered, every shard merges what was not lost."""

    def each(self, verb: str, *arguments: Sequence[Any]) -> list[Any]:
        """Call a method of every shard; each argument is a list with a value for each of them."""

    def close(self) -> None:
        """Give back what they occupy."""


class LocalShards:
    """Plain objects in this process: what the others are measured by."""

    def __init__(self, shards: Sequence[Shard], bounds: Sequence[int]) -> None:
        self.bounds = tuple(bounds)
        self._shards = tuple(shards)

    def play(self, orders: Sequence[ShardOrder], find_lost: FindLost) -> tuple[Works, list[ShardReport]]:
        """One after another."""
        trained = [shard.train(order) for shard, order in zip(self._shards, orders, strict=True)]
        works = list_works(trained)
        lost = find_lost(works)
        return works, [
            shard.merge(letters_for(number, trained), lost[number]) for number, shard in enumerate(self._shards)
        ]

    def each(self, verb: str, *arguments: Sequence[Any]) -> list[Any]:
        """One after another."""
        return [getattr(shard, verb)(*(those[n] for those in arguments)) for n, shard in enumerate(self._shards)]

    def close(self) -> None:
        """Nothing to give back."""


def list_works(trained: Iterable[Trained]) -> Works:
    """What all servers did, shard after shard."""
    return [work for each in trained for work in each.works]


def letters_for(shard: int, trained: Iterable[Trained]) -> list[Any]:
    """The letters of all others to one shard."""
    return [each.letters[shard] for each in trained if shard in each.letters]


class ShardedFleet:
    """N servers in several shards, as one fleet."""

    def __init__(self, shards: Shards, prices: EnergyPrices, test: HeldOut, delivery: Delivery = SURE) -> None:
        self._shards = shards
        self._delivery = delivery
        self._prices = prices
        self._test = test
        self.num_params, self._computed_by = shards.each("describe")[0]
        self.refused: Counter[str] = Counter()
        self.posted_bytes = 0  # between shards, in the last round
        self._last: tuple[RoundPlan, RoundReport] | None = None

    @property
    def num_servers(self) -> int:
        """N."""
        return self._shards.bounds[-1]

    @property
    def computed_by(self) -> dict[str, str | int]:
        """What each shard computes with, and how many there are."""
        return {**self._computed_by, "fleet": "sharded", "shards": self._count}

    def validation_accuracy(self) -> NDArray[np.float64]:
        """[N] of the models as they are now, on validation data."""
        return np.concatenate(self._shards.each("validation_accuracy"))

    def final_accuracy(self) -> FinalAccuracy:
        """On the test data, once, after the last round."""
        return self._test.accuracy(self.answers())

    def answers(self) -> Answers:
        """What all servers make of the test data."""
        parts: list[Answers] = self._shards.each("answers")
        scores, measures = (np.concatenate([each[place] for each in parts]) for place in (0, 1))
        own = [each.own for each in parts if each.own is not None]
        counted = [each.confusion for each in parts if each.confusion is not None]
        confusion = np.sum(counted, axis=0) if counted else None
        metrics = [figures for each in parts for figures in each.metrics]
        return Answers(scores, measures, np.concatenate(own) if own else None, confusion, metrics)

    def run_round(self, plan: RoundPlan) -> RoundReport:
        """Train, exchange, merge, measure; the same plan once more gives what it gave."""
        if self._last is None or self._last[0] is not plan:
            bounds = self._shards.bounds
            works, reports = self._shards.play(cut(plan, bounds), partial(self._find_lost, plan))
            self._last = (plan, self._report(plan, works, reports))
        return self._last[1]

    def _find_lost(self, plan: RoundPlan, works: Works) -> list[Lost]:
        return cut_lost(self._delivery.find_lost(plan, works), plan, self._shards.bounds)

    def _report(self, plan: RoundPlan, works: Works, reports: Sequence[ShardReport]) -> RoundReport:
        for report in reports:
            self.refused.update(report.refused)
        self.posted_bytes = sum(report.posted_bytes for report in reports)
        senders = _joined([report.senders for report in reports])
        measured = _all_measured([report.measured for report in reports])
        distance = estimate_consensus_distance([sketch for report in reports for sketch in report.sketches])
        together = round_report(plan, works, self._prices, senders, measured)
        return replace(together, consensus_distance=distance)

    def snapshot(self) -> Snapshot:
        """Everything the servers remember, under the names that every fleet uses."""
        arrays: dict[str, NDArray[Any]] = {}
        for first, part in zip(self._shards.bounds, self._shards.each("snapshot"), strict=False):
            for name, array in part.items():
                server, _, what = name.partition(".")
                arrays[f"{first + int(server)}.{what}"] = array
        return arrays

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to what `snapshot` remembers."""
        self._last = None
        parts: list[dict[str, NDArray[Any]]] = [{} for _ in range(self._count)]
        for name, array in snapshot.items():
            server, _, what = name.partition(".")
            shard = int(np.searchsorted(self._shards.bounds, int(server), side="right")) - 1
            parts[shard][f"{int(server) - self._shards.bounds[shard]}.{what}"] = array
        self._shards.each("restore", parts)

    def close(self) -> None:
        """Give back what the shards occupy."""
        self._shards.close()

    @property
    def _count(self) -> int:
        return len(self._shards.bounds) - 1


def _all_measured(parts: Sequence[Measured]) -> Measured:
    return Measured(
        accuracy=np.concatenate([part.accuracy for part in parts]),
        training_loss=np.concatenate([part.training_loss for part in parts]),
        validation_loss=np.concatenate([part.validation_loss for part in parts]),
        metrics=[figures for part in parts for figures in part.metrics],
        weights=_joined([part.weights for part in parts]),
        present=_joined([part.present for part in parts]),
        scores={name: _joined([part.scores[name] for part in parts]) for name in parts[0].scores},
        compression=np.concatenate([part.compression for part in parts]),
    )


def _joined(tables: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Tables of inboxes, one below another; narrow ones are padded with slots in which there is nothing."""
    width = max(table.shape[1] for table in tables)
    return np.concatenate([np.pad(table, ((0, 0), (0, width - table.shape[1]))) for table in tables])
