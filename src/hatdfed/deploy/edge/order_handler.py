"""Handles the coordinator's orders at an edge that is ready: plays rounds one at a time, and sends heartbeats."""

from __future__ import annotations

import asyncio
import logging
import math

from hatdfed.deploy.edge.coordinator_link import CALL_SECONDS, CoordinatorLink
from hatdfed.deploy.edge.peers import Peers
from hatdfed.deploy.edge.round_mailbox import RoundMailbox
from hatdfed.deploy.edge.round_runner import RoundRunner
from hatdfed.deploy.edge.setup import EdgeSetup
from hatdfed.deploy.protocol import hatdfed_pb2 as pb

_log = logging.getLogger("hatdfed.deploy.edge")


class OrderHandler:
    """Handles orders as they come; rounds are played in a task of their own, so that further orders are read."""

    def __init__(
        self, setup: EdgeSetup, runner: RoundRunner, mailbox: RoundMailbox, peers: Peers, link: CoordinatorLink
    ) -> None:
        self.setup = setup
        self.runner = runner
        self.mailbox = mailbox
        self.peers = peers
        self._link = link
        self._newest: pb.RoundOrder | None = None  # it may come while an older round is played
        self._playing: asyncio.Task[None] | None = None
        self._probing: set[asyncio.Task[None]] = set()
        self._heartbeat: asyncio.Task[None] | None = None

    def start_heartbeat(self, beat_seconds: float) -> None:
        """Send heartbeats from now on."""
        self._heartbeat = asyncio.ensure_future(self._send_heartbeats(beat_seconds))

    async def stop(self) -> None:
        """Cancel all tasks and close all connections to peers."""
        tasks = [task for task in (self._playing, self._heartbeat, *self._probing) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.peers.close()
        self.runner.close()

    async def report_ready(self) -> None:
        """Tell the coordinator that this edge can play rounds."""
        learner = self.setup.program.learner
        prepared = pb.Prepared(
            epoch=self._link.epoch,
            num_params=learner.num_params,
            bits_per_sample=self.setup.bits_per_sample,
            layout=self.setup.layout,
            message_share=self.setup.message_share,
            accuracy=await self.runner.measure_accuracy(),
            round=self.runner.next_round,
        )
        await self._link.stub.Ready(prepared, timeout=CALL_SECONDS)

    async def handle(self, order: pb.Order) -> str | None:
        """Carry out an order; returns why, if the order is to end."""
        match order.WhichOneof("what"):
            case "round":
                await self._start_round(order.round)
            case "missing":
                await self.mailbox.mark_gone(order.missing.round, order.missing.servers, order.missing.silent)
            case "probe":
                task = asyncio.ensure_future(self._probe(list(order.probe.peers)))
                self._probing.add(task)
                task.add_done_callback(self._probing.discard)
            case "finish":
                await self._send_final_figures()
            case "stop":
                return "the coordinator has ended"
            case "leave":
                return f"dismissed: {order.leave}"
            case _:
                _log.warning("an order that this version does not know was ignored")
        return None

    async def _start_round(self, order: pb.RoundOrder) -> None:
        """Start a round, or report it again if it was played already."""
        if order.round < self.runner.next_round:
            last = self.runner.last_outcome
            if last is not None and last.round == order.round:
                await self._send_report(last)
            return
        is_playing = self._playing is not None and not self._playing.done()
        if is_playing and self._newest is not None and order.round <= self._newest.round:
            return
        self._newest = order
        if is_playing:
            await self.mailbox.close()  # the round before is over for everybody else
        else:
            self._playing = asyncio.ensure_future(self._play())

    async def _play(self) -> None:
        """Play rounds until there is no newer one."""
        while (order := self._newest) is not None and order.round >= self.runner.next_round:
            try:
                outcome = await self.runner.play(order)
            except Exception:  # noqa: BLE001 (whatever it is, the edge must go on to further rounds)
                _log.exception("round %d failed here; the model stays as it was", order.round)
                # An invalid report tells the coordinator that none will follow, so that it does not wait.
                await self._send_report(pb.Outcome(round=order.round, accuracy=math.nan))
                if order is self._newest:
                    return
                continue
            await self._send_report(outcome)

    async def _send_report(self, outcome: pb.Outcome) -> None:
        """Report a round; a coordinator that is away gets the report when it orders the round again."""
        outcome.epoch = self._link.epoch
        answer = await self._link.call("Report", outcome)
        if answer is not None and not answer.accepted:
            _log.warning("the report of round %d was not taken: %s", outcome.round, answer.reason)

    async def _probe(self, peers: list[pb.Neighbour]) -> None:
        yes, no = await self.peers.probe(peers)
        await self._link.call("Reached", pb.Reachable(epoch=self._link.epoch, yes=yes, no=no))

    async def _send_final_figures(self) -> None:
        """Measure on the test set, only now, and report; if the connection is lost, the coordinator asks again."""
        if self._playing is not None:
            await self.mailbox.close()  # whatever round this edge still plays is over for all others
            await self._playing
        setup, runner = self.setup, self.runner
        figures = pb.FinalFigures(epoch=self._link.epoch, validation_accuracy=await runner.measure_accuracy())
        if setup.test is not None:
            correct = await runner.run_off_loop(setup.program.learner.correct, runner.server.params, setup.test.data)
            measured = setup.test.accuracy(correct.numpy()[None])
            figures.has_test = True
            figures.accuracy, figures.personal_accuracy = float(measured.overall[0]), float(measured.personal[0])
        await self._link.call("Final", figures)

    async def _send_heartbeats(self, seconds: float) -> None:
        while True:
            pulse = pb.Pulse(epoch=self._link.epoch, round=self.runner.next_round, doing=self.runner.doing)
            # A heartbeat that takes longer than until the next one is useless.
            await self._link.call("Beat", pulse, max(1.0, 2 * seconds))
            await asyncio.sleep(seconds)
