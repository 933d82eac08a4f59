"""All servers of many runs as stacked tensors: the fast fleet, on a CPU or a GPU.

It gives `EdgeProgram` the same meaning as the mailboxes do, without bytes: models are rows of one tensor, an inbox is a
row of indices, a merge is a weighted sum of rows. Runs in one fleet share the network, the task and the pool of
samples; methods, worlds and prices may differ. One run is the case of one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hatdfed.core.effort import Effort, ServerEffort
from hatdfed.core.round import RoundPlan, RoundReport
from hatdfed.fleets.kernels.vectors import compute_norms, consensus_distance, copy_rows, restore_rows, vectors_for
from hatdfed.fleets.stacked.choose_model import choose_model
from hatdfed.fleets.stacked.merging import (
    InboxTable,
    Merge,
    SentModels,
    StackedInbox,
    decide,
    holdings,
    is_verbatim,
    keep_usable,
    make_inboxes,
    sent_models,
)
from hatdfed.fleets.stacked.model import StackedModel
from hatdfed.fleets.stacked.probing import compute_similarity, evaluate_on_probes, judge_scores
from hatdfed.fleets.stacked.reports import PendingRound
from hatdfed.fleets.stacked.rows import Execution, Rows, RunServers, load_of, matrix_products
from hatdfed.fleets.stacked.run_view import RunView
from hatdfed.server.aggregation import Aggregator, Probe
from hatdfed.server.guard import fallback_weights, has_nothing, is_usable
from hatdfed.server.measured_metrics import Figures
from hatdfed.server.work import WorkPlan

Plans = Mapping[int, RoundPlan]  # by the number of the run
Times = Mapping[int, int]  # the round that each run is in
Efforts = Mapping[int, Effort]  # of the runs whose plans have one
Runs = Collection[int]
Works = Mapping[int, WorkPlan]  # by the number of the server, counted through all runs
WorkKey = tuple[int, int, ServerEffort | None, int]  # source, round, effort, samples held: by these, runs share work


class StackedFleet:
    """Plays rounds of many runs at once: trains, sends, judges, merges, measures.

    Tables of inboxes and of sent models may have more rows than there are servers: guests, whose models come from
    elsewhere (`fleets.shard`).
    """

    def __init__(self, members: Sequence[RunServers], execution: Execution, model: StackedModel | None = None) -> None:
        """`model` is the fastest stacked form of the members' network, unless it is given."""
        if model is None:
            learner, pool = members[0].program.learner, members[0].sources[0].pool
            model = choose_model(learner, pool, execution.device, load_of(members))
        self.rows = Rows(members, execution, model)
        self.fleets = tuple(RunView(self, run) for run in range(len(members)))
        self._ahead: dict[WorkKey, WorkPlan] = {}  # of the next round, made while a GPU is busy with this one

    def run_rounds(self, plans: Plans) -> dict[int, RoundReport]:
        """One round of the runs that have a plan."""
        return self.begin(plans).reports()

    def close(self) -> None:
        """Nothing to give back."""

    @torch.no_grad()
    def begin(self, plans: Plans) -> PendingRound:
        """Put the whole round on its way; a GPU works on it while the host does something else."""
        with matrix_products(self.rows.how):
            pending = self._begin(plans)
        if self.rows.how.device.type == "cuda":
            # How much the servers of other runs are to train is not known before their next plan.
            self._ahead = self._sources_at({run: plan.t + 1 for run, plan in plans.items() if plan.effort is None}, {})
        return pending

    def _begin(self, plans: Plans) -> PendingRound:
        rows, times = self.rows, {run: plan.t for run, plan in plans.items()}
        works = self.plan_work(times, {run: plan.effort for run, plan in plans.items() if plan.effort is not None})
        self.train(times, works)
        slots = make_inboxes(rows.count, [(rows.first[run], plan.draw.topology.pairs) for run, plan in plans.items()])
        own = rows.shared
        sent, compression = self._send(plans, slots, own)
        norms = rows.norms if sent is own else compute_norms(sent)
        slots = self._without_lost(plans, works, slots)
        held = self._hold(plans, works, slots, is_usable(norms, rows.largest_norm))
        merged = self.merge(times, works, slots, held, SentModels(sent, norms))
        (accuracy, validation_loss, metrics), distance = self.measure(times), self.consensus_distance(times)
        return PendingRound(
            rows,
            plans,
            works,
            slots,
            compression,
            sent_norms=norms,
            present=held.present,
            weights=merged.weights,
            mass=merged.mass,
            scores=merged.scores,
            setbacks=merged.setbacks,
            accuracy=accuracy,
            training_loss=rows.training_loss,
            validation_loss=validation_loss,
            metrics=metrics,
            consensus_distance=distance,
        )

    def plan_work(self, times: Times, efforts: Efforts) -> dict[int, WorkPlan]:
        """Every server's work; runs that share a world share it, as far as they train alike."""
        made = self._sources_at(times, efforts)
        return {
            self.rows.first[run] + place: made[self._work_key(run, place, t, efforts)]
            for run, t in times.items()
            for place in range(len(self.rows.members[run].sources))
        }

    def _sources_at(self, times: Times, efforts: Efforts) -> dict[WorkKey, WorkPlan]:
        """What the sources of each run bring at its time."""
        made: dict[WorkKey, WorkPlan] = {}
        for run, t in times.items():
            for place, source in enumerate(self.rows.members[run].sources):
                key = self._work_key(run, place, t, efforts)
                if key not in made:
                    held = self.rows.held[self.rows.first[run] + place]
                    made[key] = self._ahead[key] if key in self._ahead else source.plan(t, key[2], held)
        return made

    def _work_key(self, run: int, place: int, t: int, efforts: Efforts) -> WorkKey:
        """Runs whose work was the same so far hold the very same array of samples."""
        effort = efforts[run].of(place) if run in efforts else None
        return id(self.rows.members[run].sources[place]), t, effort, id(self.rows.held[self.rows.first[run] + place])

    def train(self, times: Times, works: Works) -> None:
        """Local training on what the devices brought, Eq. (2)."""
        for server, work in works.items():
            self.rows.held[server] = work.held
        scale, offsets = np.ones(self.rows.count), self.rows.offsets(times)
        for run, t in times.items():
            program, servers = self.rows.members[run].program, self.rows.of_run(run)
            scale[servers] = [program.step_scale(mass, t) for mass in self.rows.mass[servers]]
        for part in self.rows.parts(times, self.rows.how.rows_at_once):
            copy_rows(self.rows.params[part], out=self.rows.merged[part])  # nobody needs that place before the merge
            todo = [works[server] for server in range(part.start, part.stop)]
            self.rows.fit(part, todo, scale[part], offsets[part])
        self._keep_usable(times)

    def _keep_usable(self, runs: Runs) -> None:
        """Servers whose trained model is not usable go back to the one before; nothing waits for the device."""
        rows = self.rows
        norms = compute_norms(rows.shared)
        trained = is_usable(norms, rows.largest_norm)
        if not rows.sent_part.is_whole:
            trained &= rows.are_personal_parts_usable()
        rows.diverged, rows.norms = ~trained, torch.where(trained, norms, rows.norms)
        for part in rows.parts(runs, rows.count):
            restore_rows(rows.params[part], rows.merged[part], rows.diverged[part])

    def _send(self, plans: Plans, slots: InboxTable, own: Tensor) -> tuple[Tensor, NDArray[np.float64]]:
        """What receivers see of the models `own` [S, P], and how much of a float32 model that takes on the wire."""
        rows = self.rows
        sent, compression = own, np.ones(rows.count)
        for run in plans:
            codec, servers = rows.members[run].program.codec, rows.of_run(run)
            senders = servers.start + np.flatnonzero(slots.num_receivers[servers])
            if is_verbatim(codec) or not len(senders):
                continue
            if sent is own:
                sent = own.clone()
            chosen = rows.tensor(senders)
            coded = sent_models(codec, own[chosen], [rows.memories[sender] for sender in senders])
            sent[chosen], compression[senders] = coded.models, coded.compression
            for sender, memory in zip(senders, coded.memories, strict=True):
                rows.memories[sender] = memory
        return self._with_lies(plans, own, sent), compression

    def _with_lies(self, plans: Plans, own: Tensor, sent: Tensor) -> Tensor:  # [S, P], [S, P] -> [S, P]
        """What receivers see of every model, those of liars replaced by what they send instead."""
        rows = self.rows
        for run, plan in plans.items():
            member, servers = rows.members[run], rows.of_run(run)
            if member.liars is None or not plan.draw.topology.num_links:
                continue
            if sent is own:
                sent = own.clone()
            for i in member.liars.servers.tolist():
                learner, codec = member.program.learner, member.program.codec
                make_first = partial(learner.init_sent, member.initial_seeds[i])
                crafted = member.liars.craft(own[servers], i, make_first, plan.t)
                memory = codec.init(learner.num_params).to(sent.device)
                sent[servers.start + i] = sent_models(codec, crafted[None], [memory]).models[0]
        return sent

    def _without_lost(self, plans: Plans, works: Works, slots: InboxTable) -> InboxTable:
        """The inboxes without the messages that the network lost, or that came after the deadline."""
        parts = [np.zeros(0, dtype=bool)]
        for run, plan in plans.items():  # the inboxes have the links of the runs one after another
            servers = self.rows.of_run(run)
            ours = [works[server] for server in range(servers.start, servers.stop)]
            parts.append(self.rows.members[run].delivery.find_lost(plan, ours))
        lost = np.concatenate(parts)
        return slots.without(lost) if lost.any() else slots

    def _hold(self, plans: Plans, works: Works, slots: InboxTable, usable: Tensor) -> StackedInbox:
        """The inboxes; a model that is not usable is refused, and push-sum mass that nobody took stays at home."""
        rows = self.rows
        samples = np.array([works[s].volume if s in works else 0 for s in range(rows.count)])
        mixing = np.full(slots.sender.shape, np.nan)
        shares, receivers = rows.mass.copy(), slots.num_receivers
        for run, plan in plans.items():
            servers = rows.of_run(run)
            own, received = plan.draw.own_mixing, plan.draw.pair_mixing
            if own is not None and received is not None:
                here = (slots.link_receiver >= servers.start) & (slots.link_receiver < servers.stop)
                mixing[servers] = own[:, None]
                mixing[slots.link_receiver[here], slots.link_slot[here]] = received
            if self._aggregator(run).splits_mass:
                shares[servers] /= receivers[servers] + 1
        return holdings(rows.tensor, slots, samples, mixing, shares, receivers, usable)

    def merge(self, times: Times, works: Works, slots: InboxTable, held: StackedInbox, sent: SentModels) -> Merge:
        """Judge what lies in the inboxes, weigh it, and make the merged models those of the servers."""
        runs = times.keys()
        probe = evaluate_on_probes(self.rows, times, works, slots, sent)
        weights, mass, setbacks = self._merge(runs, held, probe, sent.models)
        scores = {} if probe is None else judge_scores(self.rows, runs, probe)
        if any("similarity" in self.rows.members[run].program.scores for run in runs):
            scores["similarity"] = compute_similarity(self.rows, runs, slots, sent.models)
        self.rows.turn_over(runs)
        return Merge(weights, mass, scores, setbacks)

    def _merge(
        self, runs: Runs, held: StackedInbox, probe: Probe | None, sent: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Weigh and merge, Eqs. (20) and (21); returns weights [S, D], masses [S] and setbacks [4, S]."""
        rows = self.rows
        weights = torch.zeros(held.sender.shape, device=sent.device)
        mass = torch.ones(rows.count, dtype=torch.float64, device=sent.device)
        usable, norms = rows.usable, rows.norms.clone()
        recovered = rows.diverged & usable
        failed = torch.zeros_like(usable)
        present = held.present[: rows.count]
        safe = fallback_weights(present, usable).to(weights.dtype)
        for aggregator, alike in self._by_aggregator(runs):
            servers, here = rows.numbers_of(alike), rows.place_of(alike)
            judged = probe.rows(here) if probe and aggregator.needs_probe else None
            inboxes = held.rows(here)
            decision = decide(aggregator, judged, inboxes, rows.shared, sent, servers)
            alone = (safe[here], inboxes, usable[here], rows.largest_norm[here])
            decision, failed[here] = keep_usable(decision, *alone, rows.shared, sent, servers)
            weights[here], mass[here] = decision.weights, decision.mass
            if decision.models is not None:
                rows.merged_shared[here] = decision.models
                norms[here] = compute_norms(decision.models).double()
                continue
            for part in rows.parts(alike, rows.count):
                mine = (weights[part], rows.shared[part], sent, held.sender[part])
                norms[part] = vectors_for(sent).weighted_rows(*mine, out=rows.merged_shared[part])
        nothing = failed & has_nothing(present, usable)
        overflowed = ~(is_usable(norms, rows.largest_norm) | nothing)
        self._undo_overflow(runs, weights, safe, overflowed)
        rows.norms = torch.where(overflowed, rows.norms, norms)
        return weights, mass, torch.stack([rows.diverged, recovered, failed | overflowed, nothing])

    def _undo_overflow(self, runs: Runs, weights: Tensor, safe: Tensor, overflowed: Tensor) -> None:
        """Where a merge is not usable, though models and weights are, the server keeps its own model."""
        rows, own = self.rows, slice(0, self.rows.count)
        torch.where(overflowed[:, None], safe, weights[own], out=weights[own])
        for part in rows.parts(runs, rows.count):
            restore_rows(rows.merged[part], rows.params[part], overflowed[part])

    def measure(self, times: Times, *, exact: bool | None = None) -> tuple[Tensor, Tensor, list[Figures]]:
        """The mean score, the mean loss and the metrics of every server of these runs on its validation data, [S] each.

        With `exact` in full precision, whatever the fleet computes with.
        """
        rows = self.rows
        exact = rows.how.exact if exact is None else exact
        measured: list[slice] = []
        accuracies, losses = list[Tensor](), list[Tensor]()
        metrics: list[Figures] = [{}] * rows.count
        for part in rows.parts(times):
            batches = rows.validation_at(times, part)
            start = part.start
            for count, alike in groupby(batches, lambda batch: len(batch.y)):
                those = list(alike)
                servers = slice(start, start + len(those))
                scores, each, metrics[servers] = rows.evaluate(servers, *rows.validation.stacked(those), exact=exact)
                accuracies.append(scores.sum(dim=1, dtype=torch.float64) / count)
                losses.append(each.mean(dim=1, dtype=torch.float64))
                measured.append(servers)
                start = servers.stop
        accuracy = rows.join(rows.count, measured, accuracies, 0.0)
        loss = rows.join(rows.count, measured, losses, torch.nan)
        return accuracy, loss, metrics

    def consensus_distance(self, runs: Runs) -> Tensor:  # -> [runs of this fleet]
        """How far the models of each of these runs are from their mean; nan for the other runs."""
        rows = self.rows
        known = list(rows.neighbours(runs))
        found = []
        for alike in known:
            models = rows.shared[rows.first[alike.start] : rows.first[alike.stop]]
            found.append(consensus_distance(torch.unflatten(models, 0, (alike.stop - alike.start, -1))))
        return rows.join(len(rows.members), known, found, torch.nan)

    def _aggregator(self, run: int) -> Aggregator:
        return self.rows.members[run].program.aggregator

    def _by_aggregator(self, runs: Runs) -> list[tuple[Aggregator, list[int]]]:
        """Runs that merge by the same rule."""
        groups: list[tuple[Aggregator, list[int]]] = []
        for run in sorted(runs):
            for aggregator, alike in groups:
                if aggregator == self._aggregator(run):
                    alike.append(run)
                    break
            else:
                groups.append((self._aggregator(run), [run]))
        return groups
