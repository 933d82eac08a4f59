"""An edge plays rounds: train, exchange, merge, commit, report. Everything that computes runs off the event loop."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from hatdfed.deploy.edge.peers import Peers
from hatdfed.deploy.edge.round_mailbox import RoundMailbox
from hatdfed.deploy.edge.store import EdgeStore, Kept
from hatdfed.deploy.failpoints import failpoint
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.errors import RunFolderError
from hatdfed.runs.malloc import tidy_freed_memory
from hatdfed.server.consensus import sketch
from hatdfed.server.program import EdgeProgram, ServerState, Verdict
from hatdfed.server.work import DataSource, Work

_log = logging.getLogger("hatdfed.deploy.edge")
_EXCHANGE_SHARE = 0.9  # of a round's time; the rest is for merging and reporting
T = TypeVar("T")
Call = Callable[[], Coroutine[Any, Any, None]]


class RoundRunner:
    """One edge's rounds, one after the other."""

    def __init__(
        self,
        program: EdgeProgram,
        source: DataSource,
        exchange: RoundMailbox,
        peers: Peers,
        store: EdgeStore,
        kept: Kept,
        give_up: Callable[[int, int], Awaitable[None]],  # a round, and who is called no more in it
    ) -> None:
        self._program = program
        self._source = source
        self._exchange = exchange
        self._peers = peers
        self._store = store
        self._give_up = give_up
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="compute")
        self.server = kept.server
        self.next_round = kept.round
        self.last_outcome = pb.Outcome.FromString(kept.outcome) if kept.outcome else None
        self.doing = "waiting for a round"

    async def play(self, order: pb.RoundOrder) -> pb.Outcome:
        """One round; the outcome is committed before it is told."""
        t, until = order.round, time.monotonic() + _EXCHANGE_SHARE * order.seconds
        exchange, program = self._exchange, self._program
        await exchange.begin(order)
        self.doing = f"training for round {t}"
        work: Work = await self.off_loop(self._source.work, t)
        try:
            server, trouble = await self.off_loop(self._train, work, t)
            self._count(trouble, t)
            server = exchange.make_room(server)
            self._worker.submit(tidy_freed_memory)
            failpoint("trained")
            server, offer = await self.off_loop(program.offer, server, work, len(order.receivers))
            await exchange.offer(offer)
            self.doing = f"exchanging models of round {t}"
            await self._exchange_models(order, until)
            self.doing = f"merging round {t}"
            self._worker.submit(tidy_freed_memory)
            server = program.take_back(server, offer, exchange.failed_sends)
            inbox = await self.off_loop(exchange.inbox, server, offer)
            del offer
            server, verdict = await self.off_loop(program.merge, server, inbox, work)
            self._count(verdict.trouble, t)
            sketched = await self.off_loop(sketch, server.params[None])
            outcome = self._outcome(t, work, verdict)
            outcome.sketch.extend(sketched[0].tolist())
            exchange.forget()
            del inbox
            await self._commit(server, t + 1, outcome)
        except Exception:
            await self._recover()
            raise
        self._worker.submit(tidy_freed_memory)
        self.doing = "waiting for a round"
        return outcome

    def _train(self, work: Work, t: int) -> tuple[ServerState, str]:
        # The moments are overwritten: for two sets of them a small machine has no room.
        trained = self._program.train(self.server, work, t, spend=True)
        return self._program.keep_finite(self.server, trained)

    def _count(self, trouble: str, t: int) -> None:
        """A model of one's own that was not finite is reported like those that were refused."""
        if trouble:
            self._exchange.refused[trouble] += 1
            _log.warning("the own model of round %d cannot be used: %s", t, trouble)

    async def _recover(self) -> None:
        """As before the round: the moments that it has overwritten are on the disk, or begin anew."""
        learner, server = self._program.learner, self.server
        self.server = server._replace(optimiser=learner.optimiser.init(learner.num_trainable))
        try:
            kept = await self.off_loop(self._store.load, self._exchange.run)
        except RunFolderError as error:
            _log.error("%s", error)
            return
        if kept is not None and kept.round == self.next_round:
            self.server = kept.server

    async def accuracy(self) -> float:
        """Of the model as it is, on validation data."""
        return await self.off_loop(self._program.learner.accuracy, self.server.params, self._source.validation)

    def close(self) -> None:
        """Let the worker go."""
        self._worker.shutdown(wait=False, cancel_futures=True)

    async def _exchange_models(self, order: pb.RoundOrder, until: float) -> None:
        t = order.round
        push, pull = self._peers.push, self._peers.pull
        calls: dict[int, list[Call]] = defaultdict(list)
        for peer in order.receivers:
            calls[peer.index] += [partial(push, peer, t, until)] * peer.dial
        for peer in order.senders:
            calls[peer.index] += [partial(pull, peer, t, until)] * peer.dial
        tasks = [asyncio.ensure_future(self._call(t, peer, those)) for peer, those in calls.items() if those]
        try:
            await self._exchange.complete(until)
            if tasks:
                await asyncio.wait(tasks, timeout=max(0.0, until - time.monotonic()))
        finally:
            await self._exchange.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _call(self, t: int, peer: int, calls: list[Call]) -> None:
        """All calls to one peer. It may wait for what they did not bring, and must not for long."""
        found = await asyncio.gather(
            *(self._exchange.unless_excused(peer, call) for call in calls), return_exceptions=True
        )
        if await self._exchange.give_up(peer):
            await self._give_up(t, peer)
        for trouble in found:
            if isinstance(trouble, Exception):
                _log.error("a transfer of round %d ended in %r", t, trouble)

    def _outcome(self, t: int, work: Work, verdict: Verdict) -> pb.Outcome:
        exchange = self._exchange
        servers = [exchange.index, *sorted(exchange.mailbox)]
        importance = verdict.importance.tolist()
        scores = {name: values.tolist() for name, values in verdict.scores.items()}
        refused, exchange.refused = dict(exchange.refused), type(exchange.refused)()
        return pb.Outcome(
            round=t,
            accuracy=verdict.accuracy,
            num_samples=work.num_samples,
            devices_online=work.devices_online,
            slots=[
                pb.Slot(
                    server=server,
                    importance=importance[slot],
                    scores={name: values[slot] for name, values in scores.items()},
                )
                for slot, server in enumerate(servers)
            ],
            sent=exchange.sent.values(),
            refused=refused,
        )

    async def _commit(self, server: ServerState, next_round: int, outcome: pb.Outcome) -> None:
        """On the disk first. A disk that is full costs the file, not the round: the last good one stays."""
        kept = Kept(self._exchange.run, next_round, server, outcome.SerializeToString())
        failpoint("before-edge-commit")
        try:
            await self.off_loop(self._store.save, kept)
        except RunFolderError as error:
            _log.error("%s", error)
        failpoint("after-edge-commit")
        self.server, self.next_round, self.last_outcome = server, next_round, outcome

    async def off_loop(self, work: Callable[..., T], *arguments: Any) -> T:
        """Compute where it does not hold up the network."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, work, *arguments)
