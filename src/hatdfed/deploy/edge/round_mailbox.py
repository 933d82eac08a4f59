"""The models that one edge exchanges in a round: what is expected, what was received, what was sent."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from typing import Any

import torch

from hatdfed.deploy import history
from hatdfed.deploy.edge.transfers import Direction, Incoming, Outgoing, SendRecord, TransferTally
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.deploy.transport.frames import PackedMessage, describe_message
from hatdfed.errors import WireError
from hatdfed.server.aggregation import Inbox
from hatdfed.server.codecs.base import payload_bits
from hatdfed.server.exchange import Limits, MessageContext, Received, accept, make_inbox, pack_offer_parts
from hatdfed.server.message import Buffer, compute_overhead
from hatdfed.server.program import EdgeProgram, Offer, ServerState

EARLY = "early"  # the one reason of refusal after which a peer tries again
_TRAINING_ROOM = 2  # models for which there is no memory while the own one is trained


class RoundMailbox:
    """The round that this edge plays. Pushes and pulls of other rounds are refused, or wait for theirs to begin."""

    def __init__(
        self, run: str, codec: str, index: int, program: EdgeProgram, limits: Limits, incoming: Incoming
    ) -> None:
        self.run = run
        self.incoming = incoming
        self.index = index
        self.program = program
        self.limits = limits
        self.message_context = MessageContext(run, codec)
        self.keep_received: Callable[[int, Buffer], None] = lambda sender, message: None
        self.is_resumed = False  # whether this edge was started again during the round
        self.order: pb.RoundOrder | None = None
        self.refused: Counter[str] = Counter()
        self.reported_refusals: Counter[str] = Counter()  # of earlier rounds
        self.transfers = TransferTally()
        self.links: Counter[Direction] = Counter({"in": 0, "out": 0})  # of all rounds since the start
        self.refused_by_name: Counter[tuple[str, str]] = Counter()  # by sender and reason, where the sender is known
        self.received: dict[int, Received] = {}
        self.sent: dict[int, SendRecord] = {}
        self.until = 0.0  # when the round ends, on the monotonic clock
        self._offer: Offer | None = None
        self._packed: PackedMessage | None = None  # the message of this round, once somebody has asked for it
        self._packing = asyncio.Lock()  # so that it is packed once
        self._gone_by_round: dict[int, set[int]] = {}  # the news may come before its round begins here
        self._silent_by_round: dict[int, set[int]] = {}  # peers that will not call this edge again
        self._given_up: set[int] = set()  # peers that this edge no longer calls in this round
        self._changed = asyncio.Condition()
        self._is_closed = True
        self._came_early: set[int] = set()  # senders whose models had memory before the own one was trained
        self._models = torch.empty(0)  # [1 + senders, P] the own model first, then those received

    def count_refusal(self, reason: str, name: str = "") -> None:
        """Count a refused message; `name` is its sender's, if known."""
        self.refused[reason] += 1
        if name:
            self.refused_by_name[name, reason] += 1

    def take_refusals(self) -> tuple[dict[str, int], list[pb.Refusal]]:
        """Return what was refused since the last call, by reason, and whose messages they were."""
        refused, by_name = dict(self.refused), self.refused_by_name
        self.reported_refusals += self.refused
        self.refused, self.refused_by_name = Counter(), Counter()
        return refused, [pb.Refusal(name=n, reason=reason, count=count) for (n, reason), count in by_name.items()]

    async def begin(self, order: pb.RoundOrder, sent: Mapping[int, SendRecord] | None = None) -> None:
        """Begin a round: from now on its models are accepted. `sent` is what was sent in it before a restart."""
        async with self._changed:
            self.order, self._is_closed = order, False
            self.links.update({"in": len(order.senders), "out": len(order.receivers)})
            self.until = time.monotonic() + order.seconds
            history.note("begin", self.index, round=order.round, seconds=order.seconds)
            self.received, self.sent = {}, dict(sent or {})
            self._gone_by_round = {t: peers for t, peers in self._gone_by_round.items() if t >= order.round}
            self._silent_by_round = {t: peers for t, peers in self._silent_by_round.items() if t >= order.round}
            self._given_up = set()
            self._offer, self._packed, self._came_early = None, None, set()
            self.incoming.clear()
            self._changed.notify_all()

    async def offer(self, offer: Offer) -> None:
        """Offer the own trained model to receivers."""
        async with self._changed:
            self._offer = offer
            self._changed.notify_all()

    async def close(self) -> None:
        """End the round: nothing more is accepted, and whoever waits for it is woken."""
        async with self._changed:
            self._is_closed, self._packed = True, None
            self._offer = None  # no longer needed, and it may hold a whole model
            self.incoming.clear()
            self._changed.notify_all()

    async def forget_rounds(self) -> None:
        """Forget every round, since the run goes back to an earlier one: its models are accepted once it begins."""
        async with self._changed:
            self.order, self._is_closed, self._offer, self._packed = None, True, None, None
            self.incoming.clear()
            self._gone_by_round, self._silent_by_round = {}, {}
            self._changed.notify_all()

    async def mark_gone(self, t: int, peers: Iterable[int], silent: Iterable[int] = ()) -> None:
        """Note that peers are gone or done with round t, so that nothing is awaited from them.

        Peers that are `silent` will not call, but transfers that this edge makes to and from them go on.
        """
        async with self._changed:
            if self.order is None or t >= self.order.round:
                self._gone_by_round[t] = self._gone_by_round.get(t, set()) | set(peers)
                self._silent_by_round[t] = self._silent_by_round.get(t, set()) | set(silent)
                self._changed.notify_all()

    async def give_up(self, peer: int) -> bool:
        """Note that this edge no longer calls a peer; returns whether the peer may still wait for a transfer."""
        async with self._changed:
            self._given_up.add(peer)
            self._changed.notify_all()
            order = self.order
            if order is None or self._is_closed or peer in self._gone_now:
                return False
            is_fetched = any(s.index == peer and s.dial for s in order.senders)
            is_pushed_to = any(r.index == peer and r.dial for r in order.receivers)
            return (is_fetched and peer not in self.received) or (is_pushed_to and peer not in self.delivered)

    async def run_unless_gone(self, peer: int, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a call to a peer, and cancel it as soon as the peer is known to be gone."""
        task, gone = asyncio.ensure_future(work()), asyncio.ensure_future(self._wait_until_gone(peer))
        try:
            await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            if not task.done():
                task.cancel()
            result, _ = await asyncio.gather(task, gone, return_exceptions=True)
        if isinstance(result, Exception):
            raise result

    async def _wait_until_gone(self, peer: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: peer in self._gone_now)

    @property
    def _gone_now(self) -> set[int]:
        return set() if self.order is None else self._gone_by_round.get(self.order.round, set())

    async def wait_until_complete(self, until: float) -> None:
        """Wait until all expected models were received and all that others fetch were delivered."""
        await self._wait(lambda: self._is_closed or self._is_complete(), until)

    async def wait_for_round(self, t: int, until: float) -> pb.RoundOrder:
        """Wait for the order of round t: a peer may have received its own before this edge."""
        await self._wait(lambda: self.order is not None and self.order.round >= t, until)
        if self.order is None or self.order.round < t:
            raise WireError(EARLY, f"Round {t} has not begun here.")
        if self.order.round > t or self._is_closed:
            raise WireError("late", f"Round {t} is over here.")
        return self.order

    async def wait_for_room(self, t: int, sender: int, until: float) -> None:
        """Wait until there is memory for one more model: during training some have to wait at their senders."""

        def is_room() -> bool:
            senders = 0 if self.order is None else len(self.order.senders)
            is_trained = self._offer is not None
            early = len(self._came_early - {sender})
            return not self.is_open(t) or is_trained or early < senders - _TRAINING_ROOM

        await self._wait(is_room, until)
        if not self.is_open(t) or not is_room():
            raise WireError("late", f"Round {t} is over here.")
        if self._offer is None:
            self._came_early.add(sender)

    async def make_message(self, receiver: int, t: int, until: float) -> Outgoing:
        """Pack the message for one receiver, once the model is trained."""
        await self._wait(lambda: self._is_closed or self._offer is not None, until)
        offer = self._offer
        if not self.is_open(t) or offer is None:
            raise WireError("late", f"The model of round {t} is no longer available.")
        async with self._packing:
            packed = self._packed
            if packed is None:
                packed = await asyncio.to_thread(self._pack, offer, t)
            if not self.is_open(t):
                raise WireError("late", f"Round {t} has ended here.")
            self._packed = packed
        record = self.sent.setdefault(receiver, SendRecord(pb.Sent(receiver=receiver)))
        share = payload_bits(offer.payload) / (32 * self.program.learner.num_params)
        return Outgoing(packed, packed.make_header(self.run, t, self.index), share, record)

    def _pack(self, offer: Offer, t: int) -> PackedMessage:
        return describe_message(pack_offer_parts(offer, self.message_context, t=t, sender=self.index))

    def is_open(self, t: int) -> bool:
        """Return whether models of round t are exchanged now."""
        return not self._is_closed and self.order is not None and self.order.round == t

    def find_sender(self, name: str) -> int:
        """Return the index of this round's sender of that name."""
        for neighbour in self.order.senders if self.order is not None else ():
            if neighbour.name == name:
                return int(neighbour.index)
        raise WireError("not-a-neighbour", f"{name} is not to send to this edge in this round.")

    def find_receiver(self, name: str) -> int:
        """Return the index of this round's receiver of that name."""
        for neighbour in self.order.receivers if self.order is not None else ():
            if neighbour.name == name:
                return int(neighbour.index)
        raise WireError("not-a-neighbour", f"{name} is not to receive from this edge in this round.")

    @property
    def max_message_bytes(self) -> int:
        """The length of the longest message of this run."""
        return 4 * self.program.learner.num_params + compute_overhead(num_labels=self.program.num_labels)

    async def check(self, data: Buffer, t: int, sender: int) -> Received:
        """Decode and check a message off the event loop; raises `WireError` if it is refused."""
        digest = history.received_digest(data) if history.is_kept() else ""
        try:
            received = await asyncio.to_thread(
                accept, data, self.message_context, t=t, sender=sender, codec=self.program.codec, limits=self.limits
            )
        except (TypeError, ValueError, KeyError, RuntimeError) as error:  # malformed in some other way
            raise WireError("not-a-message", f"A message cannot be read ({type(error).__name__}).") from None
        history.note("accept", self.index, round=t, sender=sender, digest=digest)
        return received

    async def deliver(self, t: int, sender: int, received: Received, message: Buffer | None = None) -> None:
        """Store a received model that has passed all checks; its message is kept on disk first."""
        if message is not None and self.is_open(t):
            await asyncio.to_thread(self.keep_received, sender, message)
        async with self._changed:
            if not self.is_open(t):
                raise WireError("late", f"Round {t} is over here.")
            if sender in self.received:
                raise WireError("duplicate", "This model is already here.")
            self.received[sender] = received
            history.note("receive", self.index, round=t, sender=sender, run=self.run)
            self._changed.notify_all()

    async def mark_delivered(self, t: int, receiver: int) -> None:
        """Note that a receiver has accepted the model."""
        async with self._changed:
            if receiver in self.sent and self.order is not None and self.order.round == t:
                self.sent[receiver].sent.delivered = True
            self._changed.notify_all()

    async def notice_slow_sender(self) -> None:
        """Wake up whoever waits for a sender that is not listened to again."""
        async with self._changed:
            self._changed.notify_all()

    def allocate_models(self, server: ServerState) -> ServerState:
        """Move what is sent of the server's model to the first row of the tensor that will be merged."""
        senders, sent = 0 if self.order is None else len(self.order.senders), self.program.learner.sent
        self._models = torch.empty(1 + senders, sent.size)  # takes up memory only as rows are written
        self._models[0] = sent.take(server.params)
        return server._replace(params=sent.put(server.params, self._models[0]))

    def make_inbox(self, server: ServerState, own: Offer) -> Inbox:
        """Collect the models to merge; each is freed once copied to its row, so that none is in memory twice."""
        models, self._models = self._models[: 1 + len(self.received)], torch.empty(0)
        for row, sender in enumerate(sorted(self.received), start=1):
            models[row] = self.received[sender].model
            self.received[sender] = self.received[sender]._replace(model=models[row])
        return make_inbox(models, server.mass, own, self.received, self.find_mixing_weights(), self.index)

    def clear(self) -> None:
        """Free the models of a round that is merged, before the next one begins."""
        self.received = {}

    def find_mixing_weights(self) -> dict[int, float] | None:
        """Return the plan's mixing weights by server, the own one included; None if it has none."""
        order = self.order
        if order is None or math.isnan(order.own_mixing):
            return None
        return {self.index: order.own_mixing, **{other.index: other.mixing for other in order.senders}}

    @property
    def failed_sends(self) -> int:
        """The number of receivers that did not get the model."""
        receivers = self.order.receivers if self.order is not None else []
        return sum(not (r.index in self.sent and self.sent[r.index].sent.delivered) for r in receivers)

    def _is_complete(self) -> bool:
        if self.order is None or self._offer is None:
            return False
        silent = self._silent_by_round.get(self.order.round, set())
        awaited = {s.index for s in self.order.senders if s.index not in (self._given_up if s.dial else silent)}
        fetched = {r.index for r in self.order.receivers if not r.dial} - silent
        return (
            awaited - self._gone_now - self.incoming.slow <= self.received.keys()
            and fetched - self._gone_now <= self.delivered
        )

    @property
    def delivered(self) -> set[int]:
        """The receivers that have accepted the model."""
        return {receiver for receiver, record in self.sent.items() if record.sent.delivered}

    async def _wait(self, condition: Callable[[], bool], until: float) -> None:
        # Not with `wait_for`: its inner task may leave the condition unlocked when this one is cancelled twice.
        async with self._changed:
            with suppress(TimeoutError):
                async with asyncio.timeout(until - time.monotonic()):
                    await self._changed.wait_for(condition)
