"""One round's post at one edge: what is expected, what has come, what was sent."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.deploy.transport.frames import MAX_SENDS, split_into_frames
from hatdfed.errors import WireError
from hatdfed.server.aggregation import Inbox
from hatdfed.server.codecs.base import payload_bits
from hatdfed.server.exchange import MessageContext, Received, make_inbox, pack_offer_parts
from hatdfed.server.message import Buffer
from hatdfed.server.program import EdgeProgram, Offer, ServerState

EARLY = "early"  # the reason that is worth another try
_IN_PLACE_OF_TRAINING = 2  # models for which there is no room while the own one is trained


class Outgoing(NamedTuple):
    """A message for one receiver, and the place where it is noted how much of it went out."""

    parts: list[Buffer]
    size: int  # bytes
    share: float  # of a float32 model that the whole message takes
    sent: pb.Sent

    def frames(self, parcel: pb.Parcel) -> Iterator[pb.Frame]:
        """All frames; each is counted when the next one is asked for, since only then it is on its way."""
        before, gone = self.sent.share, 0
        for frame in split_into_frames(parcel, self.parts):
            yield frame
            gone += len(frame.chunk)
            self.sent.share = before + self.share * (gone / self.size)


class RoundMailbox:
    """The round that this edge is in. Pushes and pulls of other rounds are refused, or wait for theirs to begin."""

    def __init__(self, run: str, codec: str, index: int, program: EdgeProgram) -> None:
        self.run = run
        self.index = index
        self.program = program
        self.mark = MessageContext(run, codec)
        self.order: pb.RoundOrder | None = None
        self.refused: Counter[str] = Counter()
        self.mailbox: dict[int, Received] = {}
        self.sent: dict[int, pb.Sent] = {}
        self.until = 0.0  # when the round ends, on the monotonic clock
        self._offer: Offer | None = None
        self._packed: list[Buffer] = []  # the message of this round, once somebody has asked for it
        self._packing = asyncio.Lock()  # so that it is packed once
        self._excuses: dict[int, set[int]] = {}  # by round: one may come before its round begins here
        self._silent: dict[int, set[int]] = {}  # by round: who is there and will not call this edge any more
        self._given_up: set[int] = set()  # whom this edge calls no more in this round
        self._changed = asyncio.Condition()
        self._is_closed = True
        self._came_early = 0
        self._models = torch.empty(0)  # [1 + senders, P] the own one first, then what came

    async def begin(self, order: pb.RoundOrder) -> None:
        """A new round: from now on its models are taken."""
        async with self._changed:
            self.order, self._is_closed = order, False
            self.until = time.monotonic() + order.seconds
            self.mailbox, self.sent = {}, {}
            self._excuses = {t: peers for t, peers in self._excuses.items() if t >= order.round}
            self._silent = {t: peers for t, peers in self._silent.items() if t >= order.round}
            self._given_up = set()
            self._offer, self._packed, self._came_early = None, [], 0
            self._changed.notify_all()

    async def offer(self, offer: Offer) -> None:
        """The own model is trained: from now on it can be had."""
        async with self._changed:
            self._offer = offer
            self._changed.notify_all()

    async def close(self) -> None:
        """Nothing more is taken for this round; who waits for it need not."""
        async with self._changed:
            self._is_closed, self._packed = True, []
            self._offer = None  # nobody needs it any more, and it may be a whole model
            self._changed.notify_all()

    async def excuse(self, t: int, peers: Iterable[int], silent: Iterable[int] = ()) -> None:
        """Some have gone, or are done with the round: nothing will come from them, and nobody waits for it.

        Those who are `silent` will not call, but what this edge brings them or fetches from them goes on.
        """
        async with self._changed:
            if self.order is None or t >= self.order.round:
                self._excuses[t] = self._excuses.get(t, set()) | set(peers)
                self._silent[t] = self._silent.get(t, set()) | set(silent)
                self._changed.notify_all()

    async def give_up(self, peer: int) -> bool:
        """Own calls to a peer have ended; whether it may still wait for one that was to bring or fetch a model."""
        async with self._changed:
            self._given_up.add(peer)
            self._changed.notify_all()
            order = self.order
            if order is None or self._is_closed or peer in self._excused:
                return False
            wanted = any(s.index == peer and s.dial for s in order.senders) and peer not in self.mailbox
            brought = any(r.index == peer and r.dial for r in order.receivers)
            return wanted or (brought and peer not in self._delivered)

    async def unless_excused(self, peer: int, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do something with a peer, unless one hears that it has gone."""
        task, gone = asyncio.ensure_future(work()), asyncio.ensure_future(self._gone(peer))
        try:
            await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            if not task.done():
                task.cancel()
            found, _ = await asyncio.gather(task, gone, return_exceptions=True)
        if isinstance(found, Exception):
            raise found

    async def _gone(self, peer: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: peer in self._excused)

    @property
    def _excused(self) -> set[int]:
        return set() if self.order is None else self._excuses.get(self.order.round, set())

    async def complete(self, until: float) -> None:
        """Wait for all models that are expected, and for all that others are to fetch."""
        await self._wait(lambda: self._is_closed or self._is_complete(), until)

    async def round_begun(self, t: int, until: float) -> pb.RoundOrder:
        """The order of round t, as soon as this edge has it; others may be faster than the coordinator's word."""
        await self._wait(lambda: self.order is not None and self.order.round >= t, until)
        if self.order is None or self.order.round < t:
            raise WireError(EARLY, f"Round {t} has not begun here.")
        if self.order.round > t or self._is_closed:
            raise WireError("late", f"Round {t} is over here.")
        return self.order

    async def room_for_model(self, t: int, until: float) -> None:
        """Training takes memory of its own: until it is over, some models wait at their senders."""

        def is_room() -> bool:
            senders = 0 if self.order is None else len(self.order.senders)
            is_trained = self._offer is not None
            return not self._is_open(t) or is_trained or self._came_early < senders - _IN_PLACE_OF_TRAINING

        await self._wait(is_room, until)
        if not self._is_open(t) or not is_room():
            raise WireError("late", f"Round {t} is over here.")
        self._came_early += self._offer is None

    async def message_for(self, receiver: int, t: int, until: float) -> Outgoing:
        """The bytes for one receiver, once the model is trained."""
        await self._wait(lambda: self._is_closed or self._offer is not None, until)
        offer = self._offer
        if not self._is_open(t) or offer is None:
            raise WireError("late", f"The model of round {t} is not to be had any more.")
        async with self._packing:
            parts = self._packed or await asyncio.to_thread(pack_offer_parts, offer, self.mark, t=t, sender=self.index)
            if not self._is_open(t):
                raise WireError("late", f"Round {t} has ended here.")
            self._packed = parts
        sent = self.sent.setdefault(receiver, pb.Sent(receiver=receiver))
        share = payload_bits(offer.payload) / (32 * self.program.learner.num_params)
        if sent.share > (MAX_SENDS - 1) * share * (1 + 1e-9):  # what is left is not enough for a whole one
            raise WireError("spent", f"The model of round {t} was sent to server {receiver} too often.")
        return Outgoing(parts, sum(map(len, parts)), share, sent)

    def _is_open(self, t: int) -> bool:
        return not self._is_closed and self.order is not None and self.order.round == t

    def sender_named(self, name: str) -> int:
        """Which of this round's senders that is."""
        for neighbour in self.order.senders if self.order is not None else ():
            if neighbour.name == name:
                return int(neighbour.index)
        raise WireError("not-a-neighbour", f"{name} is not to send to this edge in this round.")

    def receiver_named(self, name: str) -> int:
        """Which of this round's receivers that is."""
        for neighbour in self.order.receivers if self.order is not None else ():
            if neighbour.name == name:
                return int(neighbour.index)
        raise WireError("not-a-neighbour", f"{name} is not to receive from this edge in this round.")

    async def deliver(self, t: int, sender: int, received: Received) -> None:
        """A model has come and is good."""
        async with self._changed:
            if not self._is_open(t):
                raise WireError("late", f"Round {t} is over here.")
            if sender in self.mailbox:
                raise WireError("duplicate", "This model is already here.")
            self.mailbox[sender] = received
            self._changed.notify_all()

    async def arrived(self, t: int, receiver: int) -> None:
        """The receiver has said that it took the model."""
        async with self._changed:
            if receiver in self.sent and self.order is not None and self.order.round == t:
                self.sent[receiver].delivered = True
            self._changed.notify_all()

    def make_room(self, server: ServerState) -> ServerState:
        """The same server, whose model is the first row of the tensor that will be merged."""
        senders = 0 if self.order is None else len(self.order.senders)
        self._models = torch.empty(1 + senders, len(server.params))  # takes memory as it is written, row by row
        self._models[0] = server.params
        return server._replace(params=self._models[0])

    def inbox(self, server: ServerState, own: Offer) -> Inbox:
        """What is merged: every model is let go once it is in its row, so that none is here twice."""
        models, self._models = self._models[: 1 + len(self.mailbox)], torch.empty(0)
        for row, sender in enumerate(sorted(self.mailbox), start=1):
            models[row] = self.mailbox[sender].model
            self.mailbox[sender] = self.mailbox[sender]._replace(model=models[row])
        return make_inbox(server, own, self.mailbox, self.mixing(), self.index, models=models)

    def forget(self) -> None:
        """The round is merged: its models need not wait for the next to begin."""
        self.mailbox = {}

    def mixing(self) -> NDArray[np.float64] | None:
        """The plan's weights as a row, if it has any."""
        order = self.order
        if order is None or np.isnan(order.own_mixing):
            return None
        weights = {self.index: order.own_mixing, **{other.index: other.mixing for other in order.senders}}
        row = np.zeros(max(weights) + 1)
        row[list(weights)] = list(weights.values())
        return row

    @property
    def failed_sends(self) -> int:
        """Receivers that did not get the model."""
        receivers = self.order.receivers if self.order is not None else []
        return sum(not (r.index in self.sent and self.sent[r.index].delivered) for r in receivers)

    def _is_complete(self) -> bool:
        if self.order is None or self._offer is None:
            return False
        silent = self._silent.get(self.order.round, set())
        awaited = {s.index for s in self.order.senders if s.index not in (self._given_up if s.dial else silent)}
        fetched = {r.index for r in self.order.receivers if not r.dial} - silent
        return awaited - self._excused <= self.mailbox.keys() and fetched - self._excused <= self._delivered

    @property
    def _delivered(self) -> set[int]:
        return {receiver for receiver, sent in self.sent.items() if sent.delivered}

    async def _wait(self, is_so: Callable[[], bool], until: float) -> None:
        async with self._changed:
            try:
                await asyncio.wait_for(self._changed.wait_for(is_so), max(0.0, until - time.monotonic()))
            except TimeoutError:
                return
