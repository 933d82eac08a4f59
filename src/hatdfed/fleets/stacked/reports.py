"""A round that is on its way: what the coordinators need is fetched from the device when they ask for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hatdfed.core.energy.prices import EnergyPrices
from hatdfed.core.refusals import NOT_FINITE
from hatdfed.core.round import RoundPlan, RoundReport, Worked, make_server_report
from hatdfed.fleets.stacked.merging import InboxTable
from hatdfed.fleets.stacked.rows import Rows
from hatdfed.server.program import EdgeProgram
from hatdfed.server.work import WorkPlan


@dataclass
class PendingRound:
    """Everything on the device is what will be known when the device is done."""

    rows: Rows
    plans: Mapping[int, RoundPlan]
    works: Mapping[int, WorkPlan]
    slots: InboxTable
    compression: NDArray[np.float64]  # [S]
    present: Tensor  # [S, D]
    weights: Tensor  # [S, D]
    mass: Tensor  # [S]
    scores: Mapping[str, Tensor]  # [S, D] each
    setbacks: Tensor  # [4, S]
    correct: Tensor  # [S]
    consensus_distance: Tensor  # [runs]

    def reports(self) -> dict[int, RoundReport]:
        """Wait for the round and tell what came of it."""
        correct, weights, present = (t.cpu().numpy() for t in (self.correct, self.weights, self.present))
        setbacks = self.setbacks.cpu().numpy()
        scores = {name: table.double().cpu().numpy() for name, table in self.scores.items()}
        mass, distance = self.mass.cpu().numpy(), self.consensus_distance.cpu().numpy()
        reports = {}
        for run, plan in self.plans.items():
            servers, member = self.rows.of_run(run), self.rows.members[run]
            self.rows.mass[servers] = mass[servers]
            measured = Measured(
                accuracy=correct[servers] / len(self.rows.validation[run].y),
                weights=weights[servers].astype(np.float64),
                present=present[servers],
                scores={name: scores[name][servers] for name in reported_scores(member.program)},
                compression=self.compression[servers],
            )
            if member.prices is None:
                raise ValueError("a run without prices cannot keep its ledger")
            works = [self.works[server] for server in range(servers.start, servers.stop)]
            senders = self.slots.sender[servers] - servers.start
            report = round_report(plan, works, member.prices, senders, measured)
            reports[run] = replace(report, consensus_distance=float(distance[run]))
            not_finite = int(np.count_nonzero(self.slots.drawn[servers] & ~present[servers]))
            if not_finite:
                self.rows.refused[run][NOT_FINITE] += not_finite
            self.rows.settle(run, setbacks[:, servers])
        return reports


def reported_scores(program: EdgeProgram) -> list[str]:
    """What a mailbox's servers would report: the loss wherever a probe was measured."""
    names = ["loss"] if program.aggregator.needs_probe or "loss" in program.scores else []
    return names + (["similarity"] if "similarity" in program.scores else [])


Table = NDArray[np.float64]


class Measured(NamedTuple):
    """What came out of a round, for the servers of one run; on the host."""

    accuracy: Table  # [N]
    weights: Table  # [N, D]
    present: NDArray[np.bool_]  # [N, D]
    scores: Mapping[str, Table]  # [N, D] each
    compression: Table  # [N] of what each server sent


def round_report(
    plan: RoundPlan, works: Sequence[Worked], prices: EnergyPrices, senders: NDArray[np.int64], measured: Measured
) -> RoundReport:
    """The reports of one run; `senders` [N, D] are numbered from 0 in this run."""
    return RoundReport(
        tuple(
            make_server_report(
                plan,
                prices,
                i,
                work,
                accuracy=float(measured.accuracy[i]),
                senders=senders[i, merged],
                importance=measured.weights[i, merged],
                scores={name: table[i, merged] for name, table in measured.scores.items()},
                compression=float(measured.compression[i]),
            )
            for i, (work, merged) in enumerate(zip(works, measured.present, strict=True))
        )
    )
