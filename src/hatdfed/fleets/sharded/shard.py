"""One shard: a block of servers as a stacked fleet, and guests, whose models come from other shards as letters.

Its round has two halves, with the post in between: `train` ends with letters for other shards, `merge` begins with
theirs. Nothing here knows how letters travel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hatdfed.core.fleet import Snapshot
from hatdfed.core.round import WorkDone
from hatdfed.errors import ConfigError
from hatdfed.fleets.sharded.orders import Indices, Lost, ShardOrder
from hatdfed.fleets.stacked.fleet import StackedFleet
from hatdfed.fleets.stacked.merging import (
    InboxTable,
    SentModels,
    StackedInbox,
    count_refused,
    holdings,
    inboxes_of,
    is_verbatim,
)
from hatdfed.fleets.stacked.reports import Measured, reported_scores
from hatdfed.fleets.stacked.rows import Execution, RunServers, matrix_products
from hatdfed.server.codecs.base import ManyAtOnce, Payload, payload_bits
from hatdfed.server.consensus import sketch
from hatdfed.server.guard import compute_norms, is_usable
from hatdfed.server.work import Answers, WorkPlan


class Letter(NamedTuple):
    """Models that one shard sends another, as the codec writes them."""

    sender: Indices  # [k] counted through the whole fleet, ascending
    payload: Mapping[str, NDArray[Any]]  # [k, …] each
    volume: Indices  # [k] samples that count for each in a merge
    share: NDArray[np.float64]  # [k] of its push-sum mass that every receiver gets
    label_shares: NDArray[np.uint8] | None = None  # [k, C] of each one's data, where receivers want them

    @property
    def num_bytes(self) -> int:
        """Of what the letter holds."""
        return sum(array.nbytes for array in (self.sender, self.volume, self.share, *self.payload.values()))


class Trained(NamedTuple):
    """What came of the first half of a round."""

    letters: Mapping[int, Any]  # by shard: a `Letter`, or where it lies
    works: Sequence[WorkDone]  # [n] of the shard's servers


class ShardReport(NamedTuple):
    """What came of a round, for the servers of one shard; what they did is in `Trained`."""

    senders: Indices  # [n, D] whose model lay in each slot, counted through the whole fleet
    measured: Measured
    refused: Mapping[str, int]  # models that could not be used, by why
    posted_bytes: int  # of letters to other shards
    sketches: NDArray[np.float32]  # [n, SKETCH_SIZE] of the merged models


class _Open(NamedTuple):
    """A round between its two halves."""

    order: ShardOrder
    works: dict[int, WorkPlan]
    sent: Tensor  # [n, P] as receivers see them
    compression: NDArray[np.float64]  # [n]
    share: NDArray[np.float64]  # [n]
    posted_bytes: int


class Shard:
    """Servers from number `first` on; several make a fleet (`fleets.sharded`)."""

    def __init__(self, member: RunServers, execution: Execution, first: int) -> None:
        if not isinstance(member.program.codec, ManyAtOnce):
            raise ConfigError(
                "This codec encodes one model at a time, so the run cannot be cut into shards. Use --fleet stacked."
            )
        self._stack = StackedFleet([member], execution)
        (self._run,) = self._stack.fleets
        self._first = first
        self._open: _Open | None = None

    @property
    def _codec(self) -> ManyAtOnce:
        codec = self._stack.rows.members[0].program.codec
        assert isinstance(codec, ManyAtOnce)  # noqa: S101 (as __init__ has seen)
        return codec

    @torch.no_grad()
    def train(self, order: ShardOrder) -> Trained:
        """Local training, and what other shards want of the new models."""
        rows, times = self._stack.rows, {0: order.t}
        with matrix_products(rows.how):
            works = self._stack.plan_work(times, {} if order.effort is None else {0: order.effort})
            self._stack.train(times, works)
        senders, payload, sent, compression = self._encode(order)
        splits_mass = rows.members[0].program.aggregator.splits_mass
        share = rows.mass / (order.num_receivers + 1) if splits_mass else rows.mass.copy()
        volume = np.array([works[row].volume for row in range(rows.count)])
        letters, labels = {}, self._label_shares(order.t)
        for shard, wanted in order.post.items():
            place = rows.tensor(np.searchsorted(senders, wanted))
            written = {name: tensor[place].cpu().numpy() for name, tensor in payload.items()}
            told = None if labels is None else labels[rows.tensor(wanted)].cpu().numpy()
            letters[shard] = Letter(wanted + self._first, written, volume[wanted], share[wanted], told)
        posted = sum(letter.num_bytes for letter in letters.values())
        self._open = _Open(order, works, sent, compression, share, posted)
        done = (works[row] for row in range(rows.count))
        return Trained(letters, [WorkDone(work.num_samples, work.devices_online, work.num_sent) for work in done])

    def _encode(self, order: ShardOrder) -> tuple[Indices, Payload, Tensor, NDArray[np.float64]]:
        """Who sends, what they send [k, …], what receivers see [n, P], and how much of a model that takes [n]."""
        rows, codec = self._stack.rows, self._codec
        senders, own = np.flatnonzero(order.num_receivers), rows.shared
        compression = np.ones(rows.count)
        if is_verbatim(codec) or not len(senders):
            return np.arange(rows.count), {"model": own}, own, compression
        chosen = rows.tensor(senders)
        payload, memories = codec.encode(own[chosen], torch.stack([rows.memories[row] for row in senders]))
        sent = own.clone()
        sent[chosen] = codec.restore(payload, own.shape[1])
        compression[senders] = payload_bits(payload) / (32 * len(senders) * own.shape[1])
        for row, memory in zip(senders, memories, strict=True):
            rows.memories[row] = memory
        return senders, payload, sent, compression

    @torch.no_grad()
    def merge(self, letters: Sequence[Letter], lost: Lost) -> ShardReport:
        """Merge what the shard's servers hold now, but for what was lost, and measure what came of it."""
        if self._open is None:
            raise ValueError("a shard merges after it has trained")
        here, self._open = self._open, None
        rows, order = self._stack.rows, here.order
        sent = torch.cat([here.sent, self._restored(letters, order.guests)]) if len(order.guests) else here.sent
        slots, ids = self._slots(order, lost)
        with matrix_products(rows.how):
            norms = compute_norms(sent)
            held = self._hold(here, letters, slots, is_usable(norms, rows.largest_norm[0]))
            labels = self._labels_of_all(order, letters)
            merged = self._stack.merge({0: order.t}, here.works, slots, held, SentModels(sent, norms, labels))
            accuracy, validation_loss, metrics = self._stack.measure({0: order.t})
        rows.mass[:] = merged.mass.cpu().numpy()
        own = slice(0, rows.count)
        present = held.present[own].cpu().numpy()
        program = rows.members[0].program
        return ShardReport(
            senders=ids[slots.sender[own]],
            measured=Measured(
                accuracy=accuracy.cpu().numpy(),
                training_loss=rows.training_loss.double().cpu().numpy(),
                validation_loss=validation_loss.cpu().numpy(),
                metrics=metrics,
                weights=merged.weights[own].double().cpu().numpy(),
                present=present,
                scores={name: merged.scores[name][own].double().cpu().numpy() for name in reported_scores(program)},
                compression=here.compression,
            ),
            refused=self._refused(count_refused(slots, own, present, norms), merged.setbacks),
            posted_bytes=here.posted_bytes,
            sketches=sketch(rows.shared).cpu().numpy(),
        )

    def _label_shares(self, t: int) -> Tensor | None:  # -> [n, C]
        rows = self._stack.rows
        return rows.label_shares({0: t}) if rows.members[0].program.aggregator.needs_labels else None

    def _labels_of_all(self, order: ShardOrder, letters: Sequence[Letter]) -> Tensor | None:  # -> [n + g, C]
        """The label shares of the shard's own servers, and behind them those of the guests."""
        own = self._label_shares(order.t)
        if own is None:
            return None
        guests = torch.zeros(len(order.guests), own.shape[1], dtype=own.dtype, device=own.device)
        for letter in letters:
            if letter.label_shares is not None:
                place = self._stack.rows.tensor(np.searchsorted(order.guests, letter.sender))
                guests[place] = torch.tensor(letter.label_shares, device=own.device)
        return torch.cat([own, guests])

    def _refused(self, received: Counter[str], setbacks: Tensor) -> dict[str, int]:
        """What was counted in this round, models that their receivers refused included."""
        rows = self._stack.rows
        rows.settle(0, setbacks.cpu().numpy())
        counted = rows.refused[0] + received
        rows.refused[0] = Counter()
        return dict(counted)

    def _restored(self, letters: Sequence[Letter], guests: Indices) -> Tensor:  # -> [g, P]
        """The models of the guests, each in its place."""
        rows = self._stack.rows
        models = torch.full((len(guests), rows.shared.shape[1]), torch.nan, device=rows.how.device)
        for letter in letters:
            # A copy: what came through shared memory is not ours to write to.
            payload = {name: torch.tensor(array, device=rows.how.device) for name, array in letter.payload.items()}
            models[rows.tensor(np.searchsorted(guests, letter.sender))] = self._codec.restore(payload, models.shape[1])
        return models

    def _slots(self, order: ShardOrder, lost: Lost) -> tuple[InboxTable, Indices]:
        """The inboxes, guests behind the shard's own servers; and everybody's number in the whole fleet."""
        count = self._stack.rows.count
        is_guest = (order.sender < self._first) | (order.sender >= self._first + count)
        sender = np.where(is_guest, count + np.searchsorted(order.guests, order.sender), order.sender - self._first)
        ids = np.concatenate([np.arange(self._first, self._first + count), order.guests])
        slots = inboxes_of(len(ids), order.receiver, sender)
        if lost.links.any() or lost.num_lost.any():
            slots = slots.without(lost.links)._replace(num_lost=np.pad(lost.num_lost, (0, len(order.guests))))
        return slots, ids

    def _hold(self, here: _Open, letters: Sequence[Letter], slots: InboxTable, usable: Tensor) -> StackedInbox:
        order, count = here.order, self._stack.rows.count
        total = count + len(order.guests)
        samples, share, receivers = np.zeros(total, dtype=np.int64), np.zeros(total), np.zeros(total, dtype=np.int64)
        samples[:count] = [here.works[row].volume for row in range(count)]
        share[:count], receivers[:count] = here.share, order.num_receivers
        for letter in letters:
            place = count + np.searchsorted(order.guests, letter.sender)
            samples[place], share[place] = letter.volume, letter.share
        mixing = np.full(slots.sender.shape, np.nan)
        if order.mixing is not None:
            own, received = order.mixing
            mixing[:count] = own[:, None]
            mixing[slots.link_receiver, slots.link_slot] = received
        return holdings(self._stack.rows.tensor, slots, samples, mixing, share, receivers, usable)

    def describe(self) -> tuple[int, dict[str, str]]:
        """P, and what computes."""
        return self._run.num_params, self._run.computed_by

    def validation_accuracy(self) -> NDArray[np.float64]:
        """[n] of the models as they are now."""
        return self._run.validation_accuracy()

    def answers(self) -> Answers:
        """What the shard's servers make of the test data."""
        return self._run.answers()

    def snapshot(self) -> Snapshot:
        """Everything the shard's servers remember, counted from its first."""
        return self._run.snapshot()

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to what `snapshot` remembers."""
        self._open = None
        self._run.restore(snapshot)
