"""The inbox of one server, and the interface of the rules that merge it.

The rules themselves are in `hatdfed.server.aggregation` and `hatdfed.server.robust`.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

CHUNK = 1 << 18  # parameters that are merged at once: all at once would need as much memory again as the models


class Inbox(NamedTuple):
    """The models of one server when it merges; slot 0 is its own model."""

    models: Tensor  # [D, P]
    num_samples: Tensor  # [D] that each model was trained on in this round
    mixing: Tensor  # [D] mixing weight of the link in the round's plan, or nan
    mass: Tensor  # [D] push-sum mass of each message; 1 for every other method
    present: Tensor  # [D] False: padding, or a model that did not arrive


class Comparison(NamedTuple):
    """A server's own model beside each in its inbox, on samples of labels that both the server and the sender have."""

    own: Tensor  # [D, Q] probability of the true label among these labels, by the own model
    theirs: Tensor  # [D, Q] the same by the other model
    weight: Tensor  # [D, Q] of the sample; 0: its label is not common
    guess: Tensor  # [D] probability that a guess would give
    size: Tensor  # [D] norm of the other model, times that of the own


class Probe(NamedTuple):
    """Losses of the models on a small sample of the server's own data."""

    losses: Tensor  # [D, Q] of each model on each sample
    valid: Tensor  # [Q] False: padding
    comparison: Comparison | None = None  # None: nobody asked

    def rows(self, servers: Tensor | slice | int) -> Probe:
        """Those of some servers, of a probe that holds the losses of many."""
        both = self.comparison
        comparison = None if both is None else Comparison(*(table[servers] for table in both))
        return Probe(self.losses[servers], self.valid[servers], comparison)

    @property
    def for_each(self) -> Probe:
        """Where `torch.vmap` finds the servers of a probe that holds the losses of many."""
        return Probe(0, 0, None if self.comparison is None else 0)  # type: ignore[arg-type]

    @property
    def size(self) -> Tensor:
        """B, the number of samples; [n] of the probes of n servers."""
        return self.valid.sum(dim=-1)

    @property
    def root_mean_square(self) -> Tensor:
        """[D] √(mean of squared losses)."""
        return (self._masked(self.losses.square()) / self.size[..., None]).sqrt()

    @property
    def mean(self) -> Tensor:
        """[D] mean loss."""
        return self._masked(self.losses) / self.size[..., None]

    def _masked(self, values: Tensor) -> Tensor:
        return torch.where(self.valid[..., None, :], values, 0.0).sum(dim=-1)


class Merged(NamedTuple):
    """The merged model and the weights that it was computed with."""

    model: Tensor  # [P]
    importance: Tensor  # [D] weights, 0 where absent
    mass: Tensor  # [] push-sum mass of the new model


class Aggregator(Protocol):
    """Merges an inbox. Has frozen hyper-parameters and no state."""

    needs_probe: ClassVar[bool]  # whether `probe` must be measured
    needs_labels: ClassVar[bool]  # whether senders tell their label shares, for the probe's `comparison`
    needs_plan: ClassVar[bool]  # whether the policy must give mixing weights
    splits_mass: ClassVar[bool]  # whether senders split their push-sum mass between themselves and their receivers
    averages: ClassVar[bool]  # whether the new model is always Σ importance·model, so that the weights are enough

    def __call__(self, probe: Probe | None, inbox: Inbox) -> Merged:
        """Merge the models in the inbox."""


class Rule:
    """Base class of aggregators; by default a rule needs nothing but the inbox."""

    needs_probe: ClassVar[bool] = False
    needs_labels: ClassVar[bool] = False
    needs_plan: ClassVar[bool] = False
    splits_mass: ClassVar[bool] = False
    averages: ClassVar[bool] = False
    takes_many: ClassVar[bool] = False  # whether it can be called once for n servers; each class says so for itself


class AveragingRule(Rule):
    """Base class of aggregators that return `weighted(weights, inbox)`."""

    averages: ClassVar[bool] = True


def weighted(weights: Tensor, inbox: Inbox) -> Merged:
    """Merge with these weights: Σ q·m over the models present, Eq. (21); of one server, or of each of many."""
    weights = torch.where(inbox.present, weights, 0.0).to(inbox.models.dtype)
    counts, models = (weights != 0)[..., None], inbox.models
    merged = torch.empty_like(models[..., 0, :])
    for start in range(0, models.shape[-1], CHUNK):
        piece = slice(start, start + CHUNK)
        # A model of weight 0 may hold NaN or infinity, and 0 times that is NaN.
        merged[..., piece] = (weights[..., None, :] @ torch.where(counts, models[..., piece], 0.0))[..., 0, :]
    return Merged(merged, weights, torch.ones(weights.shape[:-1], dtype=torch.float64, device=models.device))
