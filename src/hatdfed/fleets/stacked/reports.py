"""A round that is on its way: what the coordinators need is fetched from the device when they ask for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
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
        tensors = (self.accuracy, self.training_loss, self.validation_loss, self.mass, self.consensus_distance)
        tables = (self.weights, self.present, self.setbacks)
        accuracy, training_loss, validation_loss, mass, distance, weights, *more = fetch(
            *tensors, *tables, *self.scores.values()
        )
        present, setbacks = more[0].astype(bool), more[1].astype(bool)
        scores = dict(zip(self.scores, more[2:], strict=True))
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
                weights=weights[servers],
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


def fetch(*tensors: Tensor) -> list[NDArray[np.float64]]:
    """Numbers on the host in float64, which holds them all; one transfer, because a GPU is waited for in each."""
    together = torch.cat([tensor.double().flatten() for tensor in tensors]).cpu().numpy()
    parts = np.split(together, np.cumsum([tensor.numel() for tensor in tensors])[:-1])
    return [part.reshape(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]


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
    present = measured.present
    last = np.cumsum(present.sum(axis=1)).tolist()  # of each server's models among all that were merged
    merged = [slice(*both) for both in pairwise([0, *last])]
    senders, weights = senders[present], measured.weights[present]
    scores = {name: table[present] for name, table in measured.scores.items()}
    columns = (measured.accuracy, measured.compression, measured.training_loss, measured.validation_loss)
    figures = zip(*(column.tolist() for column in columns), strict=True)
    return RoundReport(
        tuple(
            make_server_report(
                plan,
                prices,
                i,
                work,
                accuracy=accuracy,
                senders=senders[here],
                importance=weights[here],
                scores={name: column[here] for name, column in scores.items()},
                compression=compression,
                training_loss=training_loss,
                validation_loss=validation_loss,
                metrics=metrics,
            )
            for i, (work, here, metrics, (accuracy, compression, training_loss, validation_loss)) in enumerate(
                zip(works, merged, measured.metrics, figures, strict=True)
            )
        )
    )
