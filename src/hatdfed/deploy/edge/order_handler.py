"""What an edge does once it has everything: obeys orders, one round at a time, and says that it is alive."""

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
    """Orders are obeyed in the order in which they come; playing a round does not keep the edge from listening."""

    def __init__(
        self, outfit: EdgeSetup, player: RoundRunner, exchange: RoundMailbox, peers: Peers, line: CoordinatorLink
    ) -> None:
        self.outfit = outfit
        self.player = player
        self.exchange = exchange
        self.peers = peers
        self._line = line
        self._wanted: pb.RoundOrder | None = None  # the newest; it may come while an older one is played
        self._playing: asyncio.Task[None] | None = None
        self._probing: set[asyncio.Task[None]] = set()
        self._beating: asyncio.Task[None] | None = None

    def begin(self, beat_seconds: float) -> None:
        """From now on signs of life are given."""
        self._beating = asyncio.ensure_future(self._beat(beat_seconds))

    async def end(self) -> None:
        """Stop whatever is going on."""
        tasks = [task for task in (self._playing, self._beating, *self._probing) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.peers.close()
        self.player.close()

    async def report_ready(self) -> None:
        """Everything is here: the coordinator may count on this edge."""
        learner = self.outfit.program.learner
        prepared = pb.Prepared(
            epoch=self._line.epoch,
            num_params=learner.num_params,
            bits_per_sample=self.outfit.bits_per_sample,
            layout=self.outfit.layout,
            message_share=self.outfit.message_share,
            accuracy=await self.player.accuracy(),
            round=self.player.next_round,
        )
        await self._line.stub.Ready(prepared, timeout=CALL_SECONDS)

    async def obey(self, order: pb.Order) -> str | None:
        """Do as told; returns why to go, if that is the order."""
        match order.WhichOneof("what"):
            case "round":
                await self._round(order.round)
            case "missing":
                await self.exchange.excuse(order.missing.round, order.missing.servers, order.missing.silent)
            case "probe":
                task = asyncio.ensure_future(self._probe(list(order.probe.peers)))
                self._probing.add(task)
                task.add_done_callback(self._probing.discard)
            case "finish":
                await self._final()
            case "stop":
                return "the coordinator has ended"
            case "leave":
                return f"sent away: {order.leave}"
            case _:
                _log.warning("an order that this version does not know was left out")
        return None

    async def _round(self, order: pb.RoundOrder) -> None:
        """Play it; say again what came of it, if that has happened already."""
        if order.round < self.player.next_round:
            last = self.player.last_outcome
            if last is not None and last.round == order.round:
                await self._tell(last)
            return
        is_playing = self._playing is not None and not self._playing.done()
        if is_playing and self._wanted is not None and order.round <= self._wanted.round:
            return
        self._wanted = order
        if is_playing:
            await self.exchange.close()  # the round before is over for everybody else
        else:
            self._playing = asyncio.ensure_future(self._play())

    async def _play(self) -> None:
        """Rounds, until there is no newer one."""
        while (order := self._wanted) is not None and order.round >= self.player.next_round:
            try:
                outcome = await self.player.play(order)
            except Exception:  # noqa: BLE001 (whatever it is, the edge must stay to be asked again)
                _log.exception("round %d failed here; the model stays as it was", order.round)
                # A report that nobody can believe says that there will be none: no need to wait for this edge.
                await self._tell(pb.Outcome(round=order.round, accuracy=math.nan))
                if order is self._wanted:
                    return
                continue
            await self._tell(outcome)

    async def _tell(self, outcome: pb.Outcome) -> None:
        """The report; a coordinator that is away hears it when it asks for the round again."""
        outcome.epoch = self._line.epoch
        answer = await self._line.ask("Report", outcome)
        if answer is not None and not answer.accepted:
            _log.warning("the report of round %d was not taken: %s", outcome.round, answer.reason)

    async def _probe(self, peers: list[pb.Neighbour]) -> None:
        yes, no = await self.peers.probe(peers)
        await self._line.ask("Reached", pb.Reachable(epoch=self._line.epoch, yes=yes, no=no))

    async def _final(self) -> None:
        """The test set is read once, now. If the line is cut meanwhile, the coordinator will ask again."""
        if self._playing is not None:
            await self.exchange.close()  # whatever round this edge is still in, the others have ended it
            await self._playing
        outfit, player = self.outfit, self.player
        figures = pb.FinalFigures(epoch=self._line.epoch, validation_accuracy=await player.accuracy())
        if outfit.test is not None:
            correct = await player.off_loop(outfit.program.learner.correct, player.server.params, outfit.test.data)
            measured = outfit.test.accuracy(correct.numpy()[None])
            figures.has_test = True
            figures.accuracy, figures.personal_accuracy = float(measured.overall[0]), float(measured.personal[0])
        await self._line.ask("Final", figures)

    async def _beat(self, seconds: float) -> None:
        while True:
            pulse = pb.Pulse(epoch=self._line.epoch, round=self.player.next_round, doing=self.player.doing)
            # A sign of life that takes longer than the next one is none.
            await self._line.ask("Beat", pulse, max(1.0, 2 * seconds))
            await asyncio.sleep(seconds)
