"""Plays rounds at an edge: train, exchange, merge, commit, report. All computation runs off the event loop."""

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
from hatdfed.deploy.edge.store import EdgeStore, SavedState
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
    """Plays one edge's rounds, one after the other."""

    def __init__(
        self,
        program: EdgeProgram,
        source: DataSource,
        mailbox: RoundMailbox,
        peers: Peers,
        store: EdgeStore,
        saved: SavedState,
        report_lost_peer: Callable[[int, int], Awaitable[None]],  # with a round and the peer no longer called in it
    ) -> None:
        self._program = program
        self._source = source
        self._mailbox = mailbox
        self._peers = peers
        self._store = store
        self._report_lost_peer = report_lost_peer
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="compute")
        self.server = saved.server
        self.next_round = saved.round
        self.last_outcome = pb.Outcome.FromString(saved.outcome) if saved.outcome else None
        self.doing = "waiting for a round"

    async def play(self, order: pb.RoundOrder) -> pb.Outcome:
        """Play one round; the outcome is committed before it is reported."""
        t, until = order.round, time.monotonic() + _EXCHANGE_SHARE * order.seconds
        mailbox, program = self._mailbox, self._program
        await mailbox.begin(order)
        self.doing = f"training for round {t}"
        work: Work = await self.run_off_loop(self._source.work, t)
        try:
            server, trouble = await self.run_off_loop(self._train, work, t)
            self._count(trouble, t)
            server = mailbox.allocate_models(server)
            self._worker.submit(tidy_freed_memory)
            failpoint("trained")
            server, offer = await self.run_off_loop(program.offer, server, work, len(order.receivers))
            await mailbox.offer(offer)
            self.doing = f"exchanging models of round {t}"
            await self._exchange_models(order, until)
            self.doing = f"merging round {t}"
            self._worker.submit(tidy_freed_memory)
            server = program.take_back(server, offer, mailbox.failed_sends)
            inbox = await self.run_off_loop(mailbox.make_inbox, server, offer)
            del offer
            server, verdict = await self.run_off_loop(program.merge, server, inbox, work)
            self._count(verdict.trouble, t)
            sketched = await self.run_off_loop(sketch, server.params[None])
            outcome = self._make_outcome(t, work, verdict)
            outcome.sketch.extend(sketched[0].tolist())
            mailbox.clear()
            del inbox
            await self._commit(server, t + 1, outcome)
        except Exception:
            await self._recover()
            raise
        self._worker.submit(tidy_freed_memory)
        self.doing = "waiting for a round"
        return outcome

    def _train(self, work: Work, t: int) -> tuple[ServerState, str]:
        # The optimiser's moments are overwritten: a small machine has no memory for two sets of them.
        trained = self._program.train(self.server, work, t, spend=True)
        return self._program.keep_finite(self.server, trained)

    def _count(self, trouble: str, t: int) -> None:
        """A model of one's own that was not finite is reported like those that were refused."""
        if trouble:
            self._mailbox.refused[trouble] += 1
            _log.warning("the own model of round %d cannot be used: %s", t, trouble)

    async def _recover(self) -> None:
        """Go back to before the round: the overwritten moments are read from disk, or start from zero."""
        learner, server = self._program.learner, self.server
        self.server = server._replace(optimiser=learner.optimiser.init(learner.num_trainable))
        try:
            saved = await self.run_off_loop(self._store.load, self._mailbox.run)
        except RunFolderError as error:
            _log.error("%s", error)
            return
        if saved is not None and saved.round == self.next_round:
            self.server = saved.server

    async def measure_accuracy(self) -> float:
        """Measure the current model on validation data."""
        return await self.run_off_loop(self._program.learner.accuracy, self.server.params, self._source.validation)

    def close(self) -> None:
        """Shut the worker thread down."""
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
            await self._mailbox.wait_until_complete(until)
            if tasks:
                await asyncio.wait(tasks, timeout=max(0.0, until - time.monotonic()))
        finally:
            await self._mailbox.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _call(self, t: int, peer: int, calls: list[Call]) -> None:
        """Make all calls to one peer; if they fail, tell the coordinator, so that the peer does not wait for them."""
        results = await asyncio.gather(
            *(self._mailbox.run_unless_gone(peer, call) for call in calls), return_exceptions=True
        )
        if await self._mailbox.give_up(peer):
            await self._report_lost_peer(t, peer)
        for result in results:
            if isinstance(result, Exception):
                _log.error("a transfer of round %d ended in %r", t, result)

    def _make_outcome(self, t: int, work: Work, verdict: Verdict) -> pb.Outcome:
        mailbox = self._mailbox
        servers = [mailbox.index, *sorted(mailbox.received)]
        importance = verdict.importance.tolist()
        scores = {name: values.tolist() for name, values in verdict.scores.items()}
        refused, mailbox.refused = dict(mailbox.refused), type(mailbox.refused)()
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
            sent=mailbox.sent.values(),
            refused=refused,
        )

    async def _commit(self, server: ServerState, next_round: int, outcome: pb.Outcome) -> None:
        """Save the state, then use it. If the disk is full the round still counts, and the last saved file stays."""
        saved = SavedState(self._mailbox.run, next_round, server, outcome.SerializeToString())
        failpoint("before-edge-commit")
        try:
            await self.run_off_loop(self._store.save, saved)
        except RunFolderError as error:
            _log.error("%s", error)
        failpoint("after-edge-commit")
        self.server, self.next_round, self.last_outcome = server, next_round, outcome

    async def run_off_loop(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run a computation on the worker thread, so that it does not block the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, work, *arguments)
