"""N servers in one process that post each other bytes: slow, obvious, and the reference for every faster fleet.

Messages go through the very `pack` and `unpack` that a network uses. What a receiver refuses is absent from its merge,
as on a real link.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hatdfed.core.delivery import SURE, Delivery
from hatdfed.core.energy.energy_model import EnergyPrices
from hatdfed.core.fleet import FinalAccuracy, Snapshot
from hatdfed.core.round import RoundPlan, RoundReport, make_server_report
from hatdfed.errors import WireError
from hatdfed.server.attacks import Liars
from hatdfed.server.codecs.base import payload_bits
from hatdfed.server.consensus import consensus_distance
from hatdfed.server.exchange import Limits, MessageContext, Received, accept, make_inbox, pack_offer, stack_label_shares
from hatdfed.server.inbox import Inbox
from hatdfed.server.program import (
    EdgeProgram,
    Offer,
    ServerState,
    check_frozen,
    frozen_arrays,
    server_arrays,
    server_from,
)
from hatdfed.server.work import Answers, DataSource, HeldOut, Work, sum_confusion


class MailboxFleet:
    """Servers as objects, links as lists of bytes."""

    def __init__(
        self,
        program: EdgeProgram,
        sources: Sequence[DataSource],
        prices: EnergyPrices,
        test: HeldOut,
        *,
        initial_seeds: Sequence[int],
        codec_name: str = "float32",
        run: str = "",
        channel: Callable[[bytes], bytes] = bytes,
        liars: Liars | None = None,
        delivery: Delivery = SURE,
    ) -> None:
        self._program = program
        self._sources = sources
        self._prices = prices
        self._test = test
        self._mark = MessageContext(run, codec_name)
        self._channel = channel
        self._liars = liars
        self._delivery = delivery
        self._initial_seeds = initial_seeds
        self._servers = [program.start(seed) for seed in initial_seeds]
        self._before: tuple[int, list[ServerState]] | None = None  # the last round played, and the servers before it
        self.refused: Counter[str] = Counter()

    @property
    def num_servers(self) -> int:
        """N."""
        return len(self._sources)

    @property
    def num_params(self) -> int:
        """P: numbers of a model that are sent."""
        return self._program.learner.num_params

    @property
    def computed_by(self) -> dict[str, str]:
        """One server after another, in torch."""
        return {"fleet": "mailbox", "device": "cpu", "kernels": "one by one"}

    @property
    def models(self) -> Tensor:
        """[N, M] as they are now."""
        return torch.stack([server.params for server in self._servers])

    def validation_accuracy(self) -> NDArray[np.float64]:
        """[N] on each server's validation data."""
        return np.array(
            [
                self._program.learner.accuracy(server.params, source.validation)
                for server, source in zip(self._servers, self._sources, strict=True)
            ]
        )

    def final_accuracy(self) -> FinalAccuracy:
        """On the test data, once, after the last round."""
        learner = self._program.learner
        metrics = self._program.metrics
        common = [learner.measure(server.params, self._test.data, metrics) for server in self._servers]
        scores = torch.stack([each.scores for each in common]).numpy()
        measures = torch.stack([each.measures.double().mean(dim=0) for each in common]).numpy()
        counted = [each.confusion for each in common if each.confusion is not None]
        figures = [each for found in common for each in found.metrics]
        answers = Answers(scores, measures, confusion=sum_confusion(counted), metrics=figures)
        if self._test.kind_of is None:
            return self._test.accuracy(answers)
        own = [learner.scores(server.params, self._test.own_data(i)) for i, server in enumerate(self._servers)]
        return self._test.accuracy(answers._replace(own=torch.stack(own).numpy()))

    def run_round(self, plan: RoundPlan) -> RoundReport:
        """Train, exchange, merge, measure."""
        before = self._before[1] if self._before and self._before[0] == plan.t else self._servers
        everyone = range(self.num_servers)
        works = [source.work(plan.t, plan.effort_of(i), before[i].held) for i, source in enumerate(self._sources)]
        trained = [self._train(before[i], works[i], plan.t) for i in everyone]
        servers, offers = zip(*(self._offer(plan, i, trained[i], works[i]) for i in everyone), strict=True)
        offers = tuple(self._with_lies(plan.t, trained, offers))
        exchange = self._exchange(plan, offers, self._find_lost(plan, works))
        mailboxes = exchange.mailboxes
        servers = tuple(self._program.take_back(servers[i], offers[i], exchange.failed[i]) for i in everyone)
        inboxes = [self._make_inbox(plan, i, servers[i], offers[i], mailboxes[i]) for i in everyone]
        labels = [stack_label_shares(offers[i], mailboxes[i]) for i in everyone]
        merged = [self._program.merge(servers[i], inboxes[i], works[i], labels[i]) for i in everyone]
        self.refused.update(verdict.trouble for _, verdict in merged if verdict.trouble)
        self._before = (plan.t, before)
        self._servers = [server for server, _ in merged]
        report = RoundReport(
            tuple(
                make_server_report(
                    plan,
                    self._prices,
                    i,
                    works[i],
                    accuracy=verdict.accuracy,
                    senders=np.array([i, *sorted(mailboxes[i])]),
                    importance=verdict.importance.double().numpy(),
                    scores={name: score.double().numpy() for name, score in verdict.scores.items()},
                    compression=self._share(offers[i]),
                    training_loss=verdict.training_loss,
                    validation_loss=verdict.validation_loss,
                    metrics=verdict.metrics,
                )
                for i, (_, verdict) in enumerate(merged)
            ),
            consensus_distance=float(consensus_distance(self._program.learner.sent.take(self.models))),
        )
        return report if self._liars is None else self._liars.report(report)

    def snapshot(self) -> Snapshot:
        """Models, optimisers, codec memories, masses and samples held of all servers."""
        arrays: dict[str, NDArray[Any]] = {}
        for i, server in enumerate(self._servers):
            held = server_arrays(server) | frozen_arrays(self._program.learner)
            arrays |= {f"{i}.{name}": array for name, array in held.items()}
        return arrays

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to what `snapshot` remembers."""
        self._before = None
        parts: list[dict[str, NDArray[Any]]] = [{} for _ in range(self.num_servers)]
        for name, array in snapshot.items():
            server, _, what = name.partition(".")
            parts[int(server)][what] = array
        for part in parts:
            check_frozen(part.get("frozen"), self._program.learner)
        self._servers = [server_from(part) for part in parts]

    def close(self) -> None:
        """Nothing to give back."""

    def _train(self, server: ServerState, work: Work, t: int) -> ServerState:
        trained, trouble = self._program.keep_usable(server, self._program.train(server, work, t))
        if trouble:
            self.refused[trouble] += 1
        return trained

    def _offer(self, plan: RoundPlan, i: int, server: ServerState, work: Work) -> tuple[ServerState, Offer]:
        return self._program.offer(server, work, len(plan.draw.topology.receivers(i)))

    def _with_lies(self, t: int, trained: Sequence[ServerState], offers: Sequence[Offer]) -> Sequence[Offer]:
        """The offers of all servers, those of liars replaced by what they send instead."""
        if self._liars is None:
            return offers
        told, codec, learner = list(offers), self._program.codec, self._program.learner
        models = torch.stack([learner.sent.take(server.params) for server in trained])
        for i in self._liars.servers.tolist():
            if offers[i].payload:
                make_first = partial(learner.init_sent, self._initial_seeds[i])
                crafted = self._liars.craft(models, i, make_first, t)
                payload, _ = codec.encode(crafted, codec.init(self.num_params))
                told[i] = offers[i]._replace(payload=payload)
        return told

    def _exchange(self, plan: RoundPlan, offers: Sequence[Offer], lost: Set[tuple[int, int]]) -> _Exchange:
        """Post every offer along the drawn links; `lost` are receiver and sender of those that do not arrive."""
        done = _Exchange([{} for _ in offers], Counter())
        codec, limits = self._program.codec, self._limits
        for sender, offer in enumerate(offers):
            receivers = plan.draw.topology.receivers(sender)
            data = pack_offer(offer, self._mark, t=plan.t, sender=sender) if len(receivers) else b""
            for receiver in receivers:
                if (receiver, sender) in lost:
                    done.failed[sender] += 1
                    continue
                sent = self._channel(data)
                try:
                    received = accept(sent, self._mark, t=plan.t, sender=sender, codec=codec, limits=limits)
                except WireError as error:
                    self.refused[error.reason] += 1
                    done.failed[sender] += 1
                    continue
                done.mailboxes[receiver][sender] = received
        return done

    def _make_inbox(
        self, plan: RoundPlan, i: int, server: ServerState, own: Offer, mailbox: Mapping[int, Received]
    ) -> Inbox:
        received = [mailbox[sender].model for sender in sorted(mailbox)]
        models = torch.stack([self._program.learner.sent.take(server.params), *received])
        return make_inbox(models, server.mass, own, mailbox, plan.draw.find_mixing_row(i), i)

    def _find_lost(self, plan: RoundPlan, works: Sequence[Work]) -> set[tuple[int, int]]:
        """Receiver and sender of the messages that the network loses, or that come after the deadline."""
        pairs = plan.draw.topology.pairs
        return set(map(tuple, pairs[self._delivery.find_lost(plan, works)].tolist()))

    @property
    def _limits(self) -> Limits:
        program = self._program
        return Limits(self.num_params, program.learner.largest_norm, num_labels=program.num_labels)

    def _share(self, offer: Offer) -> float:
        """What a message takes of a float32 model."""
        return payload_bits(offer.payload) / (32 * self.num_params)


class _Exchange(NamedTuple):
    """What came of a round's posts."""

    mailboxes: list[dict[int, Received]]  # by receiver, then sender
    failed: Counter[int]  # how often each sender failed
