"""Attacks: what a lying member of a fleet sends instead of its model.

They are for experiments on how much harm a few liars can do. An attack is a frozen dataclass; its fields are its
settings. Class variables state what else the liar does: train on wrong labels (`flips_labels`), or send false reports
to the coordinator (`falsifies`, see `hatdfed.core.false_reports`).

What could be caught by checking that a model is possible at all:

- `scale`: by a bound on the norm that is tighter than a factor of 10 over honest models. The bound for all methods, 50
  times the norm of a fresh model (`hatdfed.server.guard`), lets it pass; `harm` calls models harmful that are more than
  three times as large as the receiver's own.
- `constant` and `stale`: a model without variation, or the same model in every round, is not the result of training.
- All others send models whose norms are like those of honest models (`noise`: √2 times as large; `ipm`: ε times). No
  such check can catch them; only comparison with other models or evaluation on one's own data can.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hatdfed.core.false_reports import falsify
from hatdfed.core.round import RoundReport
from hatdfed.errors import ConfigError
from hatdfed.randomness import torch_seed


class Attack(Protocol):
    """Makes the model that a liar sends. Has frozen settings and no state."""

    needs_others: ClassVar[bool]  # whether `honest` is used
    needs_first: ClassVar[bool]  # whether `first` is used
    falsifies: ClassVar[bool]  # whether the liar's reports are false
    flips_labels: ClassVar[bool]  # whether the liar trains on flipped labels

    def craft(self, own: Tensor, honest: Tensor, first: Tensor, t: int, rounds: int, seed: int) -> Tensor:
        """Make the model [P] that the liar sends in round t of `rounds`, counted from 0.

        `own` [P] is its model after training, `honest` [H, P] are those of all honest servers in this round, and
        `first` [P] is the model that it began with. Liars with different seeds draw different noise.
        """


class Lie:
    """Base class of attacks; by default a liar needs only its own model, trains honestly and reports honestly."""

    needs_others: ClassVar[bool] = False
    needs_first: ClassVar[bool] = False
    falsifies: ClassVar[bool] = False
    flips_labels: ClassVar[bool] = False


@dataclass(frozen=True)
class SignFlip(Lie):
    """Sends −x, the negative of its own model."""

    def craft(self, own: Tensor, honest: Tensor, first: Tensor, t: int, rounds: int, seed: int) -> Tensor:
        """Return −own."""
        return -own


@dataclass(frozen=True)
class Scale(Lie):
    """Sends its own model, multiplied."""

    factor: float = 10.0

    def __post_init__(self) -> None:
        _require_finite("factor", self.factor)

    def craft(self, own: Tensor, honest: Tensor, first: Tensor, t: int, rounds: int, seed: int) -> Tensor:
        """Return factor · own."""
        return self.factor * own


@dataclass(frozen=True)
class Noise(Lie):
    """Sends its own model with Gaussian noise as large as the model itself."""

    strength: float = 1.0  # standard deviation of the noise, in units of the model's root mean square

    def __post_init__(self) -> None:
        if not 0 <= self.strength < math.inf:
            raise ConfigError(f"attack.strength is {self.strength}, but must be a number, at least 0.")

    def craft(self, own: Tensor, honest: Tensor, first: Tensor, t: int, rounds: int, seed: int) -> Tensor:
        """Return own + strength · (root mean square of own) · N(0, 1), the same for the same seed and round."""
        # Drawn on the CPU, so that every device gets the same numbers.
        generator = torch.Generator().manual_seed(torch_seed(seed, "attack-noise", t))
        noise = torch.randn(len(own), generator=generator, dtype=own.dtype).to(own.device)
        return own + self.strength * _root_mean_square(own) * noise


@dataclass(frozen=True)
class Constant(Lie):
    """Sends a model whose numbers all equal the root mean square of its own."""

    def craft(self, own: Tensor, honest: Tensor, first: Tensor, t: int, rounds: int, seed: int) -> Tensor:
        """Return a constant model with the norm of `own`."""
        return _root_mean_square(own).expand_as(own).clone()


@dataclass(frozen=True)
class Stale(Lie):
    """Sends its initial model in every round."""

    needs_first: ClassVar[bool] = True

    def craft(self, own: Tensor, honest: Tensor, first: Tensor, t: int, rounds: int, seed: int) -> Tensor:
        """Return `first`."""
        return first.clone()


@dataclass(frozen=True)
class LittleIsEnough(Lie):
    """Sends the mean of the honest models, moved by so few standard deviations that it stays among them.

    G. Baruch, M. Baruch, Y. Goldberg. A little is enough: circumventing defenses for distributed learning. NeurIPS
    2019. With n servers of which f lie, s = ⌊n/2 + 1⌋ − f honest ones must be further from the mean than the liars for
    these to be in the majority, so

        z = Φ⁻¹((n − f − s)/(n − f)),    and liars send μ − z·σ in every coordinate.

    μ and σ are those of the honest models; n and f are those of the whole fleet. For few liars in a small fleet the
    formula gives z ≤ 0 (for n = 5 and f = 1 it is 0); negative values are raised to 0, which sends the mean. Where
    liars are in the majority, s is raised to 1. With `deviations`, z does not depend on n and f.
    """

    liars: int = 1  # f
    deviations: float | None = None  # z; None: from the formula

    needs_others: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.liars < 1:
            raise ConfigError(f"attack.liars is {self.liars}, but must be at least 1.")
        if self.deviations is not None:
            _require_finite("deviations", self.deviations)

    def craft(self, own: Tensor, honest: Tensor, first: Tensor, t: int, rounds: int, seed: int) -> Tensor:
        """Return μ − z·σ."""
        z = self._formula(len(honest)) if self.deviations is None else self.deviations
        return honest.mean(dim=0) - z * honest.std(dim=0, correction=0)

    def _formula(self, num_honest: int) -> float:
        supporters = max(1, (num_honest + self.liars) // 2 + 1 - self.liars)
        share = (num_honest - supporters) / num_honest
        return max(0.0, NormalDist().inv_cdf(share)) if share > 0 else 0.0


@dataclass(frozen=True)
class InnerProduct(Lie):
    """Inner-product manipulation: sends the mean of the honest models with the opposite sign.

    C. Xie, O. Koyejo, I. Gupta. Fall of empires: breaking Byzantine-tolerant SGD by inner product manipulation. UAI
    2019: liars send −ε·μ. A small ε keeps the distance to the honest models small.
    """

    strength: float = 0.5  # ε

    needs_others: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 < self.strength < math.inf:
            raise ConfigError(f"attack.strength is {self.strength}, but must be a number above 0.")

    def craft(self, own: Tensor, honest: Tensor, first: Tensor, t: int, rounds: int, seed: int) -> Tensor:
        """Return −strength · (mean of the honest models)."""
        return -self.strength * honest.mean(dim=0)


@dataclass(frozen=True)
class LabelFlip(Lie):
    """Trains on labels counted from the other end (`data/flaws.py`) and sends the model that comes of it."""

    flips_labels: ClassVar[bool] = True

    def craft(self, own: Tensor, honest: Tensor, first: Tensor, t: int, rounds: int, seed: int) -> Tensor:
        """Return `own`."""
        return own.clone()


@dataclass(frozen=True)
class Sleeper(Lie):
    """Sends its own model at first and its negative later."""

    honest_share: float = 0.4  # share of the rounds, from the first one, in which it is honest

    def __post_init__(self) -> None:
        if not 0 <= self.honest_share <= 1:
            raise ConfigError(f"attack.honest_share is {self.honest_share}, but must lie between 0 and 1.")

    def craft(self, own: Tensor, honest: Tensor, first: Tensor, t: int, rounds: int, seed: int) -> Tensor:
        """Return `own` in the first rounds, then −own."""
        return own.clone() if t < self.honest_share * rounds else -own


@dataclass(frozen=True)
class FalseReports(Lie):
    """Sends its own model, and false reports to the coordinator."""

    falsifies: ClassVar[bool] = True

    def craft(self, own: Tensor, honest: Tensor, first: Tensor, t: int, rounds: int, seed: int) -> Tensor:
        """Return `own`."""
        return own.clone()


ATTACKS: Mapping[str, type[Attack]] = {
    "sign-flip": SignFlip,
    "scale": Scale,
    "noise": Noise,
    "constant": Constant,
    "stale": Stale,
    "alie": LittleIsEnough,
    "ipm": InnerProduct,
    "label-flip": LabelFlip,
    "sleeper": Sleeper,
    "false-reports": FalseReports,
}


def _root_mean_square(model: Tensor) -> Tensor:  # [P] -> []
    return model.double().square().mean().sqrt().to(model.dtype)


def _require_finite(name: str, value: float) -> None:
    if not math.isfinite(value):
        raise ConfigError(f"attack.{name} is {value}, but must be a finite number.")


class Liars(NamedTuple):
    """The liars of a simulated run, and what they do."""

    servers: NDArray[np.int64]
    attack: Attack
    rounds: int
    seed: int

    def craft(self, models: Tensor, server: int, make_first: Callable[[], Tensor], t: int) -> Tensor:  # [N, P] -> [P]
        """What the liar `server` sends in round t, given the models of all servers after training.

        `make_first` makes the model that it began with; it is called where an attack needs it.
        """
        honest = np.setdiff1d(np.arange(len(models)), self.servers)
        others = models[torch.from_numpy(honest)] if self.attack.needs_others else models[:0]
        first = make_first().to(models.device) if self.attack.needs_first else models[server]
        return self.attack.craft(models[server], others, first, t, self.rounds, self.seed + server)

    def report(self, honest: RoundReport) -> RoundReport:
        """What the coordinator is told: the truth, unless the attack is about reports."""
        return falsify(honest, self.servers) if self.attack.falsifies else honest


def make_liars(name: str, servers: NDArray[np.int64], *, rounds: int, seed: int) -> Liars:
    """Liars that do what `name` says; an attack that depends on how many they are is told."""
    attack = LittleIsEnough(liars=len(servers)) if name == "alie" else ATTACKS[name]()
    return Liars(servers, attack, rounds, seed)
