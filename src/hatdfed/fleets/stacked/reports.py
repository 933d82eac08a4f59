"""A round that is on its way: what the coordinators need is fetched from the device when they ask for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hatdfed.core.energy.energy_model import EnergyPrices
from hatdfed.core.round import RoundPlan, RoundReport, Worked, make_server_report
from hatdfed.fleets.stacked.merging import InboxTable, count_refused
from hatdfed.fleets.stacked.rows import Rows
from hatdfed.server.harm import Harm
from hatdfed.server.measured_metrics import Figures
from hatdfed.server.merge_laws import check_weights
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
    sent_norms: Tensor  # [S] of what receivers saw
    present: Tensor  # [S, D]
    weights: Tensor  # [S, D]
    mass: Tensor  # [S]
    scores: Mapping[str, Tensor]  # [S, D] each
    setbacks: Tensor  # [4, S]
    accuracy: Tensor  # [S]
    training_loss: Tensor  # [S] nan where it is not known
    validation_loss: Tensor  # [S]
    metrics: Sequence[Figures]  # [S]
    consensus_distance: Tensor  # [runs]

    def reports(self) -> dict[int, RoundReport]:
        """Wait for the round and tell what came of it."""
        accuracy, weights, present = (t.cpu().numpy() for t in (self.accuracy, self.weights, self.present))
        training_loss, validation_loss = (t.double().cpu().numpy() for t in (self.training_loss, self.validation_loss))
        setbacks = self.setbacks.cpu().numpy()
        scores = {name: table.double().cpu().numpy() for name, table in self.scores.items()}
        mass, distance = self.mass.cpu().numpy(), self.consensus_distance.cpu().numpy()
        reports = {}
        for run, plan in self.plans.items():
            servers, member = self.rows.of_run(run), self.rows.members[run]
            self.rows.mass[servers] = mass[servers]
            settled = ~setbacks[:, servers].any(axis=0)  # elsewhere the guard has chosen the weights
            check_weights(member.program.aggregator, weights[servers][settled], present[servers][settled])
            measured = Measured(
                accuracy=accuracy[servers],
                training_loss=training_loss[servers],
                validation_loss=validation_loss[servers],
                metrics=self.metrics[servers],
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
            report = replace(report, consensus_distance=float(distance[run]))
            reports[run] = report if member.liars is None else member.liars.report(report)
            self.rows.refused[run] += count_refused(self.slots, servers, present, self.sent_norms)
            self.rows.settle(run, setbacks[:, servers])
        return reports


def reported_scores(program: EdgeProgram) -> list[str]:
    """What a mailbox's servers would report: the loss wherever a probe was measured."""
    names = ["loss"] if program.needs_probe else []
    harm = [name for name in Harm._fields if program.scores & set(Harm._fields)]
    return names + harm + (["similarity"] if "similarity" in program.scores else [])


Table = NDArray[np.float64]


class Measured(NamedTuple):
    """What came out of a round, for the servers of one run; on the host."""

    accuracy: Table  # [N]
    training_loss: Table  # [N] nan where it is not known
    validation_loss: Table  # [N]
    metrics: Sequence[Figures]  # [N]
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
                training_loss=float(measured.training_loss[i]),
                validation_loss=float(measured.validation_loss[i]),
                metrics=measured.metrics[i],
            )
            for i, (work, merged) in enumerate(zip(works, measured.present, strict=True))
        )
    )
