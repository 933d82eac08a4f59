"""All servers of many runs as stacked tensors: the fast fleet, on a CPU or a GPU.

It gives `EdgeProgram` the same meaning as the mailboxes do, without bytes: models are rows of one tensor, an inbox is a
row of indices, a merge is a weighted sum of rows. Runs in one fleet share the network and the pool of images; methods,
worlds and prices may differ. One run is the case of one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody knows)
from numpy.typing import NDArray
from torch import Tensor

from hatdfed.core.fleet import FinalAccuracy, Snapshot
from hatdfed.core.round import RoundPlan, RoundReport
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
from hatdfed.fleets.stacked.rows import Execution, Rows, RunServers, matrix_products
from hatdfed.server.aggregation import Aggregator, Probe
from hatdfed.server.guard import fallback_weights, has_nothing, is_usable
from hatdfed.server.harm import SHARE_STEPS, compare_on_common_labels
from hatdfed.server.work import Batch, WorkPlan

Plans = Mapping[int, RoundPlan]  # by the number of the run
Times = Mapping[int, int]  # the round that each run is in
Runs = Collection[int]
Works = Mapping[int, WorkPlan]  # by the number of the server, counted through all runs

_COMPARED_AT_ONCE = 1 << 24  # logits
IMAGES_AT_ONCE = 1000  # of a test set: large sets are measured in parts that take no more memory than validation does


class StackedFleet:
    """Plays rounds of many runs at once: trains, sends, judges, merges, measures.

    Tables of inboxes and of sent models may have more rows than there are servers: guests, whose models come from
    elsewhere (`fleets.shard`).
    """

    def __init__(self, members: Sequence[RunServers], execution: Execution, model: StackedModel | None = None) -> None:
        """`model` is the fastest stacked form of the members' network, unless it is given."""
        if model is None:
            learner, pool = members[0].program.learner, members[0].sources[0].pool
            model = choose_model(learner, pool.x.shape[1:], execution.device)
        self.rows = Rows(members, execution, model)
        self.fleets = tuple(RunView(self, run) for run in range(len(members)))
        self._ahead: dict[tuple[int, int], WorkPlan] = {}  # of the next round, made while a GPU is busy with this one

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
            self._ahead = self._sources_at({run: plan.t + 1 for run, plan in plans.items()})
        return pending

    def _begin(self, plans: Plans) -> PendingRound:
        rows, times = self.rows, {run: plan.t for run, plan in plans.items()}
        works = self.plan_work(times)
        self.train(times, works)
        slots = make_inboxes(rows.count, [(rows.first[run], plan.draw.topology.pairs) for run, plan in plans.items()])
        sent, compression = self._send(plans, slots)
        norms = rows.norms if sent is rows.params else compute_norms(sent)
        slots = self._without_lost(plans, slots)
        held = self._hold(plans, works, slots, is_usable(norms, rows.largest_norm))
        merged = self.merge(times, works, slots, held, sent)
        accuracy, distance = self.measure(times), self.consensus_distance(times)
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
            consensus_distance=distance,
        )

    def plan_work(self, times: Times) -> dict[int, WorkPlan]:
        """Every server's work; runs that share a world share it."""
        made = self._sources_at(times)
        return {
            self.rows.first[run] + place: made[id(source), t]
            for run, t in times.items()
            for place, source in enumerate(self.rows.members[run].sources)
        }

    def _sources_at(self, times: Times) -> dict[tuple[int, int], WorkPlan]:
        """What the sources of each run bring at its time, by source and time."""
        made: dict[tuple[int, int], WorkPlan] = {}
        for run, t in times.items():
            for source in self.rows.members[run].sources:
                key = (id(source), t)
                if key not in made:
                    made[key] = self._ahead[key] if key in self._ahead else source.plan(t)
        return made

    def train(self, times: Times, works: Works) -> None:
        """Local training on what the devices brought, Eq. (2)."""
        scale, offsets = np.ones(self.rows.count), self.rows.offsets(times)
        for run, t in times.items():
            program, servers = self.rows.members[run].program, self.rows.of_run(run)
            scale[servers] = [program.step_scale(mass, t) for mass in self.rows.mass[servers]]
        for part in self.rows.parts(times, self.rows.how.rows_at_once):
            copy_rows(self.rows.params[part], out=self.rows.merged[part])  # nobody needs that place before the merge
            todo = [works[server] for server in range(part.start, part.stop)]
            with torch.enable_grad():
                self.rows.model.fit(self.rows.models(part), self.rows.pool, todo, scale[part], offsets[part])
        self._keep_usable(times)

    def _keep_usable(self, runs: Runs) -> None:
        """Servers whose trained model is not usable go back to the one before; nothing waits for the device."""
        rows = self.rows
        norms = compute_norms(rows.params)
        trained = is_usable(norms, rows.largest_norm)
        rows.diverged, rows.norms = ~trained, torch.where(trained, norms, rows.norms)
        for part in rows.parts(runs, rows.count):
            restore_rows(rows.params[part], rows.merged[part], trained[part])

    def _send(self, plans: Plans, slots: InboxTable) -> tuple[Tensor, NDArray[np.float64]]:
        """What receivers see of every model, and how much of a float32 model that takes on the wire."""
        rows = self.rows
        sent, compression = rows.params, np.ones(rows.count)
        for run in plans:
            codec, servers = rows.members[run].program.codec, rows.of_run(run)
            senders = servers.start + np.flatnonzero(slots.num_receivers[servers])
            if is_verbatim(codec) or not len(senders):
                continue
            if sent is rows.params:
                sent = rows.params.clone()
            chosen = rows.tensor(senders)
            coded = sent_models(codec, rows.params[chosen], [rows.memories[sender] for sender in senders])
            sent[chosen], compression[senders] = coded.models, coded.compression
            for sender, memory in zip(senders, coded.memories, strict=True):
                rows.memories[sender] = memory
        return self._with_lies(plans, sent), compression

    def _with_lies(self, plans: Plans, sent: Tensor) -> Tensor:  # [S, P] -> [S, P]
        """What receivers see of every model, those of liars replaced by what they send instead."""
        rows = self.rows
        for run, plan in plans.items():
            member, servers = rows.members[run], rows.of_run(run)
            if member.liars is None or not plan.draw.topology.num_links:
                continue
            if sent is rows.params:
                sent = rows.params.clone()
            for i in member.liars.servers.tolist():
                learner, codec = member.program.learner, member.program.codec
                make_first = partial(learner.init, member.initial_seeds[i])
                crafted = member.liars.craft(rows.params[servers], i, make_first, plan.t)
                memory = codec.init(learner.num_params).to(sent.device)
                sent[servers.start + i] = sent_models(codec, crafted[None], [memory]).models[0]
        return sent

    def _without_lost(self, plans: Plans, slots: InboxTable) -> InboxTable:
        """The inboxes without the messages that the network lost."""
        lost = np.zeros(len(slots.link_receiver), dtype=bool)
        for run, plan in plans.items():
            loss, servers = self.rows.members[run].loss, self.rows.of_run(run)
            if loss is not None:
                here = (slots.link_receiver >= servers.start) & (slots.link_receiver < servers.stop)
                pairs = np.stack([slots.link_receiver[here], slots.link_sender[here]], axis=1) - servers.start
                lost[here] = loss.find_lost(plan.t, pairs)
        return slots.without(lost) if lost.any() else slots

    def _hold(self, plans: Plans, works: Works, slots: InboxTable, usable: Tensor) -> StackedInbox:
        """The inboxes; a model that is not usable is refused, and push-sum mass that nobody took stays at home."""
        rows = self.rows
        samples = np.array([works[s].num_samples if s in works else 0 for s in range(rows.count)])
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
        if not any(program.needs_comparison for program in programs.values()):
            losses = torch.zeros((slots.sender.size, index.shape[1]), device=rows.how.device)
            self._ask_all(times.keys(), slots, sent, judged, probes, losses)
            return Probe(losses.view(*slots.sender.shape, -1), valid)
        shares = (rows.label_shares(times) if label_shares is None else label_shares).clone()
        for run, program in programs.items():
            if not program.aggregator.needs_labels:
                shares[rows.of_run(run)] = SHARE_STEPS  # nobody tells them, so all labels count
        logits = torch.zeros((slots.sender.size, index.shape[1], shares.shape[1]), device=rows.how.device)
        self._ask_all(times.keys(), slots, sent, judged, probes, logits)
        logits = logits.view(*slots.sender.shape, *logits.shape[1:])
        return _compare(logits, rows.pool.y[probes], valid, shares[rows.tensor(slots.sender)])

    def _ask_all(
        self,
        runs: Runs,
        slots: InboxTable,
        sent: Tensor,
        judged: NDArray[np.bool_],
        probes: Tensor,  # [S, Q] indices
        answers: Tensor,  # [S·D, Q] losses, or [S·D, Q, C] logits; filled
    ) -> None:
        """Put all models before the probes of those who hold them."""
        rows = self.rows
        asked: list[tuple[dict[str, Any], Tensor]] = [({}, sent)]
        if not all(is_verbatim(member.program.codec) and member.liars is None for member in rows.members):
            # Receivers see another model than its owner.
            asked = [({"by_receivers": False}, rows.params), ({"by_owner": False}, sent)]
        for part in (*rows.parts(runs), *rows.guests(len(sent))):
            for which, models in asked:
                questions = probe_table(part, slots, judged, **which)
                if len(questions.model):
                    whole = len(questions.model) == part.stop - part.start
                    ready = rows.model.ready(models[part if whole else rows.tensor(questions.model)])
                    self._ask(ready, questions, probes, answers)

    def _ask(self, ready: ReadyModels, questions: ProbeTable, probes: Tensor, answers: Tensor) -> None:
        """Put the answers where they belong; no more images at once than when accuracies are measured."""
        rows, images = self.rows, questions.receiver.shape[1] * probes.shape[1]
        step = max(1, rows.how.judged_at_once * rows.validation.most_images // images)
        for start in range(0, len(questions.asked), step):
            some = questions.rows(slice(start, start + step))
            alone = len(some.asked) == len(questions.model) == len(questions.asked)  # a row for each model, in order
            asked = ready if alone else ready.rows(rows.tensor(some.asked))
            put = probes[rows.tensor(some.receiver)]  # [G, T, Q]
            logits = asked.logits(rows.pool.x[put.flatten(1)]).flatten(0, 1)
            if answers.ndim == 2:
                found = F.cross_entropy(logits, rows.pool.y[put].flatten(), reduction="none").view(-1, put.shape[2])
            else:
                found = logits.view(-1, put.shape[2], logits.shape[-1])
            answers[rows.tensor(some.answer)] = found[rows.tensor(some.place)]

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
            servers = rows.tensor(np.concatenate([np.arange(rows.count)[rows.of_run(run)] for run in alike]))
            judged = probe.rows(servers) if probe and aggregator.needs_probe else None
            inboxes = held.rows(servers)
            decision = decide(aggregator, judged, inboxes, rows.params, sent, servers)
            alone = (safe[servers], inboxes, usable[servers], rows.largest_norm[servers])
            decision, failed[servers] = keep_usable(decision, *alone, rows.params, sent, servers)
            weights[servers], mass[servers] = decision.weights, decision.mass
            if decision.models is not None:
                rows.merged[servers], norms[servers] = decision.models, compute_norms(decision.models).double()
                continue
            for part in rows.parts(alike, rows.count):
                mine = (weights[part], rows.params[part], sent, held.sender[part])
                norms[part] = vectors_for(sent).weighted_rows(*mine, out=rows.merged[part]).double()
        nothing = failed & has_nothing(present, usable)
        overflowed = ~is_usable(norms, rows.largest_norm) & ~nothing
        self._undo_overflow(runs, weights, safe, overflowed)
        rows.norms = torch.where(overflowed, rows.norms, norms)
        return weights, mass, torch.stack([rows.diverged, recovered, failed | overflowed, nothing])

    def _undo_overflow(self, runs: Runs, weights: Tensor, safe: Tensor, overflowed: Tensor) -> None:
        """Where a merge is not usable, though models and weights are, the server keeps its own model."""
        rows, own = self.rows, slice(0, self.rows.count)
        weights[own] = torch.where(overflowed[:, None], safe, weights[own])
        for part in rows.parts(runs, rows.count):
            restore_rows(rows.merged[part], rows.params[part], ~overflowed[part])

    def _similarity(self, runs: Runs, slots: InboxTable, sent: Tensor) -> Tensor:  # -> [S, D]
        """Of each model in an inbox to the server's own, for the runs that want to know."""
        rows, step = self.rows, self.rows.how.judged_at_once
        table = torch.zeros(slots.sender.shape, device=sent.device)
        for run in runs:
            if "similarity" not in rows.members[run].program.scores:
                continue
            servers = rows.of_run(run)
            table[servers, 0] = rows.model.similarity(rows.params[servers], rows.params[servers])
            links = np.flatnonzero((slots.link_receiver >= servers.start) & (slots.link_receiver < servers.stop))
            for some in np.split(links, range(step, len(links), step)):
                columns = (slots.link_receiver, slots.link_sender, slots.link_slot)
                receiver, sender, slot = (rows.tensor(column[some]) for column in columns)
                table[receiver, slot] = rows.model.similarity(rows.params[receiver], sent[sender])
        return table

    def measure(self, times: Times, *, exact: bool | None = None) -> Tensor:  # -> [S]
        """The share of its validation images that every server of these runs answers rightly.

        With `exact` in full precision, whatever the fleet computes with.
        """
        rows = self.rows
        exact = rows.how.exact if exact is None else exact
        accuracy = torch.zeros(rows.count, dtype=torch.float64, device=rows.how.device)
        for part in rows.parts(times):
            batches = rows.validation_at(times, part)
            start = part.start
            for count, alike in groupby(batches, lambda batch: len(batch.y)):
                those = list(alike)
                servers = slice(start, start + len(those))
                correct = rows.correct(servers, *rows.validation.stacked(those), exact=exact)
                accuracy[servers] = correct.sum(dim=1).double() / count
                start = servers.stop
        return accuracy

    def consensus_distance(self, runs: Runs) -> Tensor:  # -> [runs of this fleet]
        """How far the models of each of these runs are from their mean; nan for the other runs."""
        rows = self.rows
        distance = torch.full((len(rows.members),), torch.nan, dtype=torch.float64, device=rows.how.device)
        for alike in rows.neighbours(runs):
            models = rows.params[rows.first[alike.start] : rows.first[alike.stop]]
            distance[alike] = consensus_distance(torch.unflatten(models, 0, (alike.stop - alike.start, -1)))
        return distance

    def _aggregator(self, run: int) -> Aggregator:
        return self.rows.members[run].program.aggregator

    def _by_aggregator(self, runs: Runs) -> list[tuple[Aggregator, list[int]]]:
        """Runs that merge by the same rule."""
        groups: list[tuple[Aggregator, list[int]]] = []
        for run in runs:
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
        """P."""
        return self.fleet.rows.model.num_params

    @property
    def computed_by(self) -> dict[str, str]:
        """The device, and whose kernels."""
        rows = self.fleet.rows
        return {"fleet": "stacked", "device": rows.how.device.type, "kernels": rows.model.kernels}

    @property
    def models(self) -> Tensor:
        """[N, P] as they are now."""
        return self.fleet.rows.params[self._rows].cpu().clone()

    def validation_accuracy(self) -> NDArray[np.float64]:
        """[N] on the run's validation data, before the first round."""
        return self.fleet.measure({self.run: 0}, exact=True)[self._rows].cpu().numpy()

    def final_accuracy(self) -> FinalAccuracy:
        """On the test data, once, after the last round."""
        return self.fleet.rows.members[self.run].test.accuracy(*self.correct())

    def correct(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_] | None]:
        """[N, n] which of the test data each server answers rightly: those in common, and those of its own kind.

        None where all are of one kind.
        """
        test = self.fleet.rows.members[self.run].test
        common = self._answers(test.data)
        if test.kind_of is None:
            return common, None
        own = common.copy()
        for kind, data in enumerate(test.kinds):
            of_kind = test.kind_of == kind
            own[of_kind] = self._answers(data)[of_kind]
        return common, own

    def _answers(self, data: Batch) -> NDArray[np.bool_]:  # -> [N, n]
        rows = self.fleet.rows
        images = rows.model.samples(data)
        pieces = [
            torch.cat([rows.correct(part, x[None], y[None]) for x, y in _pieces(images)], dim=1)
            for part in rows.parts([self.run])
        ]
        return torch.cat(pieces).cpu().numpy()

    def run_round(self, plan: RoundPlan) -> RoundReport:
        """Train, exchange, merge, measure; the same plan once more gives what it gave."""
        if self._last is None or self._last[0] is not plan:
            self._last = (plan, self.fleet.run_rounds({self.run: plan})[self.run])
        return self._last[1]

    def snapshot(self) -> Snapshot:
        """Models, optimisers, codec memories and masses of the run's servers."""
        rows, here = self.fleet.rows, self._rows
        models = rows.models(here)
        tensors = {"params": models.params, "first": models.first, "second": models.second}
        arrays: dict[str, NDArray[Any]] = {}
        on_host = {name: tensor.cpu().numpy() for name, tensor in tensors.items()}
        for i, (memory, mass) in enumerate(zip(rows.memories[here], rows.mass[here], strict=True)):
            arrays |= {f"{i}.{name}": np.array(tensor[i]) for name, tensor in on_host.items()}  # copies: rows change
            arrays[f"{i}.codec_memory"] = np.array(memory.cpu().numpy())
            arrays[f"{i}.scalars"] = np.array([models.steps[i], mass])
        return arrays

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to what `snapshot` remembers."""
        rows, first = self.fleet.rows, self._rows.start
        models = rows.models(self._rows)
        self._last = None
        for i in range(self.num_servers):
            for name, tensor in (("params", models.params), ("first", models.first), ("second", models.second)):
                tensor[i] = _remembered(snapshot, f"{i}.{name}", [tuple(tensor[i].shape)], tensor.device)
            shapes = (tuple(rows.memories[first + i].shape), (self.num_params,))  # a codec may begin with an empty one
            rows.memories[first + i] = _remembered(snapshot, f"{i}.codec_memory", shapes, rows.how.device)
            rows.steps[first + i], rows.mass[first + i] = _remembered(snapshot, f"{i}.scalars", [(2,)]).tolist()
        rows.norms[self._rows] = compute_norms(models.params).double()

    def close(self) -> None:
        """Nothing to give back: the rows belong to all runs of the fleet."""

    @property
    def _rows(self) -> slice:
        return self.fleet.rows.of_run(self.run)


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


def _pieces(images: Samples) -> Iterator[tuple[Tensor, Tensor]]:
    yield from zip(torch.split(images.x, IMAGES_AT_ONCE), torch.split(images.y, IMAGES_AT_ONCE), strict=True)


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
