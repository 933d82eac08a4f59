"""Aggregation: how a server merges its own model (slot 0) with the models that it received (the other slots).

The weights of every rule are at least 0 and sum to 1 over the models that are present, so equal models stay as they
are and an absent model has no effect. Rules are written for one server without branches on values, so that `torch.vmap`
can apply them to many servers at once; a rule with `takes_many` can be called with the inboxes of many servers, which
is faster. Rules that withstand liars are in `hatdfed.server.robust`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from hatdfed.core.policies.trusted_links import LEAST_EVIDENCE
from hatdfed.errors import ConfigError, require_one_of
from hatdfed.registry import Registry
from hatdfed.server.harm import measure_harm
from hatdfed.server.inbox import Aggregator, AveragingRule, Inbox, Merged, Probe, Rule, weighted
from hatdfed.server.robust import Balance, ClippedGossip, Median, MultiKrum, TrimmedMean, Ubar

__all__ = [
    "AGGREGATORS",
    "Aggregator",
    "AveragingRule",
    "BestBySamples",
    "ByPlan",
    "BySamples",
    "HarmlessMean",
    "Importance",
    "Inbox",
    "Merged",
    "Probe",
    "PushSum",
    "Rule",
    "Uniform",
    "weighted",
]


_FAR_WORSE = 2.0  # times the loss of a guess above the own loss, on the labels that a model should know
_MOST_IGNORANCE = 10.0  # the same on the labels that it need not know
_KNOWS = 0.5  # knowledge of its own data from which a server takes a model of a stranger that it cannot judge
_STRANGER = 0.01  # weight in a plan below which nobody answers for a model


@dataclass(frozen=True)
class Importance(AveragingRule):
    """Importance-aware aggregation, Eqs. (19)–(21): q = β·(quality) + (1 − β)·(volume).

    Quality is a softmax over the models' losses on the server's probe, volume depends on how much data each model was
    trained on. The formula in the paper, its text and the released code differ; each of the three can be chosen.
    """

    quality_share: float = 0.4  # β
    loss_order: str = "low-first"  # D16: whether low or high losses get more weight
    loss_scale: str = "per-sample"  # D17: scale of the losses inside the softmax
    volume: str = "share"  # D17, D18: weight by data volume

    needs_probe: ClassVar[bool] = True
    takes_many: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 <= self.quality_share <= 1:
            raise ConfigError(f"quality_share is {self.quality_share}, but must lie between 0 and 1.")
        require_one_of("aggregator.loss_order", self.loss_order, _LOSS_ORDERS)
        require_one_of("aggregator.loss_scale", self.loss_scale, _LOSS_SCALES)
        require_one_of("aggregator.volume", self.volume, _VOLUMES)

    def __call__(self, probe: Probe | None, inbox: Inbox) -> Merged:
        """Merge by Eq. (21) with the weights of Eq. (20)."""
        if probe is None:
            raise ValueError("importance-aware aggregation needs a probe")
        quality = _softmax_present(_LOSS_ORDERS[self.loss_order] * _LOSS_SCALES[self.loss_scale](probe), inbox.present)
        volume = _VOLUMES[self.volume](inbox)
        return weighted(self.quality_share * quality + (1 - self.quality_share) * volume, inbox)


@dataclass(frozen=True)
class Uniform(AveragingRule):
    """The unweighted mean of all models present."""

    takes_many: ClassVar[bool] = True

    def __call__(self, probe: Probe | None, inbox: Inbox) -> Merged:
        """Merge with equal weights."""
        return weighted(_equal_counts(inbox), inbox)


@dataclass(frozen=True)
class BySamples(AveragingRule):
    """The mean weighted by the number of samples each model was trained on; equal weights if none was trained."""

    takes_many: ClassVar[bool] = True

    def __call__(self, probe: Probe | None, inbox: Inbox) -> Merged:
        """Merge with weights n / Σn."""
        return weighted(_sample_share(inbox), inbox)


@dataclass(frozen=True)
class BestBySamples(AveragingRule):
    """The server's own model and the received ones with the lowest loss on the probe, weighted by samples (PENS)."""

    best: int = 2  # received models that are kept

    needs_probe: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.best < 1:
            raise ConfigError(f"aggregator.best is {self.best}, but must be at least 1.")

    def __call__(self, probe: Probe | None, inbox: Inbox) -> Merged:
        """Merge the best models; of equal losses the lower slot wins."""
        if probe is None:
            raise ValueError("keeping the best models needs a probe")
        loss = torch.where(inbox.present, probe.mean, torch.inf)[1:]
        rank = torch.argsort(torch.argsort(loss, stable=True), stable=True)
        kept = torch.cat([inbox.present[:1], (rank < self.best) & inbox.present[1:]])
        return weighted(_sample_share(inbox._replace(present=kept)), inbox._replace(present=kept))


@dataclass(frozen=True)
class ByPlan(AveragingRule):
    """The mixing weights of the topology; the weight of a model that did not arrive goes to the server's own."""

    needs_plan: ClassVar[bool] = True

    def __call__(self, probe: Probe | None, inbox: Inbox) -> Merged:
        """Merge with one row of a doubly stochastic mixing matrix."""
        received = torch.where(inbox.present, inbox.mixing, 0.0)[1:]
        return weighted(torch.cat([1 - received.sum(dim=-1, keepdim=True), received], dim=-1), inbox)


@dataclass(frozen=True)
class PushSum(AveragingRule):
    """Models weighted by their push-sum mass, which corrects the bias of a directed graph."""

    splits_mass: ClassVar[bool] = True

    def __call__(self, probe: Probe | None, inbox: Inbox) -> Merged:
        """Merge by z = Σ mass·z / Σ mass; the new mass is the sum."""
        mass = torch.where(inbox.present, inbox.mass, 0.0)
        merged = weighted(mass / mass.sum(), inbox)
        return merged._replace(mass=mass.sum())


@dataclass(frozen=True)
class HarmlessMean(AveragingRule):
    """The mean of the server's own model and of the received ones that do not contradict its data.

    A model that a plan gives the weight 0 is judged, but not merged. One with next to no weight comes from a stranger:
    it is merged if it was judged, or if the server knows its own data well.
    """

    bar: float = 0.75  # harm above which a model is left out, as a share of what the server knows
    guess_loss: float = math.log(10)  # loss of a guess: log of the number of classes

    needs_probe: ClassVar[bool] = True
    needs_labels: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 < self.bar <= 10:
            raise ConfigError(f"aggregator.bar is {self.bar}, but must be above 0 and at most 10.")

    def __call__(self, probe: Probe | None, inbox: Inbox) -> Merged:
        """Merge with equal weights."""
        if probe is None:
            raise ValueError("leaving out harmful models needs a probe")
        judged = measure_harm(probe, self.guess_loss)
        is_judged = judged.evidence >= LEAST_EVIDENCE
        contradicts = is_judged & (judged.harm > self.bar)
        # Who knows little cannot tell a model that is good for nothing from one that knows other labels.
        is_vouched_for = is_judged | (judged.knowledge >= _KNOWS) | (inbox.mixing >= _STRANGER)
        is_wanted = inbox.present & (inbox.mixing != 0) & is_vouched_for
        kept = is_wanted & ~contradicts & ~self._find_absurd(probe, is_judged)
        kept = torch.cat([inbox.present[:1], kept[1:]])
        return weighted(kept / kept.sum(), inbox._replace(present=kept))

    def _find_absurd(self, probe: Probe, is_judged: Tensor) -> Tensor:  # [D] -> [D]
        """Models that are far worse than the own one; a model that knows other labels may be worse than a wrong one."""
        weight = probe.valid.to(probe.losses.dtype)
        if probe.comparison is not None:
            weight = torch.where(is_judged[:, None], probe.comparison.weight, weight)
        own, theirs = (
            (weight * torch.where(weight > 0, losses, 0.0)).sum(dim=-1) / weight.sum(dim=-1).clamp(min=1e-9)
            for losses in (probe.losses[:1], probe.losses)
        )
        return ~(theirs <= own + torch.where(is_judged, _FAR_WORSE, _MOST_IGNORANCE) * self.guess_loss)


_BUILT_IN: dict[str, type[Aggregator]] = {
    "importance": Importance,
    "uniform": Uniform,
    "by-samples": BySamples,
    "best-by-samples": BestBySamples,
    "by-plan": ByPlan,
    "push-sum": PushSum,
    "harmless-mean": HarmlessMean,
    "median": Median,
    "trimmed-mean": TrimmedMean,
    "multi-krum": MultiKrum,
    "clipped-gossip": ClippedGossip,
    "balance": Balance,
    "ubar": Ubar,
}

AGGREGATORS: Registry[type[Aggregator]] = Registry(
    "hatdfed.aggregators",
    _BUILT_IN,
    wanted="a dataclass that merges an inbox when called",
    fits=lambda thing: isinstance(thing, type),
    is_dataclass=True,
    methods=("__call__",),
    values=("needs_probe",),
)


def _softmax_present(scores: Tensor, present: Tensor) -> Tensor:
    """Softmax over the models present; those whose score is not finite get weight 0, unless all are not finite."""
    known = present & torch.isfinite(scores)
    counted = torch.where(known.any(dim=-1, keepdim=True), known, present)
    return torch.softmax(torch.where(counted, torch.nan_to_num(scores, nan=0.0), -torch.inf), dim=-1)


def _sample_share(inbox: Inbox) -> Tensor:
    counts = torch.where(inbox.present, inbox.num_samples, 0).to(torch.float64)
    total = counts.sum(dim=-1, keepdim=True)
    return torch.where(total > 0, counts / total.clamp(min=1), _equal_counts(inbox))


def _softmax_of_counts(inbox: Inbox) -> Tensor:
    """Volume as printed: a difference of 8 samples is a factor of e^8."""
    return _softmax_present(inbox.num_samples.to(torch.float64), inbox.present)


def _equal_counts(inbox: Inbox) -> Tensor:
    """Volume as released: the receiver's own count is used for every sender, so all weights are equal (D18)."""
    return inbox.present / inbox.present.sum(dim=-1, keepdim=True)


_LOSS_ORDERS = {"low-first": -1.0, "high-first": 1.0}
_LOSS_SCALES = {
    "per-sample": lambda probe: probe.root_mean_square,
    "printed": lambda probe: probe.size[..., None] * probe.root_mean_square,  # l = B·√(…), Eq. (19)
    "released": lambda probe: probe.mean / 50**0.5,
}
_VOLUMES = {"share": _sample_share, "softmax-of-counts": _softmax_of_counts, "receiver-count": _equal_counts}
