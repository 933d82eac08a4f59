"""Byzantine-robust rules: merges that a few models made by liars can move only within limits.

Most of these rules were published for a central server that receives the updates of many workers. Here, every server
merges for itself, the inbox has few models, and some of its slots may be absent. All rules follow the same conventions:

- n is the number of models present, the server's own included; f is the number of liars assumed among the n − 1 models
  that were received. Absent slots do not count, whatever they hold.
- What the papers aggregate (gradients, updates or local models) is the model after local training.
- Where a rule is undefined because too few models are present, the server keeps its own model. A server that has
  received nothing always does.
- Of equal distances, scores or values, the lower slot comes first; slot 0 is the server's own model.

`Merged.importance` is the weight of each model. The coordinate-wise rules have a weight for every coordinate, so they
report its mean over all coordinates: the share of the merged model's numbers that was taken from each model.

No rule is an `AveragingRule`, because all weights depend on the models themselves. Received models are finite
(`hatdfed.server.guard`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from hatdfed.errors import ConfigError
from hatdfed.server.inbox import CHUNK, Inbox, Merged, Probe, Rule, weighted


@dataclass(frozen=True)
class Median(Rule):
    """The coordinate-wise median of all models present, the server's own included.

    D. Yin, Y. Chen, K. Ramchandran, P. Bartlett. Byzantine-robust distributed learning: towards optimal statistical
    rates. ICML 2018, Definition 1. Of an even number of values, the median is the mean of the two in the middle: for
    two models it is their mean, which gives no protection.
    """

    def __call__(self, probe: Probe | None, inbox: Inbox) -> Merged:
        """Merge by taking the median of every coordinate."""
        return _mean_of_middle((inbox.present.sum() - 1) // 2, inbox)


@dataclass(frozen=True)
class TrimmedMean(Rule):
    """The coordinate-wise mean without the f largest and the f smallest values.

    D. Yin, Y. Chen, K. Ramchandran, P. Bartlett. Byzantine-robust distributed learning: towards optimal statistical
    rates. ICML 2018, Definition 2, whose share β is given here as a number: β = f/n.

    If 2f ≥ n, the rule trims as many values as leave at least one, ⌊(n − 1)/2⌋ on each side. If this is 0 (n ≤ 2), no
    value can be trimmed and the server keeps its own model.
    """

    trim: int = 1  # f: values dropped on each side, the number of liars assumed in an inbox

    def __post_init__(self) -> None:
        _require_count("trim", self.trim, least=0)

    def __call__(self, probe: Probe | None, inbox: Inbox) -> Merged:
        """Merge by the trimmed mean of every coordinate."""
        possible = (inbox.present.sum() - 1) // 2
        undefined = (possible == 0) & (self.trim > 0)
        kept = inbox.present & (_is_own(inbox) | ~undefined)
        return _mean_of_middle(possible.clamp(max=self.trim), inbox._replace(present=kept))


@dataclass(frozen=True)
class MultiKrum(Rule):
    """The mean of the m models with the lowest scores; a score is the sum of squared distances to the nearest others.

    P. Blanchard, E. M. El Mhamdi, R. Guerraoui, J. Stainer. Machine learning with adversaries: Byzantine tolerant
    gradient descent. NeurIPS 2017 (Krum and Multi-Krum):

        s(i) = Σ ‖x_i − x_j‖² over the n − f − 2 models j ≠ i nearest to x_i.

    The server's own model is one of the n candidates and has no privilege: the merged model need not contain it. The
    rule is undefined where n − f − 2 < 1; then the server keeps its own model. The guarantee of the paper needs more,
    n ≥ 2f + 3.
    """

    liars: int = 1  # f
    kept: int | None = None  # m: models that are averaged, at most n; None: n − f

    def __post_init__(self) -> None:
        _require_count("liars", self.liars, least=0)
        if self.kept is not None:
            _require_count("kept", self.kept, least=1)

    def __call__(self, probe: Probe | None, inbox: Inbox) -> Merged:
        """Merge the models with the lowest scores, with equal weights."""
        slots = len(inbox.present)
        count = inbox.present.sum()
        num_nearest = count - self.liars - 2
        others = inbox.present & ~torch.eye(slots, dtype=torch.bool, device=inbox.present.device)
        distances = torch.where(others, _squared_distances(inbox, range(slots)), torch.inf)
        sums = torch.sort(distances, dim=-1).values.cumsum(dim=-1)  # in ascending order, whatever the padding
        place = torch.arange(slots, device=sums.device)
        score = torch.where(place == num_nearest - 1, sums, 0.0).sum(dim=-1)
        best = _rank(score, inbox.present) < (count - self.liars if self.kept is None else self.kept)
        kept = torch.where(num_nearest < 1, _is_own(inbox), best) & inbox.present
        return weighted(kept / kept.sum(), inbox)


@dataclass(frozen=True)
class ClippedGossip(Rule):
    """Self-centred clipping: received models are moved towards the server's own until they are within a radius of it.

    L. He, S. P. Karimireddy, M. Jaggi. Byzantine-robust decentralized learning via ClippedGossip. arXiv 2202.01545,
    2022:

        x_i + Σ_j w_ij · clip(x_j − x_i, τ_i),    clip(z, τ) = min(1, τ/‖z‖) · z,

    here with uniform weights w_ij = 1/n. The result is an average of whole models: x_j has the weight
    w_ij · min(1, τ_i/‖x_j − x_i‖), and the server's own model has the rest.

    Without `radius`, τ_i adapts to the inbox. The radius of the paper's theory is

        τ_i² = (1/δ_i) · Σ w_ij · E‖x_i − x_j‖² over the honest j,    δ_i: total weight of the liars heard by i.

    A server does not know who is honest. As reading, the n − f models nearest to its own, itself included, stand in for
    the honest ones, δ_i = f/n, and the observed distances for their expectations. With uniform weights this is

        τ_i² = (1/f) · Σ ‖x_i − x_j‖² over all received models but the f most distant ones.

    With f = 0 nothing is clipped; with f ≥ n − 1 the radius is 0 and the server keeps its own model. The authors'
    released code takes the second largest distance for τ_i instead.
    """

    radius: float | None = None  # τ, in units of distance between models; None: from the distances
    liars: int = 1  # f, for the adaptive radius only

    def __post_init__(self) -> None:
        if self.radius is not None and not 0 < self.radius < math.inf:
            raise ConfigError(f"aggregator.radius is {self.radius}, but must be a number above 0, or null.")
        _require_count("liars", self.liars, least=0)

    def __call__(self, probe: Probe | None, inbox: Inbox) -> Merged:
        """Merge by gossip with clipped differences."""
        received, count = _is_received(inbox), inbox.present.sum()
        squares = _squared_distances_to_own(inbox)
        distances, radius = squares.sqrt(), self._radius(squares, received)
        scale = torch.where(distances <= radius, 1.0, radius / distances)
        weights = torch.where(received, scale / count, 0.0)
        return weighted(torch.where(_is_own(inbox), 1 - weights.sum(), weights), inbox)

    def _radius(self, squares: Tensor, received: Tensor) -> Tensor:  # [D], [D] -> []
        if self.radius is not None or self.liars == 0:
            return squares.new_tensor(torch.inf if self.radius is None else self.radius)
        trusted = received & (_rank(squares, received) < received.sum() - self.liars)
        return (torch.where(trusted, squares, 0.0).sum() / self.liars).sqrt()


@dataclass(frozen=True)
class Balance(Rule):
    """The server's own model, and the mean of the received models that are near it relative to its norm.

    M. Fang, Z. Zhang, Hairi, P. Khanduri, J. Liu, S. Lu, Y. Liu, N. Gong. Byzantine-robust decentralized federated
    learning. CCS 2024 (BALANCE): server i accepts x_j in round t of T if

        ‖x_i − x_j‖ ≤ γ · exp(−κ · λ(t)) · ‖x_i‖,    λ(t) = t/T,

    and the new model is α·x_i + (1 − α)·(mean of the accepted models). As reading, κ = 0: a rule does not know the
    round, so the bound stays at γ·‖x_i‖ instead of tightening to γ·e^−κ·‖x_i‖. To begin with a bound as tight as the
    paper's is at the end, divide γ by e^κ. If no model is accepted, the server keeps its own.

    Models that were initialised independently are about √2·‖x_i‖ apart. With a γ far below this, servers accept nobody
    unless they start from the same model (`common_init`).
    """

    closeness: float = 0.3  # γ
    own_share: float = 0.5  # α

    def __post_init__(self) -> None:
        if not 0 < self.closeness < math.inf:
            raise ConfigError(f"aggregator.closeness is {self.closeness}, but must be a number above 0.")
        _require_share("own_share", self.own_share)

    def __call__(self, probe: Probe | None, inbox: Inbox) -> Merged:
        """Merge the accepted models with the server's own."""
        bound = self.closeness**2 * _squared_norm_of_own(inbox)
        accepted = _is_received(inbox) & (_squared_distances_to_own(inbox) <= bound)
        return _own_and_mean_of(accepted, self.own_share, inbox)


@dataclass(frozen=True)
class Ubar(Rule):
    """The server's own model, and the mean of received models that are near it and do as well on the probe.

    S. Guo, T. Zhang, H. Yu, X. Xie, L. Ma, T. Xiang, Y. Liu. Byzantine-resilient decentralized stochastic gradient
    descent. IEEE Transactions on Circuits and Systems for Video Technology, 2021 (UBAR). Stage 1 selects the share ρ of
    the received models that are nearest to the server's own. Stage 2 keeps those of them whose loss on the server's own
    samples is at most that of its own model, or the one with the lowest loss if there is none. The new model is
    α·x_i + (1 − α)·(mean of the models kept).

    Stage 1 selects ⌊ρ(n − 1)⌋ models. As reading, it selects at least one, since ρ(n − 1) is often below 1 here. The
    samples of stage 2 are the probe. The gradient step of the paper is the local training before the merge.

    If the only model selected is that of a liar, it gets the weight 1 − α, however bad it is.
    """

    honest_share: float = 0.4  # ρ: a lower bound of the share of honest models among the received ones
    own_share: float = 0.5  # α

    needs_probe: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 < self.honest_share <= 1:
            raise ConfigError(
                f"aggregator.honest_share is {self.honest_share}, but must be a share above 0, at most 1."
            )
        _require_share("own_share", self.own_share)

    def __call__(self, probe: Probe | None, inbox: Inbox) -> Merged:
        """Merge the models that pass both stages with the server's own."""
        if probe is None:
            raise ValueError("selecting models by their losses needs a probe")
        received = _is_received(inbox)
        num_selected = torch.floor(self.honest_share * received.sum() + 1e-6).clamp(min=1)  # 0.29 · 100 is 28.999…
        selected = received & (_rank(_squared_distances_to_own(inbox), received) < num_selected)
        is_as_good = selected & (probe.mean <= probe.mean[0])
        best = selected & (_rank(probe.mean, selected) == 0)
        return _own_and_mean_of(torch.where(is_as_good.any(), is_as_good, best), self.own_share, inbox)


def _require_count(name: str, value: int, *, least: int) -> None:
    if value < least:
        raise ConfigError(f"aggregator.{name} is {value}, but must be at least {least}.")


def _require_share(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ConfigError(f"aggregator.{name} is {value}, but must lie between 0 and 1.")


def _is_own(inbox: Inbox) -> Tensor:  # -> [D]
    return torch.arange(len(inbox.present), device=inbox.present.device) == 0


def _is_received(inbox: Inbox) -> Tensor:  # -> [D]
    return inbox.present & ~_is_own(inbox)


def _own_and_mean_of(accepted: Tensor, own_share: float, inbox: Inbox) -> Merged:  # [D]
    """α·own + (1 − α)·mean of the accepted models; the own model if there is none."""
    count = accepted.sum()
    received = accepted.double() * (1 - own_share) / count.clamp(min=1)
    return weighted(torch.where(_is_own(inbox), own_share + (1 - own_share) * (count == 0).double(), received), inbox)


def _rank(values: Tensor, counted: Tensor) -> Tensor:  # [D], [D] -> [D]
    """Place of each value in ascending order, from 0; values that do not count come last, after nan."""
    order = torch.argsort(torch.where(counted, values, torch.nan), stable=True)
    order = order[torch.argsort((~counted)[order], stable=True)]
    return torch.argsort(order)


def _squared_distances_to_own(inbox: Inbox) -> Tensor:  # -> [D] float64
    return _squared_distances(inbox, [0])[0]


def _squared_distances(inbox: Inbox, slots: Sequence[int]) -> Tensor:  # -> [len(slots), D] float64
    """From these models to all; meaningless for absent ones."""
    columns = [torch.zeros(len(inbox.present), dtype=torch.float64, device=inbox.models.device) for _ in slots]
    for start in range(0, inbox.models.shape[-1], CHUNK):
        piece = torch.where(inbox.present[:, None], inbox.models[:, start : start + CHUNK], 0.0).double()
        columns = [
            column + (piece - piece[slot]).square().sum(dim=-1) for column, slot in zip(columns, slots, strict=True)
        ]
    return torch.stack(columns)


def _squared_norm_of_own(inbox: Inbox) -> Tensor:  # -> [] float64
    pieces = torch.split(inbox.models[0], CHUNK)
    return torch.stack([piece.double().square().sum() for piece in pieces]).sum()


def _mean_of_middle(trim: Tensor, inbox: Inbox) -> Merged:  # []
    """The mean of every coordinate without its `trim` smallest and `trim` largest values; leaves at least one."""
    models, present = inbox.models, inbox.present
    count = present.sum() - 2 * trim
    merged = torch.empty_like(models[0])
    taken = torch.zeros(len(models), dtype=torch.int64, device=models.device)
    for start in range(0, models.shape[-1], CHUNK):
        piece = models[:, start : start + CHUNK]
        total = torch.zeros_like(piece[0])
        num_taken = []
        for slot in range(len(models)):
            rank = _rank_in_coordinates(slot, piece, present)
            kept = present[slot] & (rank >= trim) & (rank < trim + count)
            total = total + torch.where(kept, piece[slot], 0.0)
            num_taken.append(kept.sum())
        merged[start : start + CHUNK] = total / count
        taken = taken + torch.stack(num_taken)
    importance = taken / (count * models.shape[-1]).to(torch.float64)
    return Merged(merged, importance.to(models.dtype), torch.ones((), dtype=torch.float64, device=models.device))


def _rank_in_coordinates(slot: int, models: Tensor, present: Tensor) -> Tensor:  # [D, P], [D] -> [P]
    """How many models present come before this one in each coordinate, in ascending order.

    For the few models of an inbox, comparing is several times faster than sorting, and needs less memory.
    """
    mine = models[slot]
    before = ~(models[:slot] > mine) & present[:slot, None]
    after = (models[slot + 1 :] < mine) & present[slot + 1 :, None]
    return before.sum(dim=0) + after.sum(dim=0)
