"""Aggregation: how a server merges its own model (slot 0) with the models that it received (the other slots).

The weights of every rule are at least 0 and sum to 1 over the models that are present, so equal models stay as they
are and an absent model has no effect. Rules are written for one server without branches on values, so that `torch.vmap`
can apply them to many servers at once.
"""

from __future__ import annotations

from dataclasses import dataclass, is_dataclass
from typing import ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from hatdfed.errors import ConfigError, require_one_of
from hatdfed.registry import Registry

_CHUNK = 1 << 18  # parameters that are merged at once: all at once would need as much memory again as the models


class Inbox(NamedTuple):
    """The models of one server when it merges; slot 0 is its own model."""

    models: Tensor  # [D, P]
    num_samples: Tensor  # [D] that each model was trained on in this round
    mixing: Tensor  # [D] mixing weight of the link in the round's plan, or nan
    mass: Tensor  # [D] push-sum mass of each message; 1 for every other method
    present: Tensor  # [D] False: padding, or a model that did not arrive


class Probe(NamedTuple):
    """Losses of the models on a small sample of the server's own data."""

    losses: Tensor  # [D, Q] of each model on each sample
    valid: Tensor  # [Q] False: padding

    @property
    def size(self) -> Tensor:
        """B, the number of samples."""
        return self.valid.sum()

    @property
    def root_mean_square(self) -> Tensor:
        """[D] √(mean of squared losses)."""
        return (self._masked(self.losses.square()) / self.size).sqrt()

    @property
    def mean(self) -> Tensor:
        """[D] mean loss."""
        return self._masked(self.losses) / self.size

    def _masked(self, values: Tensor) -> Tensor:
        return torch.where(self.valid, values, 0.0).sum(dim=-1)


class Merged(NamedTuple):
    """The merged model and the weights that it was computed with."""

    model: Tensor  # [P]
    importance: Tensor  # [D] weights, 0 where absent
    mass: Tensor  # [] push-sum mass of the new model


class Aggregator(Protocol):
    """Merges an inbox. Has frozen hyper-parameters and no state."""

    needs_probe: ClassVar[bool]  # whether `probe` must be measured
    needs_plan: ClassVar[bool]  # whether the policy must give mixing weights
    splits_mass: ClassVar[bool]  # whether senders split their push-sum mass between themselves and their receivers
    averages: ClassVar[bool]  # whether the new model is always Σ importance·model, so that the weights are enough

    def __call__(self, probe: Probe | None, inbox: Inbox) -> Merged:
        """Merge the models in the inbox."""


class Rule:
    """Base class of aggregators; by default a rule needs nothing but the inbox."""

    needs_probe: ClassVar[bool] = False
    needs_plan: ClassVar[bool] = False
    splits_mass: ClassVar[bool] = False
    averages: ClassVar[bool] = False


class AveragingRule(Rule):
    """Base class of aggregators that return `weighted(weights, inbox)`."""

    averages: ClassVar[bool] = True


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

    def __call__(self, probe: Probe | None, inbox: Inbox) -> Merged:
        """Merge with equal weights."""
        return weighted(inbox.present / inbox.present.sum(), inbox)


@dataclass(frozen=True)
class BySamples(AveragingRule):
    """The mean weighted by the number of samples each model was trained on; equal weights if none was trained."""

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


_BUILT_IN: dict[str, type[Aggregator]] = {
    "importance": Importance,
    "uniform": Uniform,
    "by-samples": BySamples,
    "best-by-samples": BestBySamples,
    "by-plan": ByPlan,
    "push-sum": PushSum,
}

AGGREGATORS: Registry[type[Aggregator]] = Registry(
    "hatdfed.aggregators",
    _BUILT_IN,
    wanted="a dataclass that merges an inbox when called",
    fits=lambda thing: is_dataclass(thing) and hasattr(thing, "needs_probe"),
)


def weighted(weights: Tensor, inbox: Inbox) -> Merged:
    """Merge with these weights: Σ q·m over the models present, Eq. (21)."""
    weights = torch.where(inbox.present, weights, 0.0).to(inbox.models.dtype)
    counts, models = (weights != 0)[:, None], inbox.models
    merged = torch.empty_like(models[0])
    for start in range(0, models.shape[-1], _CHUNK):
        piece = slice(start, start + _CHUNK)
        # A model of weight 0 may hold NaN or infinity, and 0 times that is NaN.
        merged[piece] = weights @ torch.where(counts, models[:, piece], 0.0)
    return Merged(merged, weights, torch.ones((), dtype=torch.float64, device=models.device))


def _softmax_present(scores: Tensor, present: Tensor) -> Tensor:
    """Softmax over the models present; those whose score is not finite get weight 0, unless all are not finite."""
    known = present & torch.isfinite(scores)
    counted = torch.where(known.any(dim=-1, keepdim=True), known, present)
    return torch.softmax(torch.where(counted, torch.nan_to_num(scores, nan=0.0), -torch.inf), dim=-1)


def _sample_share(inbox: Inbox) -> Tensor:
    counts = torch.where(inbox.present, inbox.num_samples, 0).to(torch.float64)
    equal = inbox.present / inbox.present.sum()
    return torch.where(counts.sum() > 0, counts / counts.sum().clamp(min=1), equal)


def _softmax_of_counts(inbox: Inbox) -> Tensor:
    """Volume as printed: a difference of 8 samples is a factor of e^8."""
    return _softmax_present(inbox.num_samples.to(torch.float64), inbox.present)


def _equal_counts(inbox: Inbox) -> Tensor:
    """Volume as released: the receiver's own count is used for every sender, so all weights are equal (D18)."""
    return inbox.present / inbox.present.sum()


_LOSS_ORDERS = {"low-first": -1.0, "high-first": 1.0}
_LOSS_SCALES = {
    "per-sample": lambda probe: probe.root_mean_square,
    "printed": lambda probe: probe.size * probe.root_mean_square,  # l = B·√(…), Eq. (19)
    "released": lambda probe: probe.mean / 50**0.5,
}
_VOLUMES = {"share": _sample_share, "softmax-of-counts": _softmax_of_counts, "receiver-count": _equal_counts}
