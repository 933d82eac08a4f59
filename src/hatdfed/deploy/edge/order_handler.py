"""Handles the coordinator's orders at an edge that is ready: plays rounds one at a time, and sends heartbeats."""

from __future__ import annotations

import asyncio
import logging
import math

from hatdfed.core.fleet import MOST_CONFUSED, FinalAccuracy
from hatdfed.deploy.edge.coordinator_link import CALL_SECONDS, CoordinatorLink
from hatdfed.deploy.edge.peers import Peers
from hatdfed.deploy.edge.round_mailbox import RoundMailbox
from hatdfed.deploy.edge.round_runner import RoundRunner, read_effort
from hatdfed.deploy.edge.setup import EdgeSetup
from hatdfed.deploy.identity.deny import DeniedPeers
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.server.work import Answers, HeldOut

_log = logging.getLogger("hatdfed.deploy.edge")
_PROBES_AT_ONCE = 64  # that are answered together


class OrderHandler:
    """Handles orders as they come; rounds are played in a task of their own, so that further orders are read."""

    def __init__(
        self,
        setup: EdgeSetup,
        runner: RoundRunner,
        mailbox: RoundMailbox,
        peers: Peers,
        link: CoordinatorLink,
        denied: DeniedPeers,
    ) -> None:
        self.setup = setup
        self.runner = runner
        self.mailbox = mailbox
        self.peers = peers
        self.failed_rounds = 0  # since the start
        self._link = link
        self._denied = denied
        self._newest: pb.RoundOrder | None = None  # it may come while an older round is played
        self._playing: asyncio.Task[None] | None = None
        self._to_probe: dict[int, pb.Neighbour] = {}
        self._probing: asyncio.Task[None] | None = None
        self._heartbeat: asyncio.Task[None] | None = None

    def start_heartbeat(self, beat_seconds: float) -> None:
        """Send heartbeats from now on."""
        self._heartbeat = asyncio.ensure_future(self._send_heartbeats(beat_seconds))

    async def stop(self) -> None:
        """Cancel all tasks and close all connections to peers."""
        tasks = [task for task in (self._playing, self._heartbeat, self._probing) if task is not None]
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
            accuracy=await self.runner.find_accuracy(),
            round=self.runner.next_round,
            relayed=self.peers.is_relayed,
            forward_flops=self.setup.forward_flops,
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
                self._to_probe |= {peer.index: peer for peer in order.probe.peers}
                if self._probing is None or self._probing.done():
                    self._probing = asyncio.ensure_future(self._probe())
            case "finish":
                await self._send_final_figures()
            case "stop":
                return "the coordinator has ended"
            case "leave":
                return f"dismissed: {order.leave}"
            case _:
                _log.warning("an order that this version does not know was ignored")
        return None

    async def go_back_if_ahead(self, t: int) -> None:
        """Go back to round t, which the coordinator plays next, if this edge has played later rounds already.

        A coordinator that was only restarted is one round behind at most: it orders that round again.
        """
        if t + 1 < self.runner.next_round:
            await self._go_back(t)

    async def _go_back(self, t: int) -> None:
        self._newest = None
        if self._playing is not None:
            await self.mailbox.close()  # nobody else plays the round that this edge may be in
            await self._playing
        await self.mailbox.forget_rounds()
        await self.runner.go_back(t)

    async def _start_round(self, order: pb.RoundOrder) -> None:
        """Start a round, or report it again if it was played already."""
        if order.round < self.runner.next_round:
            last = self.runner.last_outcome
            if last is None or last.round != order.round:
                return
            if is_report_of(last, order):
                await self._send_report(last)
                return
            if last.epoch == self._link.epoch:
                return  # an order that comes late: only a later start of the coordinator draws other links
            await self._go_back(order.round)  # a restored coordinator has drawn other links for this round
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
                self.failed_rounds += 1
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

    async def _probe(self) -> None:
        """Probe all peers that are to be probed, also by orders that come meanwhile: of one peer, as the last says."""
        while self._to_probe:
            peers = list(self._to_probe.values())[:_PROBES_AT_ONCE]
            for peer in peers:
                del self._to_probe[peer.index]
            yes, no = await self.peers.probe(peers)
            await self._link.call("Reached", pb.Reachable(epoch=self._link.epoch, yes=yes, no=no))

    async def _send_final_figures(self) -> None:
        """Measure on the test set, only now, and report; if the connection is lost, the coordinator asks again."""
        if self._playing is not None:
            await self.mailbox.close()  # whatever round this edge still plays is over for all others
            await self._playing
        setup, runner = self.setup, self.runner
        figures = pb.FinalFigures(epoch=self._link.epoch, validation_accuracy=await runner.measure_accuracy())
        if (private := await runner.run_off_loop(runner.count_private_rounds)) is not None:
            figures.private_rounds = private
        if setup.test is not None:
            measured = await runner.run_off_loop(self._measure_test, setup.test)
            figures.has_test = True
            figures.own_accuracy = float(measured.own[0])
            figures.accuracy = float(measured.overall[0])
            personal = float(measured.personal[0])
            if math.isfinite(personal):
                figures.personal_accuracy = personal
            figures.without_classes = not math.isfinite(personal)
            known = {name: float(values[0]) for name, values in measured.metrics.items()}
            figures.metrics.update({name: value for name, value in known.items() if math.isfinite(value)})
            if measured.confusion is not None and len(measured.confusion) <= MOST_CONFUSED:
                figures.confusion.extend(measured.confusion.ravel().tolist())
        await self._link.call("Final", figures)

    def _measure_test(self, test: HeldOut) -> FinalAccuracy:
        model, learner = self.runner.server.params, self.setup.program.learner
        common = learner.measure(model, test.data, self.setup.program.metrics)
        own = learner.scores(model, test.own_data(0))
        measures = common.measures.double().mean(dim=0)[None]
        confusion = None if common.confusion is None else common.confusion.numpy()
        scores = common.scores.numpy()[None]
        return test.accuracy(Answers(scores, measures.numpy(), own.numpy()[None], confusion, common.metrics))

    async def _send_heartbeats(self, seconds: float) -> None:
        while True:
            pulse = pb.Pulse(
                epoch=self._link.epoch,
                round=self.runner.next_round,
                doing=self.runner.doing,
                denied=self._denied.digest,
                relayed=self.peers.is_relayed,
            )
            # A heartbeat that takes longer than until the next one is useless.
            heard = await self._link.call("Beat", pulse, max(1.0, 2 * seconds))
            if heard is not None and heard.HasField("denied"):
                self._denied.update(heard.denied)
            await asyncio.sleep(seconds)


def is_report_of(outcome: pb.Outcome, order: pb.RoundOrder) -> bool:
    """Return whether a report can be one of this order: it names no link, and no training, that the order has not."""
    effort = read_effort(order)
    trained, asked = outcome.num_samples > 0, outcome.devices_online > 0
    if effort is not None and ((trained and not effort.passes) or (asked and not effort.asks)):
        return False
    senders, receivers = {peer.index for peer in order.senders}, {peer.index for peer in order.receivers}
    return {slot.server for slot in outcome.slots[1:]} <= senders and {s.receiver for s in outcome.sent} <= receivers
