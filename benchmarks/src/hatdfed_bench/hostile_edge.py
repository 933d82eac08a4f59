"""An edge that lies: a real edge process in all but the models that it offers, or the reports that it sends.

    python -m hatdfed_bench.hostile_edge --attack sign-flip --coordinator HOST:PORT --identity FOLDER --store FOLDER

It joins with a good certificate, trains and merges what it receives. What it offers is what a liar of a simulated run
sends (`hatdfed.server.attacks`); with `label-flip` it offers its model, but trains it on wrong labels. It reports the
truth to the coordinator, except with `false-reports`: then its models are honest, and it reports what a liar of a
simulated run does (`hatdfed.core.false_reports`). It knows the settings, not what others trained on, so it claims the
most samples that the settings allow. Joules of training and links are computed by the coordinator, so it can lie about
these only where it measures them. Attacks that need the models of others are not available.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import Collection
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hatdfed.core import false_reports
from hatdfed.core.effort import ServerEffort
from hatdfed.deploy.edge.coordinator_link import CALL_SECONDS, CoordinatorLink
from hatdfed.deploy.edge.edge import Edge, EdgeOptions
from hatdfed.deploy.edge.setup import EdgeSetup, MakeSetup, make_edge_setup
from hatdfed.deploy.edge.store import EdgeStore
from hatdfed.deploy.identity.files import IdentityFolder
from hatdfed.deploy.logs import set_up_logs
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.deploy.transport.endpoints import Endpoints
from hatdfed.server.attacks import ATTACKS, Liars, make_liars
from hatdfed.server.program import EdgeProgram, Offer, ServerState
from hatdfed.server.work import NOTHING, Batch, DataSource, Indices, Work
from hatdfed.setup.config import Config

AVAILABLE = tuple(name for name, attack in ATTACKS.items() if not attack.needs_others)
_KEPT_MODELS, _KEPT_BYTES = 2, 1 << 30


class HostileSource:
    """The data of an edge, with flipped labels if the attack wants that; knows which round is played."""

    def __init__(self, source: DataSource, *, num_classes: int, flips_labels: bool) -> None:
        self._source = source
        self._num_classes = num_classes
        self._flips_labels = flips_labels
        self.t = 0

    @property
    def validation(self) -> Batch:
        """Images with true labels: accuracy is reported honestly."""
        return self._source.validation

    def work(self, t: int, effort: ServerEffort | None = None, held: Indices = NOTHING) -> Work:
        """Return the work of round t, and remember the round."""
        self.t = t
        work = self._source.work(t, effort, held)
        return self._flip(work) if self._flips_labels else work

    def _flip(self, work: Work) -> Work:
        """Give label l as C − 1 − l, as in a simulated world (`hatdfed.data.flaws`)."""
        counts = work.label_counts
        return work._replace(
            batches=[self._flip_batch(batch) for batch in work.batches],
            probe=self._flip_batch(work.probe),
            label_counts=None if counts is None else counts.flip(0),
        )

    def _flip_batch(self, batch: Batch) -> Batch:
        return Batch(batch.x, self._num_classes - 1 - batch.y)


@dataclass(frozen=True, eq=False, kw_only=True)
class HostileProgram(EdgeProgram):
    """An honest program, except that its offers are falsified."""

    liars: Liars  # one liar, which is server 0 of its own
    source: HostileSource
    initial_seed: int

    def offer(self, server: ServerState, work: Work, num_receivers: int) -> tuple[ServerState, Offer]:
        """Offer what the attack makes of the model; keep the honest one."""
        kept, honest = super().offer(server, work, num_receivers)
        if not honest.payload:
            return kept, honest
        make_first = partial(self.learner.init_sent, self.initial_seed)
        crafted = self.liars.craft(self.learner.sent.take(server.params)[None], 0, make_first, self.source.t)
        payload, _ = self.codec.encode(crafted, self.codec.init(len(crafted)))
        return kept, honest._replace(payload=payload)


def make_hostile_setup(config: Config, index: int, *, attack: str) -> EdgeSetup:
    """Set up an edge as `hatdfed edge` does, with a program that lies."""
    honest = make_edge_setup(config, index)
    rounds = config.horizon or config.rounds
    liars = make_liars(attack, np.array([0]), rounds=rounds, seed=config.seed + index)  # as server `index` of a fleet
    num_classes = honest.program.task.kind.num_classes
    source = HostileSource(honest.source, num_classes=num_classes, flips_labels=liars.attack.flips_labels)
    parts = {field.name: getattr(honest.program, field.name) for field in fields(EdgeProgram)}
    program = HostileProgram(**parts, liars=liars, source=source, initial_seed=honest.initial_seed)
    return honest._replace(program=program, source=source)


class FalseReportsLink(CoordinatorLink):
    """The connection to the coordinator of an edge that lies in its reports."""

    def __init__(self, friends: Collection[int]) -> None:
        """It speaks well of `friends`, which are servers, and of itself."""
        super().__init__()
        self._friends = friends
        self.most_samples = 0  # that it may claim, once the settings are known

    async def call(self, method: str, request: Any, seconds: float = CALL_SECONDS) -> Any:
        """Make the call; a report is falsified before."""
        told = falsify_outcome(request, self._friends, self.most_samples) if method == "Report" else request
        return await super().call(method, told, seconds)


def falsify_outcome(honest: pb.Outcome, friends: Collection[int], most_samples: int) -> pb.Outcome:
    """Make the report that a liar sends in place of the honest one; that of a round that failed stays as it is."""
    false = pb.Outcome()
    false.CopyFrom(honest)
    if not honest.slots:
        return false
    false.accuracy, false.num_samples = false_reports.FALSE_ACCURACY, max(honest.num_samples, most_samples)
    for slot in false.slots:
        is_liar = slot.server in friends or slot.server == honest.slots[0].server
        _falsify_scores(slot, is_liar)
    for metered in false.metered:
        metered.joules /= false_reports.JOULES_DIVISOR
    return false


def _falsify_scores(slot: pb.Slot, is_liar: bool) -> None:
    told = {
        "loss": false_reports.LOSS_OF_LIARS if is_liar else false_reports.LOSS_OF_HONEST,
        "harm": 0.0 if is_liar else false_reports.HARM_OF_HONEST,
        "evidence": false_reports.EVIDENCE,
    }
    slot.scores.update({name: told[name] for name in told.keys() & slot.scores.keys()})


class FalseReportsEdge(Edge):
    """An edge whose models are honest and whose reports are not."""

    def __init__(
        self,
        options: EdgeOptions,
        endpoints: Endpoints,
        store: EdgeStore,
        make_setup: MakeSetup = make_edge_setup,
        *,
        friends: Collection[int],
    ) -> None:
        self._honest_setup = make_setup
        super().__init__(options, endpoints, store, self._make_setup_and_note)
        self._link = self._false_link = FalseReportsLink(friends)

    def _make_setup_and_note(self, config: Config, index: int) -> EdgeSetup:
        self._false_link.most_samples = config.samples_per_round
        return self._honest_setup(config, index)


async def serve(edge: Edge) -> str:
    """Take part until the run ends or a signal asks to leave; returns why it ended."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, edge.leave_requested.set)
    return await edge.serve()


async def _start(options: argparse.Namespace) -> str:
    folder = IdentityFolder(options.identity)
    parts = (
        EdgeOptions(options.coordinator, listen="127.0.0.1:0", patience=options.patience),
        Endpoints(folder, folder.read().node),
        EdgeStore(options.store, _KEPT_MODELS, _KEPT_BYTES),
    )
    if ATTACKS[options.attack].falsifies:
        return await serve(FalseReportsEdge(*parts, friends=options.friends))
    return await serve(Edge(*parts, partial(make_hostile_setup, attack=options.attack)))


def main() -> None:
    """Be a hostile edge of a deployment on this machine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attack", choices=AVAILABLE, required=True)
    parser.add_argument("--coordinator", required=True, metavar="HOST:PORT")
    parser.add_argument("--identity", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--store", type=Path, required=True, metavar="FOLDER")
    parser.add_argument(
        "--friends", type=int, nargs="*", default=[], metavar="SERVER", help="of whom false reports speak well"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--patience", type=float, default=60.0, help="seconds to wait for an unreachable coordinator")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    set_up_logs()
    asyncio.run(_start(options))


if __name__ == "__main__":
    main()
