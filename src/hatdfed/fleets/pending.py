"""A round that is on its way: what the coordinators need is fetched from the device when they ask for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hatdfed.edge_server import EdgeProgram
from hatdfed.fleets.rows import Rows
from hatdfed.fleets.slots import Slots
from hatdfed.fleets.stacked_reports import Measured, round_report
from hatdfed.learning.work import WorkPlan
from hatdfed.round import RoundPlan, RoundReport


@dataclass
class PendingRound:
    """Everything on the device is what will be known when the device is done."""

    rows: Rows
    plans: Mapping[int, RoundPlan]
    works: Mapping[int, WorkPlan]
    slots: Slots
    compression: NDArray[np.float64]  # [S]
    present: Tensor  # [S, D]
    weights: Tensor  # [S, D]
    mass: Tensor  # [S]
    scores: Mapping[str, Tensor]  # [S, D] each
    correct: Tensor  # [S]

    def reports(self) -> dict[int, RoundReport]:
        """Wait for the round and tell what came of it."""
        correct, weights, present = (t.cpu().numpy() for t in (self.correct, self.weights, self.present))
        scores = {name: table.double().cpu().numpy() for name, table in self.scores.items()}
        mass = self.mass.cpu().numpy()
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
            reports[run] = round_report(plan, works, member.prices, senders, measured)
            not_finite = int(np.count_nonzero(self.slots.drawn[servers] & ~present[servers]))
            if not_finite:
                self.rows.refused[run]["not-finite"] += not_finite
        return reports


def reported_scores(program: EdgeProgram) -> list[str]:
    """What a mailbox's servers would report: the loss wherever a probe was measured."""
    names = ["loss"] if program.aggregator.needs_probe or "loss" in program.scores else []
    return names + (["similarity"] if "similarity" in program.scores else [])
