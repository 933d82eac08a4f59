"""Received models on the probes of their receivers, Eq. (19): of all servers of all runs of a stacked fleet at once.

A model that several servers receive is made ready once and evaluated on all of their probes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody knows)
from numpy.typing import NDArray
from torch import Tensor

from hatdfed.fleets.stacked.merging import InboxTable, SentModels, is_verbatim
from hatdfed.fleets.stacked.model import ReadyModels
from hatdfed.fleets.stacked.rows import Rows
from hatdfed.server.aggregation import Probe
from hatdfed.server.harm import SHARE_STEPS, compare_on_common_labels, compare_scores, compare_sizes
from hatdfed.server.tasks import Task
from hatdfed.server.work import Indices, WorkPlan

Judge = Callable[[Tensor, Tensor], Tensor]  # outputs of models [n, …] and targets [n, …] -> [n, …]

PROBES_A_ROW = 4  # a model that many receive takes several rows, so that it does not widen everybody's
_COMPARED_AT_ONCE = 1 << 24  # logits


class _Inputs(NamedTuple):
    """Which models are evaluated on which samples."""

    runs: Collection[int]
    slots: InboxTable
    sent: Tensor  # [rows, P]
    judged: NDArray[np.bool_]  # [S] whose inboxes
    probes: Tensor  # [S, Q] indices of samples


class _ProbeTable(NamedTuple):
    """Which models are evaluated on whose probes: a table whose rows are models, padded to the same width."""

    model: Indices  # [A] the models that are evaluated at all
    row_model: Indices  # [G] which of them each row is about
    receiver: Indices  # [G, T] whose probe; any server where padding
    place: Indices  # [M] of every real entry in the table [G·T], in order
    result: Indices  # [M] where its result goes in the table [S·D]

    def rows(self, part: slice) -> _ProbeTable:
        """Some rows of the table."""
        width = self.receiver.shape[1]
        here = (self.place >= part.start * width) & (self.place < part.stop * width)
        place, result = self.place[here] - part.start * width, self.result[here]
        return _ProbeTable(self.model, self.row_model[part], self.receiver[part], place, result)


def evaluate_on_probes(
    rows: Rows,
    times: Mapping[int, int],
    works: Mapping[int, WorkPlan],
    slots: InboxTable,
    sent: SentModels,
) -> Probe | None:
    """Losses of every model on the probe of everyone who holds it, where a method wants to know."""
    programs = {run: rows.members[run].program for run in times}
    judged = np.zeros(len(slots.sender), dtype=bool)
    for run, program in programs.items():
        judged[rows.of_run(run)] = program.needs_probe
    if not judged.any():
        return None
    index, lengths = _collect_probes(works, judged)
    probes, num_samples = rows.tensor(index), rows.tensor(lengths)
    valid = torch.arange(index.shape[1], device=rows.how.device) < num_samples[:, None]
    inputs = _Inputs(times.keys(), slots, sent.models, judged, probes)
    if not any(program.needs_comparison for program in programs.values()):
        return Probe(_evaluate_all(rows, inputs, rows.task.losses), valid)
    sizes = _compare_sizes(rows, slots, sent.norms.double())
    if not rows.task.kind.has_classes:
        return _compare_scores(_evaluate_all(rows, inputs, partial(_judge_samples, rows.task)), valid, sizes)
    shares = (rows.label_shares(times) if sent.label_shares is None else sent.label_shares).clone()
    for run, program in programs.items():
        if not program.aggregator.needs_labels:
            shares[rows.of_run(run)] = SHARE_STEPS  # nobody tells them, so all labels count
    logits = _evaluate_all(rows, inputs, _keep_logits)
    return _compare(logits, rows.pool.y[probes], valid, shares[rows.tensor(slots.sender)], sizes)


def judge_scores(rows: Rows, runs: Collection[int], probe: Probe) -> dict[str, Tensor]:  # [S, D] each
    """Losses and whatever else the runs' policies want to know."""
    programs = [rows.members[run].program for run in runs]
    asking = max(programs, key=lambda program: len(program.scores))
    if probe.comparison is None:
        return asking.judge_scores(probe)
    return torch.vmap(asking.judge_scores, in_dims=(probe.for_each,))(probe)


def compute_similarity(rows: Rows, runs: Collection[int], slots: InboxTable, sent: Tensor) -> Tensor:  # -> [S, D]
    """Of each model in an inbox to the server's own, for the runs that want to know."""
    step = rows.how.judged_at_once
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


def _evaluate_all(rows: Rows, inputs: _Inputs, judge: Judge) -> Tensor:  # -> [S, D, Q, …]
    """What `judge` makes of each sample of every probe, by every model in the inbox of the probe's server."""
    slots, probes = inputs.slots, inputs.probes
    results: Tensor | None = None
    for ready, table in _prepare_models(rows, inputs) if rows.sent_part.is_whole else _prepare_pairs(rows, inputs):
        for place, found in _evaluate(rows, ready, table, probes, judge):
            if results is None:
                results = found.new_zeros(slots.sender.size, *found.shape[1:])
            results[place] = found
    if results is None:
        results = torch.zeros((slots.sender.size, probes.shape[1]), device=rows.how.device)
    return results.view(*slots.sender.shape, *results.shape[1:])


def _prepare_models(rows: Rows, inputs: _Inputs) -> Iterator[tuple[ReadyModels, _ProbeTable]]:
    """Models, each made ready once, and on whose probes they are evaluated."""
    runs, slots, sent, judged, _ = inputs
    seen: list[tuple[dict[str, Any], Tensor]] = [({}, sent)]
    if not all(is_verbatim(member.program.codec) and member.liars is None for member in rows.members):
        # Receivers see another model than its owner.
        seen = [({"by_receivers": False}, rows.params), ({"by_owner": False}, sent)]
    for part in (*rows.parts(runs), *rows.guests(len(sent))):
        for which, models in seen:
            table = _make_table(part, slots, judged, **which)
            if len(table.model):
                whole = len(table.model) == part.stop - part.start
                yield rows.model.ready(models[part if whole else rows.tensor(table.model)]), table


def _prepare_pairs(rows: Rows, inputs: _Inputs) -> Iterator[tuple[ReadyModels, _ProbeTable]]:
    """The same where every receiver completes what it received by its own personal part: a model for each link."""
    _, slots, sent, judged, _ = inputs
    heard, alone, step = judged[slots.link_receiver], np.flatnonzero(judged), rows.how.judged_at_once
    receiver = np.concatenate([alone, slots.link_receiver[heard]])
    sender = np.concatenate([alone, slots.link_sender[heard]])
    slot = np.concatenate([np.zeros_like(alone), slots.link_slot[heard]])
    for start in range(0, len(receiver), step):
        some = slice(start, start + step)
        here, is_own = rows.tensor(receiver[some]), rows.tensor(slot[some] == 0)
        models = torch.where(is_own[:, None], rows.shared[here], sent[rows.tensor(sender[some])])
        each = np.arange(len(here))
        result = receiver[some] * slots.sender.shape[1] + slot[some]
        table = _ProbeTable(each, each, receiver[some, None], each, result)
        yield rows.model.ready(rows.complete(here, models)), table


def _evaluate(
    rows: Rows, ready: ReadyModels, table: _ProbeTable, probes: Tensor, judge: Judge
) -> Iterator[tuple[Tensor, Tensor]]:
    """Places and results; no more samples at once than when accuracies are measured."""
    images = table.receiver.shape[1] * probes.shape[1]
    step = max(1, rows.how.judged_at_once * rows.validation.most_images // images)
    for start in range(0, len(table.row_model), step):
        some = table.rows(slice(start, start + step))
        in_order = len(some.row_model) == len(table.model) == len(table.row_model)  # a row for each model
        models = ready if in_order else ready.rows(rows.tensor(some.row_model))
        samples = probes[rows.tensor(some.receiver)]  # [G, T, Q]
        logits = models.logits(rows.pool.x[samples.flatten(1)]).flatten(0, 1)
        found = judge(logits, rows.pool.y[samples].flatten(0, 2))
        found = found.view(-1, samples.shape[2], *found.shape[1:])
        yield rows.tensor(some.result), found[rows.tensor(some.place)]


def _make_table(
    models: slice, slots: InboxTable, judged: NDArray[np.bool_], *, by_owner: bool = True, by_receivers: bool = True
) -> _ProbeTable:
    """Some servers' models, each on its owner's probe and on those of its receivers, where `judged` says so."""
    first, last = models.start, models.stop
    own = np.flatnonzero(judged[first:last] & by_owner) + first
    sent = (slots.link_sender >= first) & (slots.link_sender < last) & judged[slots.link_receiver] & by_receivers
    model = np.concatenate([own, slots.link_sender[sent]])
    receiver = np.concatenate([own, slots.link_receiver[sent]])
    result = receiver * slots.sender.shape[1] + np.concatenate([np.zeros_like(own), slots.link_slot[sent]])
    order = np.argsort(model, kind="stable")
    model, receiver, result = model[order], receiver[order], result[order]
    distinct, count = np.unique(model, return_counts=True)
    width = min(PROBES_A_ROW, int(count.max(initial=1)))
    rows = -(-count // width)  # of each model
    number = np.arange(len(model)) - np.repeat(np.cumsum(count) - count, count)
    row = np.repeat(np.cumsum(rows) - rows, count) + number // width
    place = row * width + number % width
    table = np.zeros((int(rows.sum()), width), dtype=np.int64)
    table.reshape(-1)[place] = receiver
    return _ProbeTable(distinct, np.repeat(np.arange(len(distinct)), rows), table, place, result)


def _collect_probes(
    works: Mapping[int, WorkPlan], judged: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """[S, Q] images of every probe, padded, and [S] how many there are."""
    sizes = np.array([len(works[server].probe) if is_judged else 0 for server, is_judged in enumerate(judged)])
    index = np.zeros((len(judged), int(sizes.max())), dtype=np.int64)
    for server in np.flatnonzero(judged):
        index[server, : sizes[server]] = works[int(server)].probe
    return index, sizes


def _keep_logits(logits: Tensor, labels: Tensor) -> Tensor:
    return logits


def _judge_samples(task: Task, logits: Tensor, targets: Tensor) -> Tensor:  # -> [n, 3]
    """Loss, score, and the score of a guess."""
    guess = task.scores(torch.zeros_like(logits), targets)
    return torch.stack([task.losses(logits, targets), task.scores(logits, targets), guess], dim=1)


def _compare_sizes(rows: Rows, slots: InboxTable, norms: Tensor) -> Tensor:  # [rows] -> [S, D]
    own = torch.cat([rows.norms, norms[rows.count :]])  # guests have no inboxes, but rows
    sizes = compare_sizes(own[: len(slots.sender), None], norms[rows.tensor(slots.sender)])
    sizes[:, 0] = 1.0  # its own model, of which receivers may see another
    return sizes


def _compare_scores(judged: Tensor, valid: Tensor, sizes: Tensor) -> Probe:  # [S, D, Q, 3], [S, Q], [S, D]
    losses, scores, guess = judged.unbind(dim=-1)
    return Probe(losses, valid, torch.vmap(compare_scores)(scores, guess[:, 0], valid)._replace(size=sizes))


def _compare(logits: Tensor, labels: Tensor, valid: Tensor, shares: Tensor, sizes: Tensor) -> Probe:
    """Losses and comparisons from logits [S, D, Q, C], labels and whether they count [S, Q], label shares [S, D, C]."""
    num_servers, num_slots = logits.shape[:2]
    repeated = labels[:, None].expand(-1, num_slots, -1)
    losses = F.cross_entropy(logits.flatten(0, 2), repeated.flatten(), reduction="none").view(repeated.shape)
    at_once = max(1, _COMPARED_AT_ONCE // max(1, logits[0].numel())) if num_servers else None
    comparison = torch.vmap(compare_on_common_labels, chunk_size=at_once)(logits, labels, valid, shares)
    return Probe(losses, valid, comparison._replace(size=sizes))
