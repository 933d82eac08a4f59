"""Who is in whose inbox, for all servers of all runs at once: arrays instead of mailboxes.

A server's slot 0 is its own model, the slots behind it are its senders in ascending order, as in `Inbox`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.links import Pairs

Indices = NDArray[np.int64]


class InboxTable(NamedTuple):
    """The round's inboxes; servers are numbered through all runs."""

    sender: Indices  # [S, D] whose model lies there; the server itself where nobody's does
    drawn: NDArray[np.bool_]  # [S, D] False: padding
    link_receiver: Indices  # [L]
    link_sender: Indices  # [L]
    link_slot: Indices  # [L] where the receiver keeps it

    @property
    def num_receivers(self) -> Indices:
        """[S] how many servers hear each."""
        return np.bincount(self.link_sender, minlength=len(self.sender))


def make_inboxes(num_servers: int, runs: Iterable[tuple[int, Pairs]]) -> InboxTable:
    """From every run's first server and its links, receivers in order, then senders."""
    pairs = [links + first for first, links in runs]
    return inboxes_of(num_servers, *np.concatenate([np.zeros((0, 2), dtype=np.int64), *pairs]).T)


def inboxes_of(num_servers: int, receiver: Indices, sender: Indices) -> InboxTable:
    """From both ends of every link, receivers in order; senders take their receiver's slots in the order given."""
    degree = np.bincount(receiver, minlength=num_servers)
    slot = 1 + np.arange(len(receiver)) - (np.cumsum(degree) - degree)[receiver]
    table = np.repeat(np.arange(num_servers)[:, None], 1 + int(degree.max(initial=0)), axis=1)
    drawn = np.arange(table.shape[1]) <= degree[:, None]
    table[receiver, slot] = sender
    return InboxTable(table, drawn, receiver, sender, slot)


PROBES_A_ROW = 4  # a model that many hear takes several rows, so that it does not widen everybody's


class ProbeTable(NamedTuple):
    """Which models are to be judged on whose probes: a table whose rows are models, padded to the same width."""

    model: Indices  # [A] the models that are asked at all
    asked: Indices  # [G] which of them each row is about
    receiver: Indices  # [G, T] whose probe; any server where padding
    place: Indices  # [M] of every real question in the table [G·T], in order
    answer: Indices  # [M] where its answer goes in the table [S·D]

    def rows(self, part: slice) -> ProbeTable:
        """Some rows of the table."""
        width = self.receiver.shape[1]
        here = (self.place >= part.start * width) & (self.place < part.stop * width)
        place, answer = self.place[here] - part.start * width, self.answer[here]
        return ProbeTable(self.model, self.asked[part], self.receiver[part], place, answer)


def probe_table(
    models: slice, slots: InboxTable, judged: NDArray[np.bool_], *, by_owner: bool = True, by_receivers: bool = True
) -> ProbeTable:
    """Some servers' models, each on its owner's probe and on those of its receivers, where `judged` says so."""
    first, last = models.start, models.stop
    own = np.flatnonzero(judged[first:last] & by_owner) + first
    sent = (slots.link_sender >= first) & (slots.link_sender < last) & judged[slots.link_receiver] & by_receivers
    model = np.concatenate([own, slots.link_sender[sent]])
    receiver = np.concatenate([own, slots.link_receiver[sent]])
    answer = receiver * slots.sender.shape[1] + np.concatenate([np.zeros_like(own), slots.link_slot[sent]])
    order = np.argsort(model, kind="stable")
    model, receiver, answer = model[order], receiver[order], answer[order]
    distinct, count = np.unique(model, return_counts=True)
    width = min(PROBES_A_ROW, int(count.max(initial=1)))
    rows = -(-count // width)  # of each model
    number = np.arange(len(model)) - np.repeat(np.cumsum(count) - count, count)
    row = np.repeat(np.cumsum(rows) - rows, count) + number // width
    place = row * width + number % width
    table = np.zeros((int(rows.sum()), width), dtype=np.int64)
    table.reshape(-1)[place] = receiver
    return ProbeTable(distinct, np.repeat(np.arange(len(distinct)), rows), table, place, answer)
