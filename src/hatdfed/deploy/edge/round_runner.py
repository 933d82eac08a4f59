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

from hatdfed.core.effort import ServerEffort
from hatdfed.core.energy.energy_model import Cause
from hatdfed.deploy import history
from hatdfed.deploy.edge.open_round_files import KeptRound, OpenRoundFiles
from hatdfed.deploy.edge.peers import Peers
from hatdfed.deploy.edge.private_rounds import PrivateRounds
from hatdfed.deploy.edge.round_mailbox import RoundMailbox
from hatdfed.deploy.edge.round_meter import RoundMeter
from hatdfed.deploy.edge.store import EdgeStore, SavedState, set_aside_later
from hatdfed.deploy.failpoints import failpoint
from hatdfed.deploy.monitoring.time_by_kind import TimeByKind
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.errors import RunFolderError, WireError
from hatdfed.runs.process_memory import tidy_freed_memory
from hatdfed.server.consensus import sketch
from hatdfed.server.exchange import stack_label_shares
from hatdfed.server.program import EdgeProgram, ServerState, Verdict
from hatdfed.server.work import DataSource, Work

_log = logging.getLogger("hatdfed.deploy.edge")
_KEEP_SECONDS = 1.0
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
        meter: RoundMeter | None = None,
    ) -> None:
        self._program = program
        self._source = source
        self._mailbox = mailbox
        self._peers = peers
        self._store = store
        self._files = OpenRoundFiles(store.folder / "open-round")
        mailbox.keep_received = self._files.keep_received
        self._report_lost_peer = report_lost_peer
        self._meter = meter or RoundMeter(None)
        self._private_rounds = PrivateRounds(store.folder)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="compute")
        self.server: ServerState
        self.next_round: int
        self.last_outcome: pb.Outcome | None
        self._resume(saved)
        self.doing = "waiting for a round"
        self.phases = TimeByKind("training", "exchange", "merging")
        self.played_rounds = 0  # since the start
        self.round_seconds: float | None = None  # of the last one

    async def play(self, order: pb.RoundOrder) -> pb.Outcome:
        """Play one round; the outcome is committed before it is reported."""
        t, began = order.round, time.monotonic()
        until = began + _EXCHANGE_SHARE * order.seconds
        mailbox, program = self._mailbox, self._program
        kept = await self._begin(order)
        self._begin_phase("training", f"training for round {t + 1}")
        work: Work = await self.run_off_loop(self._source.work, t, read_effort(order), self.server.held)
        try:
            server = mailbox.allocate_models(kept.trained or await self._train_off_loop(work, t))
            self._worker.submit(tidy_freed_memory)
            failpoint("trained")
            trained = server
            server, offer = await self.run_off_loop(program.offer, server, work, len(order.receivers))
            await mailbox.offer(offer)
            if kept.trained is None:  # while the model is sent
                self._worker.submit(self._files.keep_trained, mailbox.run, t, trained)
            del trained
            self._begin_phase("exchange", f"exchanging models of round {t + 1}")
            await self._measure(Cause.EXCHANGE)
            await self._exchange_models(order, until)
            self._begin_phase("merging", f"merging round {t + 1}")
            await self._measure(None)
            self._worker.submit(tidy_freed_memory)
            server = program.take_back(server, offer, mailbox.failed_sends)
            inbox = await self.run_off_loop(mailbox.make_inbox, server, offer)
            label_shares = stack_label_shares(offer, mailbox.received)
            del offer
            server, verdict = await self.run_off_loop(program.merge, server, inbox, work, label_shares)
            self._count(verdict.trouble, t)
            self._note_merge(t, server)
            sketched = await self.run_off_loop(sketch, program.learner.sent.take(server.params)[None])
            outcome = self._make_outcome(t, work, verdict)
            outcome.sketch.extend(sketched[0].tolist())
            mailbox.clear()
            del inbox
            await self._commit(server, t + 1, outcome)
        except Exception:
            self._meter.take()  # nobody is told of this round
            await self._recover()
            await self.run_off_loop(self._files.clear)
            raise
        finally:
            self.phases.end()
        self._worker.submit(tidy_freed_memory)
        self.doing = "waiting for a round"
        self.played_rounds, self.round_seconds = self.played_rounds + 1, time.monotonic() - began
        return outcome

    async def _measure(self, cause: Cause | None) -> None:
        """Measure the energy of what follows, until the next call; None: nothing."""
        if self._meter.is_there:  # a meter may be slow to answer
            await asyncio.to_thread(self._meter.end if cause is None else partial(self._meter.begin, cause))

    def _begin_phase(self, phase: str, doing: str) -> None:
        self.phases.begin(phase)
        self.doing = doing  # rounds are counted from 1, as people see them elsewhere

    async def _begin(self, order: pb.RoundOrder) -> KeptRound:
        """Begin a round, or go on with it after a restart; returns what is left of it."""
        mailbox, t = self._mailbox, order.round
        kept = await self.run_off_loop(self._files.begin, mailbox.run, t)
        receivers, senders = {peer.index for peer in order.receivers}, {peer.index for peer in order.senders}
        mailbox.is_resumed = kept.is_resumed
        await mailbox.begin(order, {i: record for i, record in kept.sent.items() if i in receivers})
        for sender in sorted(kept.received.keys() & senders):
            try:
                message = bytearray(await self.run_off_loop(kept.received[sender].read_bytes))
                await mailbox.deliver(t, sender, await mailbox.check(message, t, sender))
            except (OSError, WireError) as error:
                _log.warning("the model of server %d that was kept cannot be used: %s", sender, error)
        return kept

    async def _train_off_loop(self, work: Work, t: int) -> ServerState:
        await self._measure(Cause.TRAINING)
        server, trouble = await self.run_off_loop(self._train, work, t)
        await self._measure(None)
        self._count(trouble, t)
        return server

    def _train(self, work: Work, t: int) -> tuple[ServerState, str]:
        if self._program.learner.private is not None and work.batches:
            self._private_rounds.add(self._mailbox.run)
        # The optimiser's moments are overwritten: a small machine has no memory for two sets of them.
        trained = self._program.train(self.server, work, t, spend=True)
        return self._program.keep_usable(self.server, trained)

    def _count(self, trouble: str, t: int) -> None:
        """A model of one's own that could not be used is reported like those that were refused."""
        if trouble:
            self._mailbox.count_refusal(trouble)
            _log.warning("the own model of round %d cannot be used: %s", t, trouble)

    def count_private_rounds(self) -> int | None:
        """Return in how many rounds this edge trained privately; None if the run is not private."""
        return None if self._program.learner.private is None else self._private_rounds.read(self._mailbox.run)

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

    async def go_back(self, t: int) -> None:
        """Go back to the state that round t is played from, or play it with the present model if that was not kept.

        Later states are set aside. The coordinator was restored from a backup, and knows nothing of these rounds.
        """
        store, before = self._store, self.next_round
        saved = await self.run_off_loop(store.load_round, self._mailbox.run, t)
        await self.run_off_loop(set_aside_later, store, t)
        if saved is None:
            _log.warning("goes back from round %d to round %d, with its present model: no older one is kept", before, t)
            saved = SavedState(self._mailbox.run, t, self.server, b"")
            await self.run_off_loop(store.save, saved)
        else:
            _log.warning("goes back from round %d to round %d, with the model that it had then", before, t)
        await self.run_off_loop(self._files.clear)
        self._resume(saved)

    def _resume(self, saved: SavedState) -> None:
        self._first_accuracy: float | None = None  # of this model, once measured
        self.server, self.next_round = saved.server, saved.round
        self.last_outcome = pb.Outcome.FromString(saved.outcome) if saved.outcome else None

    async def measure_accuracy(self) -> float:
        """Measure the current model on validation data."""
        return await self.run_off_loop(self._program.learner.accuracy, self.server.params, self._source.validation)

    async def find_accuracy(self) -> float:
        """Return the accuracy of the current model; it is not measured again when an edge reconnects during a round."""
        last = self.last_outcome
        if last is not None and 0 <= last.accuracy <= 1:
            return float(last.accuracy)
        if self._first_accuracy is None:
            self._first_accuracy = await self.measure_accuracy()
        return self._first_accuracy

    def close(self) -> None:
        """Shut the worker thread down."""
        self._worker.shutdown(wait=False, cancel_futures=True)

    async def _exchange_models(self, order: pb.RoundOrder, until: float) -> None:
        t, mailbox = order.round, self._mailbox
        push, pull = self._peers.push, self._peers.pull
        calls: dict[int, list[Call]] = defaultdict(list)
        for peer in order.receivers:
            calls[peer.index] += [partial(push, peer, t, until)] * (peer.dial and peer.index not in mailbox.delivered)
        for peer in order.senders:
            calls[peer.index] += [partial(pull, peer, t, until)] * (peer.dial and peer.index not in mailbox.received)
        tasks = [asyncio.ensure_future(self._call(t, peer, those)) for peer, those in calls.items() if those]
        keeping = asyncio.ensure_future(self._keep_sent())
        try:
            await mailbox.wait_until_complete(until)
            if tasks:
                await asyncio.wait(tasks, timeout=max(0.0, until - time.monotonic()))
        finally:
            await mailbox.close()
            for task in (keeping, *tasks):
                task.cancel()
            await asyncio.gather(keeping, *tasks, return_exceptions=True)

    async def _keep_sent(self) -> None:
        """Keep on disk what was sent, again and again: a restart neither forgets it nor sends it once more."""
        while True:
            await asyncio.sleep(_KEEP_SECONDS)
            if self._mailbox.sent:
                await asyncio.to_thread(self._files.keep_sent, dict(self._mailbox.sent))

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
        refused, by_sender = mailbox.take_refusals()
        return pb.Outcome(
            round=t,
            accuracy=verdict.accuracy,
            num_samples=work.num_samples,
            devices_online=work.devices_online,
            num_sent=work.num_sent,
            slots=[
                pb.Slot(
                    server=server,
                    importance=importance[slot],
                    scores={name: values[slot] for name, values in scores.items()},
                )
                for slot, server in enumerate(servers)
            ],
            sent=[record.sent for record in mailbox.sent.values()],
            refused=refused,
            metered=self._meter.take(),
            training_loss=verdict.training_loss,
            validation_loss=verdict.validation_loss,
            metrics={name: value for name, value in verdict.metrics.items() if value is not None},
            refusals=by_sender,
        )

    async def _commit(self, server: ServerState, next_round: int, outcome: pb.Outcome) -> None:
        """Save the state, then use it. If the disk is full the round still counts, and the last saved file stays."""
        saved = SavedState(self._mailbox.run, next_round, server, outcome.SerializeToString())
        failpoint("before-edge-commit")
        self._note_save("save", saved)  # a process that is killed in between may have saved it or not
        try:
            await self.run_off_loop(self._store.save, saved)
        except RunFolderError as error:
            _log.error("%s", error)
            history.note("alarm", self._mailbox.index, sentence=str(error))
        else:
            self._note_save("commit", saved)
            await self.run_off_loop(self._files.clear)
        failpoint("after-edge-commit")
        self.server, self.next_round, self.last_outcome = server, next_round, outcome

    def _note_merge(self, t: int, server: ServerState) -> None:
        if history.is_kept():
            mailbox, finite = self._mailbox, bool(server.params.isfinite().all())
            history.note("merge", mailbox.index, round=t, senders=sorted(mailbox.received), finite=finite)

    def _note_save(self, what: str, saved: SavedState) -> None:
        if history.is_kept():
            digest = history.digest_numbers(saved.server.params)
            history.note(what, self._mailbox.index, round=saved.round, model=digest)

    async def run_off_loop(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run a computation on the worker thread, so that it does not block the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, work, *arguments)


def read_effort(order: pb.RoundOrder) -> ServerEffort | None:
    """How much this edge is to train in a round; None: as the settings say."""
    if not order.HasField("passes"):
        return None
    return ServerEffort(max(0, order.passes), asks=order.asks if order.HasField("asks") else True)
