"""The edge server: the whole of phase II for one server (DCMU, Algorithm 3).

Three pure steps, cut where the network is: `train`, `offer`, then the exchange that somebody else carries out, then
`merge`. No socket, clock, disk or global random state, no number of servers and no server number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hatdfed.core.fleet import Snapshot
from hatdfed.core.refusals import NOTHING_FINITE, OWN_NOT_FINITE
from hatdfed.errors import ConfigError, RunFolderError
from hatdfed.server.aggregation import Aggregator, Inbox, Merged, Probe, weighted
from hatdfed.server.codecs.base import Codec, Memory, Payload
from hatdfed.server.guard import compute_norms, fallback_weights, has_nothing, is_usable
from hatdfed.server.harm import (
    SHARE_STEPS,
    Harm,
    compare_on_common_labels,
    compare_scores,
    compare_sizes,
    measure_harm,
    share_labels,
)
from hatdfed.server.learner import Learner
from hatdfed.server.losses import CrossEntropy, LocalLoss
from hatdfed.server.measured_metrics import NO_METRICS, Figures, MetricSet
from hatdfed.server.merge_laws import check_weights
from hatdfed.server.optimisers import OptimiserState
from hatdfed.server.tasks import Task
from hatdfed.server.work import NOTHING, Batch, Indices, Work


class ServerState(NamedTuple):
    """What a server keeps from round to round. The optimiser's part stays at home, it is never merged."""

    params: Tensor  # [M] of which P are sent; the others are personal
    optimiser: OptimiserState
    codec_memory: Memory
    mass: float = 1.0  # push-sum
    held: Indices = NOTHING  # samples that devices sent and that it keeps, the oldest first (`Work.held`)
    training_loss: float | None = None  # of the last round, for its report; never saved, None where it is not known


class Offer(NamedTuple):
    """What a server sends to each of its receivers."""

    payload: Payload
    num_samples: int
    mass: float
    label_shares: Tensor | None = None  # [C] uint8, as `hatdfed.server.harm` makes them; None: not wanted, or unknown


class Verdict(NamedTuple):
    """The results of a merge: weights, scores, accuracy and losses."""

    accuracy: float  # of the merged model on validation data
    importance: Tensor  # [D]
    scores: Mapping[str, Tensor]  # [D] each
    trouble: str = ""  # the word for a merge that was not usable, or nothing
    training_loss: float | None = None  # mean over the steps before the merge; None: it did not train, or privately
    validation_loss: float | None = None  # of the merged model, mean over samples
    metrics: Figures = MappingProxyType({})  # of the merged model on validation data, those that the settings ask for


@dataclass(frozen=True)
class StepSchedule:
    """Learning-rate schedule: factor 1, then linear decay to almost zero over the last part of a run.

    A full step on a few images adds noise to a model. That does not matter while the servers still learn; the models of
    the last round are better without it.
    """

    rounds: int = 1  # K
    cool_down: float = 0.0  # share of the run, at its end, over which the factor decays

    def __post_init__(self) -> None:
        if not 0 <= self.cool_down <= 1:
            raise ConfigError(f"learner.cool_down is {self.cool_down}, but must be a share between 0 and 1.")

    def at(self, t: int) -> float:
        """Return the factor in round t, counted from 0; it stays constant beyond the last round."""
        left = max(1, self.rounds - t)
        return min(1.0, left / (1 + self.cool_down * self.rounds))


@dataclass(frozen=True, eq=False)
class EdgeProgram:
    """One server's part of the algorithm."""

    learner: Learner
    aggregator: Aggregator
    codec: Codec
    scores: frozenset[str] = frozenset()  # what the policy wants to know about received models
    loss: LocalLoss = field(default_factory=CrossEntropy)
    pace: StepSchedule = field(default_factory=StepSchedule)
    metrics: MetricSet = NO_METRICS

    @property
    def task(self) -> Task:
        """What the server learns."""
        return self.learner.task

    @property
    def num_labels(self) -> int:
        """Classes whose shares travel with a model; 0 where nobody asks for them, or samples have no class."""
        return self.task.kind.num_classes if self.aggregator.needs_labels else 0

    def start(self, seed: int) -> ServerState:
        """A fresh server with its own initial model."""
        params = self.learner.init(seed)
        optimiser = self.learner.optimiser.init(self.learner.num_trainable)
        return ServerState(params, optimiser, self.codec.init(self.learner.num_params))

    def train(self, server: ServerState, work: Work, t: int, *, spend: bool = False) -> ServerState:
        """Local training in round t on what the devices brought, Eq. (2); nothing if none came or it is to rest.

        With `spend` the optimiser's part of `server` is overwritten, for whoever needs it no more.
        """
        if work.held is not server.held:
            server = server._replace(held=work.held)
        if not work.batches:
            return server if server.training_loss is None else server._replace(training_loss=None)
        losses: list[Tensor] = []
        params, optimiser = self.learner.fit(
            server.params,
            server.optimiser,
            work.batches,
            seed=work.seed,
            step_scale=self.step_scale(server.mass, t),
            offset=None if work.label_counts is None else self.loss.offset(work.label_counts),
            spend=spend,
            on_loss=losses.append,
        )
        loss = float(torch.stack(losses).double().mean()) if losses else None
        return server._replace(params=params, optimiser=optimiser, training_loss=loss)

    def keep_usable(self, before: ServerState, trained: ServerState) -> tuple[ServerState, str]:
        """The trained server, or the one before with a new optimiser if the model is not usable; and a word for that.

        Without a usable model before the training either, it is up to the merge.
        """
        if self._can_be_kept(trained.params):
            return trained, ""
        optimiser = self.learner.optimiser.init(self.learner.num_trainable)
        word = OWN_NOT_FINITE if self._can_be_kept(before.params) else ""
        return trained._replace(params=before.params, optimiser=optimiser), word

    def is_usable(self, model: Tensor) -> bool:  # [P]
        """Whether a model, as it is sent, is finite and bounded."""
        return bool(is_usable(compute_norms(model), self.learner.largest_norm))

    def _can_be_kept(self, params: Tensor) -> bool:  # [M]
        """Whether a server's model is finite and bounded, the personal part included."""
        sent = self.learner.sent
        if not self.is_usable(sent.take(params)):
            return False
        return sent.is_whole or bool(is_usable(sent.compute_personal_norms(params), self.learner.largest_personal_norm))

    def step_scale(self, mass: float, t: int) -> float:
        """How long steps are in round t."""
        # Push-sum moves the biased x = mass·z by the step found at z, so z itself moves by step / mass.
        return self.pace.at(t) / mass if self.aggregator.splits_mass else self.pace.at(t)

    def offer(self, server: ServerState, work: Work, num_receivers: int) -> tuple[ServerState, Offer]:
        """Encode the model for those who hear it; under push-sum, split the mass evenly between them and oneself."""
        payload: Payload = {}
        memory = server.codec_memory
        if num_receivers:
            payload, memory = self.codec.encode(self.learner.sent.take(server.params), memory)
        share = server.mass / (num_receivers + 1) if self.aggregator.splits_mass else server.mass
        return server._replace(codec_memory=memory, mass=share), Offer(
            payload, work.volume, share, self._label_shares(work)
        )

    def _label_shares(self, work: Work) -> Tensor | None:
        counts = work.label_counts if self.num_labels else None
        return None if counts is None else share_labels(counts)

    def take_back(self, server: ServerState, offer: Offer, failed_sends: int) -> ServerState:
        """Under push-sum, what nobody received stays with its sender: mass is never lost."""
        return server._replace(mass=server.mass + failed_sends * offer.mass) if self.aggregator.splits_mass else server

    def merge(
        self, server: ServerState, inbox: Inbox, work: Work, label_shares: Tensor | None = None
    ) -> tuple[ServerState, Verdict]:
        """Judge the models on the probe, merge them, measure the result (Algorithm 3, lines 6–9).

        `label_shares` [D, C] are those of the models' senders, where the aggregator wants them.
        """
        probe = self._judge(server, inbox, work.probe, label_shares) if self.needs_probe else None
        merged, trouble = self._keep_usable_merge(self.aggregator(probe, inbox), inbox)
        if not trouble:
            check_weights(self.aggregator, merged.importance[None].cpu().numpy(), inbox.present[None].cpu().numpy())
        scores = {} if probe is None else self.judge_scores(probe)
        if "similarity" in self.scores:
            scores["similarity"] = self.learner.similarity(inbox.models)
        params = self.learner.sent.put(server.params, merged.model)
        accuracy, loss, metrics = self.learner.evaluate(params, work.validation, self.metrics)
        return server._replace(params=params, mass=float(merged.mass)), Verdict(
            accuracy, merged.importance, scores, trouble, server.training_loss, loss, metrics
        )

    @property
    def needs_probe(self) -> bool:
        """Whether models are judged on the server's own data."""
        return self.aggregator.needs_probe or bool(self.scores & {"loss", *Harm._fields})

    @property
    def needs_comparison(self) -> bool:
        """Whether models are compared with the server's own, sample by sample."""
        return self.aggregator.needs_labels or bool(self.scores & set(Harm._fields))

    def judge_scores(self, probe: Probe) -> dict[str, Tensor]:  # [D] each
        """What the probe says about each model: its loss and, if the policy wants to know, its harm."""
        scores = {"loss": probe.mean}
        if self.scores & set(Harm._fields):
            scores |= measure_harm(probe, self.task.guess_loss)._asdict()
        return scores

    def _keep_usable_merge(self, merged: Merged, inbox: Inbox) -> tuple[Merged, str]:
        if self.is_usable(merged.model):
            return merged, ""
        own_is_usable = torch.tensor(self.is_usable(inbox.models[0]))
        safe = weighted(fallback_weights(inbox.present, own_is_usable), inbox)
        word = NOTHING_FINITE if bool(has_nothing(inbox.present, own_is_usable)) else OWN_NOT_FINITE
        return safe._replace(mass=merged.mass), word

    def _judge(self, server: ServerState, inbox: Inbox, probe: Batch, label_shares: Tensor | None) -> Probe:
        """Losses of every present model on the server's own sample, Eq. (19), and what else a rule wants to know.

        Models are judged as the server would use them, with its own personal part.
        """
        own, *received = inbox.models
        answers = [self._answer(server, own, probe)]
        for model, present in zip(received, inbox.present[1:].tolist(), strict=True):
            answers.append(self._answer(server, model, probe) if present else torch.zeros_like(answers[0]))
        losses = torch.stack([self.task.losses(each, probe.y) for each in answers])
        found = Probe(torch.where(inbox.present[:, None], losses, 0.0), torch.ones(len(probe.y), dtype=torch.bool))
        if not self.needs_comparison:
            return found
        norms = compute_norms(inbox.models)
        sizes = compare_sizes(norms[:1], norms)
        if not self.task.kind.has_classes:
            scores = torch.stack([self.task.scores(each, probe.y) for each in answers])
            guess = self.task.scores(torch.zeros_like(answers[0]), probe.y)
            return found._replace(comparison=compare_scores(scores, guess, found.valid)._replace(size=sizes))
        logits = torch.stack(answers)
        if label_shares is None:
            label_shares = logits.new_full((len(logits), logits.shape[-1]), SHARE_STEPS, dtype=torch.uint8)
        comparison = compare_on_common_labels(logits, probe.y, found.valid, label_shares)
        return found._replace(comparison=comparison._replace(size=sizes))

    def _answer(self, server: ServerState, model: Tensor, probe: Batch) -> Tensor:
        return self.learner.logits(self.learner.sent.put(server.params, model), probe.x)


def frozen_arrays(learner: Learner) -> dict[str, NDArray[Any]]:
    """A digest of what is frozen, for a server's snapshot: a model means nothing together with other values."""
    digest = bytes.fromhex(learner.frozen_digest)
    return {"frozen": np.frombuffer(digest, np.uint8)} if digest else {}


def check_frozen(digest: NDArray[Any] | None, learner: Learner) -> None:
    """Refuse a model that belongs to other frozen values than those that the network brings."""
    if digest is not None and digest.tobytes().hex() != learner.frozen_digest:
        raise RunFolderError(
            "The frozen parameters of the network are not those that this run was begun with. Put back the file that "
            "its weights are read from, or start a new run."
        )


def server_arrays(server: ServerState) -> dict[str, NDArray[Any]]:
    """Model, optimiser, codec memory, mass and, if there are any, the samples that it holds."""
    arrays = {
        "params": server.params.numpy(),
        "first": server.optimiser.first.numpy(),
        "second": server.optimiser.second.numpy(),
        "codec_memory": server.codec_memory.numpy(),
        "scalars": np.array([server.optimiser.step, server.mass]),
    }
    return arrays | {"held": server.held} if len(server.held) else arrays


def server_from(arrays: Snapshot) -> ServerState:
    """Restore a server's state from arrays."""
    step, mass = arrays["scalars"]
    first, second = torch.tensor(arrays["first"]), torch.tensor(arrays["second"])
    return ServerState(
        params=torch.tensor(arrays["params"]),
        optimiser=OptimiserState(int(step), first, second),
        codec_memory=torch.tensor(arrays["codec_memory"]),
        mass=float(mass),
        held=np.array(arrays.get("held", NOTHING), dtype=np.int64),
    )
