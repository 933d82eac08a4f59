"""All servers of many runs as stacked tensors: the fast fleet, on a CPU or a GPU.

It gives `EdgeProgram` the same meaning as the mailboxes do, without bytes: models are rows of one tensor, an inbox is a
row of indices, a merge is a weighted sum of rows. Runs in one fleet share the network, the task and the pool of
samples; methods, worlds and prices may differ. One run is the case of one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody knows)
from numpy.typing import NDArray
from torch import Tensor

from hatdfed.core.effort import Effort, ServerEffort
from hatdfed.core.fleet import FinalAccuracy, Snapshot
from hatdfed.core.round import RoundPlan, RoundReport
from hatdfed.core.task import NEXT_TOKEN
from hatdfed.errors import RunFolderError
from hatdfed.fleets.kernels.vectors import compute_norms, consensus_distance, copy_rows, restore_rows, vectors_for
from hatdfed.fleets.stacked.choose_model import choose_model
from hatdfed.fleets.stacked.merging import (
    InboxTable,
    Merge,
    ProbeTable,
    StackedInbox,
    decide,
    holdings,
    is_verbatim,
    keep_usable,
    make_inboxes,
    probe_table,
    sent_models,
)
from hatdfed.fleets.stacked.model import ReadyModels, Samples, StackedModel
from hatdfed.fleets.stacked.reports import PendingRound
from hatdfed.fleets.stacked.rows import Execution, Rows, RunServers, load_of, matrix_products
from hatdfed.server.aggregation import Aggregator, Probe
from hatdfed.server.guard import fallback_weights, has_nothing, is_usable
from hatdfed.server.harm import SHARE_STEPS, compare_on_common_labels, compare_scores
from hatdfed.server.learner import Learner
from hatdfed.server.measured_metrics import NO_METRICS, Figures, MetricSet
from hatdfed.server.program import check_frozen, frozen_arrays
from hatdfed.server.tasks import Task
from hatdfed.server.work import NOTHING, Answers, Batch, Indices, Measured, WorkPlan

Plans = Mapping[int, RoundPlan]  # by the number of the run
Times = Mapping[int, int]  # the round that each run is in
Efforts = Mapping[int, Effort]  # of the runs whose plans have one
Runs = Collection[int]
Works = Mapping[int, WorkPlan]  # by the number of the server, counted through all runs
WorkKey = tuple[int, int, ServerEffort | None, int]  # source, round, effort, samples held: by these, runs share work
Judge = Callable[[Tensor, Tensor], Tensor]  # what models give out [n, …] and targets [n, …] -> [n, …]

_COMPARED_AT_ONCE = 1 << 24  # logits
_OUTPUTS_AT_ONCE = 1 << 26  # numbers of a test set that are kept for metrics
SAMPLES_AT_ONCE = 1000  # of a test set: large sets are measured in parts that take no more memory than validation does


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
        merged = self.merge(times, works, slots, held, sent)
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

    def merge(
        self,
        times: Times,
        works: Works,
        slots: InboxTable,
        held: StackedInbox,
        sent: Tensor,
        label_shares: Tensor | None = None,  # [rows of `sent`, C] where some come from elsewhere
    ) -> Merge:
        """Judge what lies in the inboxes, weigh it, and make the merged models those of the servers."""
        runs = times.keys()
        probe = self._judge(times, works, slots, sent, label_shares)
        weights, mass, setbacks = self._merge(runs, held, probe, sent)
        scores = {} if probe is None else self._judge_scores(runs, probe)
        if any("similarity" in self.rows.members[run].program.scores for run in runs):
            scores["similarity"] = self._similarity(runs, slots, sent)
        self.rows.turn_over(runs)
        return Merge(weights, mass, scores, setbacks)

    def _judge_scores(self, runs: Runs, probe: Probe) -> dict[str, Tensor]:  # [S, D] each
        """Losses and whatever else the runs' policies want to know."""
        programs = [self.rows.members[run].program for run in runs]
        asking = max(programs, key=lambda program: len(program.scores))
        if probe.comparison is None:
            return asking.judge_scores(probe)
        return torch.vmap(asking.judge_scores, in_dims=(probe.for_each,))(probe)

    def _judge(
        self, times: Times, works: Works, slots: InboxTable, sent: Tensor, label_shares: Tensor | None
    ) -> Probe | None:
        """Losses of every model on the probe of everyone who holds it, Eq. (19), where a method wants to know."""
        rows, programs = self.rows, {run: self.rows.members[run].program for run in times}
        judged = np.zeros(len(slots.sender), dtype=bool)
        for run, program in programs.items():
            judged[rows.of_run(run)] = program.needs_probe
        if not judged.any():
            return None
        index, sizes = _probe_table(works, judged)
        probes, num_samples = rows.tensor(index), rows.tensor(sizes)
        valid = torch.arange(index.shape[1], device=rows.how.device) < num_samples[:, None]
        questions = _Questions(times.keys(), slots, sent, judged, probes)
        if not any(program.needs_comparison for program in programs.values()):
            return Probe(self._ask_all(questions, rows.task.losses), valid)
        if not rows.task.kind.has_classes:
            return _compare_scores(self._ask_all(questions, partial(_judge_samples, rows.task)), valid)
        shares = (rows.label_shares(times) if label_shares is None else label_shares).clone()
        for run, program in programs.items():
            if not program.aggregator.needs_labels:
                shares[rows.of_run(run)] = SHARE_STEPS  # nobody tells them, so all labels count
        logits = self._ask_all(questions, _keep_logits)
        return _compare(logits, rows.pool.y[probes], valid, shares[rows.tensor(slots.sender)])

    def _ask_all(self, questions: _Questions, judge: Judge) -> Tensor:  # -> [S, D, Q, …]
        """Put all models before the probes of those who hold them; what `judge` makes of each sample."""
        slots, probes = questions.slots, questions.probes
        answers: Tensor | None = None
        for ready, table in self._ask_models(questions) if self.rows.sent_part.is_whole else self._ask_pairs(questions):
            for place, found in self._ask(ready, table, probes, judge):
                if answers is None:
                    answers = found.new_zeros(slots.sender.size, *found.shape[1:])
                answers[place] = found
        if answers is None:
            answers = torch.zeros((slots.sender.size, probes.shape[1]), device=self.rows.how.device)
        return answers.view(*slots.sender.shape, *answers.shape[1:])

    def _ask_models(self, questions: _Questions) -> Iterator[tuple[ReadyModels, ProbeTable]]:
        """Models, and who of those who hold them asks: every model is made ready once for all."""
        rows, (runs, slots, sent, judged, _) = self.rows, questions
        asked: list[tuple[dict[str, Any], Tensor]] = [({}, sent)]
        if not all(is_verbatim(member.program.codec) and member.liars is None for member in rows.members):
            # Receivers see another model than its owner.
            asked = [({"by_receivers": False}, rows.params), ({"by_owner": False}, sent)]
        for part in (*rows.parts(runs), *rows.guests(len(sent))):
            for which, models in asked:
                table = probe_table(part, slots, judged, **which)
                if len(table.model):
                    whole = len(table.model) == part.stop - part.start
                    yield rows.model.ready(models[part if whole else rows.tensor(table.model)]), table

    def _ask_pairs(self, questions: _Questions) -> Iterator[tuple[ReadyModels, ProbeTable]]:
        """The same where every receiver completes what it received by its own personal part: a model for each link."""
        rows, (_, slots, sent, judged, _) = self.rows, questions
        heard, alone, step = judged[slots.link_receiver], np.flatnonzero(judged), rows.how.judged_at_once
        receiver = np.concatenate([alone, slots.link_receiver[heard]])
        sender = np.concatenate([alone, slots.link_sender[heard]])
        slot = np.concatenate([np.zeros_like(alone), slots.link_slot[heard]])
        for start in range(0, len(receiver), step):
            some = slice(start, start + step)
            here, is_own = rows.tensor(receiver[some]), rows.tensor(slot[some] == 0)
            models = torch.where(is_own[:, None], rows.shared[here], sent[rows.tensor(sender[some])])
            each = np.arange(len(here))
            answer = receiver[some] * slots.sender.shape[1] + slot[some]
            table = ProbeTable(each, each, receiver[some, None], each, answer)
            yield rows.model.ready(rows.complete(here, models)), table

    def _ask(
        self, ready: ReadyModels, questions: ProbeTable, probes: Tensor, judge: Judge
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Answers and where they belong; no more samples at once than when accuracies are measured."""
        rows, images = self.rows, questions.receiver.shape[1] * probes.shape[1]
        step = max(1, rows.how.judged_at_once * rows.validation.most_images // images)
        for start in range(0, len(questions.asked), step):
            some = questions.rows(slice(start, start + step))
            alone = len(some.asked) == len(questions.model) == len(questions.asked)  # a row for each model, in order
            asked = ready if alone else ready.rows(rows.tensor(some.asked))
            put = probes[rows.tensor(some.receiver)]  # [G, T, Q]
            logits = asked.logits(rows.pool.x[put.flatten(1)]).flatten(0, 1)
            found = judge(logits, rows.pool.y[put].flatten(0, 2))
            found = found.view(-1, put.shape[2], *found.shape[1:])
            yield rows.tensor(some.answer), found[rows.tensor(some.place)]

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

    def _similarity(self, runs: Runs, slots: InboxTable, sent: Tensor) -> Tensor:  # -> [S, D]
        """Of each model in an inbox to the server's own, for the runs that want to know."""
        rows, step = self.rows, self.rows.how.judged_at_once
        table = torch.zeros(slots.sender.shape, device=sent.device)
        for run in runs:
            if "similarity" not in rows.members[run].program.scores:
                continue
            servers = rows.of_run(run)
            table[servers, 0] = rows.model.similarity(rows.shared[servers], rows.shared[servers])
            links = np.flatnonzero((slots.link_receiver >= servers.start) & (slots.link_receiver < servers.stop))
            for some in np.split(links, range(step, len(links), step)):
                columns = (slots.link_receiver, slots.link_sender, slots.link_slot)
                receiver, sender, slot = (rows.tensor(column[some]) for column in columns)
                table[receiver, slot] = rows.model.similarity(rows.shared[receiver], sent[sender])
        return table

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


class RunView:
    """One run of a stacked fleet, as a fleet of its own; its snapshots have the names that mailboxes use."""

    def __init__(self, fleet: StackedFleet, run: int) -> None:
        self.fleet = fleet
        self.run = run
        self._last: tuple[RoundPlan, RoundReport] | None = None

    @property
    def num_servers(self) -> int:
        """N."""
        return len(self.fleet.rows.members[self.run].sources)

    @property
    def refused(self) -> Counter[str]:
        """Why models were refused, and how often."""
        return self.fleet.rows.refused[self.run]

    @property
    def num_params(self) -> int:
        """P: numbers of a model that are sent."""
        return self.fleet.rows.model.num_params

    @property
    def computed_by(self) -> dict[str, str]:
        """The device, and whose kernels."""
        rows = self.fleet.rows
        how = {"fleet": "stacked", "device": rows.how.device.type, "kernels": rows.model.kernels}
        return how if rows.model.reason is None else {**how, "because": rows.model.reason}

    @property
    def models(self) -> Tensor:
        """[N, M] as they are now."""
        return self.fleet.rows.params[self._rows].cpu().clone()

    def validation_accuracy(self) -> NDArray[np.float64]:
        """[N] on the run's validation data, before the first round."""
        accuracy, *_ = self.fleet.measure({self.run: 0}, exact=True)
        return accuracy[self._rows].cpu().numpy()

    def final_accuracy(self) -> FinalAccuracy:
        """On the test data, once, after the last round."""
        return self.fleet.rows.members[self.run].test.accuracy(self.answers())

    def answers(self) -> Answers:
        """What the servers make of the test data: those in common, and those of their own kind."""
        test = self.fleet.rows.members[self.run].test
        common = self._measure(test.data, self.fleet.rows.members[self.run].program.metrics)
        scores, measures = common.scores.cpu().numpy(), common.measures.cpu().numpy()
        confusion = None if common.confusion is None else common.confusion.cpu().numpy()
        if test.kind_of is None:
            return Answers(scores, measures, confusion=confusion, metrics=common.metrics)
        own = scores.copy()
        for kind, data in enumerate(test.kinds):
            of_kind = test.kind_of == kind
            own[of_kind] = self._measure(data).scores.cpu().numpy()[of_kind]
        return Answers(scores, measures, own, confusion, common.metrics)

    def _measure(self, data: Batch, metrics: MetricSet = NO_METRICS) -> Measured:
        """[N, n] scores of the samples, [N, measures] of the task on average, and [C, C] confusions of all servers.

        With `metrics`, the outputs of a server for all samples are kept until these are measured.
        """
        rows = self.fleet.rows
        samples = rows.model.samples(data)
        scores, measures, figures = [], [], list[Figures]()
        confusion: Tensor | None = None
        for part in rows.parts([self.run], _count_servers_at_once(rows, samples) if metrics.names else None):
            kept, found = [], []
            for x, y in _pieces(samples):
                outputs = rows.compute_outputs(part, x[None])
                found.append(rows.measure(outputs, y[None]))
                kept += [outputs] if metrics.names else []
            if metrics.names:
                figures += rows.measure_metrics(part, torch.cat(kept, dim=1), samples.y[None])
            scores.append(torch.cat([each.scores for each in found], dim=1))
            measures.append(torch.cat([each.measures for each in found], dim=1).double().mean(dim=1))
            for each in found:
                if each.confusion is not None:
                    confusion = each.confusion if confusion is None else confusion + each.confusion
        return Measured(torch.cat(scores), torch.cat(measures), confusion, figures)

    def run_round(self, plan: RoundPlan) -> RoundReport:
        """Train, exchange, merge, measure; the same plan once more gives what it gave."""
        if self._last is None or self._last[0] is not plan:
            self._last = (plan, self.fleet.run_rounds({self.run: plan})[self.run])
        return self._last[1]

    def snapshot(self) -> Snapshot:
        """Models, optimisers, codec memories, masses and samples held of the run's servers."""
        rows, here = self.fleet.rows, self._rows
        models = rows.models(here)
        tensors = {"params": models.params, "first": models.first, "second": models.second}
        arrays: dict[str, NDArray[Any]] = {}
        on_host = {name: tensor.cpu().numpy() for name, tensor in tensors.items()}
        for i, (memory, mass) in enumerate(zip(rows.memories[here], rows.mass[here], strict=True)):
            arrays |= {f"{i}.{name}": np.array(tensor[i]) for name, tensor in on_host.items()}  # copies: rows change
            arrays[f"{i}.codec_memory"] = np.array(memory.cpu().numpy())
            arrays[f"{i}.scalars"] = np.array([models.steps[i], mass])
            if len(rows.held[here.start + i]):
                arrays[f"{i}.held"] = rows.held[here.start + i]
            arrays |= {f"{i}.{name}": array for name, array in frozen_arrays(self._learner).items()}
        return arrays

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to what `snapshot` remembers."""
        rows, first = self.fleet.rows, self._rows.start
        models = rows.models(self._rows)
        self._last = None
        for i in range(self.num_servers):
            check_frozen(snapshot.get(f"{i}.frozen"), self._learner)
            for name, tensor in (("params", models.params), ("first", models.first), ("second", models.second)):
                tensor[i] = _remembered(snapshot, f"{i}.{name}", [tuple(tensor[i].shape)], tensor.device)
            shapes = (tuple(rows.memories[first + i].shape), (self.num_params,))  # a codec may begin with an empty one
            rows.memories[first + i] = _remembered(snapshot, f"{i}.codec_memory", shapes, rows.how.device)
            rows.steps[first + i], rows.mass[first + i] = _remembered(snapshot, f"{i}.scalars", [(2,)]).tolist()
            rows.held[first + i] = _remembered_samples(snapshot, f"{i}.held", len(rows.pool.y))
        rows.norms[self._rows] = compute_norms(rows.shared[self._rows]).double()

    def close(self) -> None:
        """Nothing to give back: the rows belong to all runs of the fleet."""

    @property
    def _learner(self) -> Learner:
        return self.fleet.rows.members[self.run].program.learner

    @property
    def _rows(self) -> slice:
        return self.fleet.rows.of_run(self.run)


class _Questions(NamedTuple):
    """Which models are judged on which samples."""

    runs: Runs
    slots: InboxTable
    sent: Tensor  # [rows, P]
    judged: NDArray[np.bool_]  # [S] whose inboxes
    probes: Tensor  # [S, Q] indices


def _keep_logits(logits: Tensor, labels: Tensor) -> Tensor:
    return logits


def _judge_samples(task: Task, logits: Tensor, targets: Tensor) -> Tensor:  # -> [n, 3]
    """Loss, score, and the score of a guess."""
    guess = task.scores(torch.zeros_like(logits), targets)
    return torch.stack([task.losses(logits, targets), task.scores(logits, targets), guess], dim=1)


def _compare_scores(judged: Tensor, valid: Tensor) -> Probe:  # [S, D, Q, 3], [S, Q]
    losses, scores, guess = judged.unbind(dim=-1)
    return Probe(losses, valid, torch.vmap(compare_scores)(scores, guess[:, 0], valid))


def _compare(logits: Tensor, labels: Tensor, valid: Tensor, shares: Tensor) -> Probe:
    """Losses and comparisons from logits [S, D, Q, C], labels and whether they count [S, Q], label shares [S, D, C]."""
    num_servers, num_slots = logits.shape[:2]
    repeated = labels[:, None].expand(-1, num_slots, -1)
    losses = F.cross_entropy(logits.flatten(0, 2), repeated.flatten(), reduction="none").view(repeated.shape)
    at_once = max(1, _COMPARED_AT_ONCE // max(1, logits[0].numel())) if num_servers else None
    comparison = torch.vmap(compare_on_common_labels, chunk_size=at_once)(logits, labels, valid, shares)
    return Probe(losses, valid, comparison)


def _probe_table(works: Works, judged: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """[S, Q] images of every probe, padded, and [S] how many there are."""
    sizes = np.array([len(works[server].probe) if is_judged else 0 for server, is_judged in enumerate(judged)])
    index = np.zeros((len(judged), int(sizes.max())), dtype=np.int64)
    for server in np.flatnonzero(judged):
        index[server, : sizes[server]] = works[int(server)].probe
    return index, sizes


def _count_servers_at_once(rows: Rows, samples: Samples) -> int:
    """Servers whose outputs for all samples are kept at once."""
    kind = rows.task.kind
    positions = samples.y[0].numel() if kind.name == NEXT_TOKEN else 1
    return max(1, min(rows.how.judged_at_once, _OUTPUTS_AT_ONCE // (len(samples.y) * positions * kind.num_outputs)))


def _pieces(samples: Samples) -> Iterator[tuple[Tensor, Tensor]]:
    yield from zip(torch.split(samples.x, SAMPLES_AT_ONCE), torch.split(samples.y, SAMPLES_AT_ONCE), strict=True)


def _remembered_samples(snapshot: Snapshot, name: str, num_samples: int) -> Indices:
    """The samples that a server holds; none in a snapshot of a server that keeps nothing."""
    held = snapshot.get(name, NOTHING)
    if held.dtype != np.int64 or held.ndim != 1 or not ((held >= 0) & (held < num_samples)).all():
        raise RunFolderError(
            f"The checkpoint does not fit this run ({name} names samples that it does not have). Start it again."
        )
    return np.array(held)


def _remembered(
    snapshot: Snapshot, name: str, shapes: Sequence[tuple[int, ...]], device: torch.device | str = "cpu"
) -> Tensor:
    """One array of a snapshot; a shape that only could be stretched to fit would be another model."""
    array = snapshot.get(name)
    if array is None or array.dtype.kind not in "fiu" or array.shape not in shapes:
        found = "not there" if array is None else f"{array.dtype} {list(array.shape)}"
        raise RunFolderError(
            f"The checkpoint does not fit this run ({name} is {found}, wanted {list(shapes[0])}). Start it again."
        )
    return torch.tensor(array, device=device)
