"""What plans are written in: scales, the settings of a point, and the places that experiments are played in.

Every run names the settings that any experiment varies, so that experiments recognise each other's runs: the paper's
γ = 0.3 is played once, for Table 1, and also stands in the sparsity figure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hatdfed.errors import ConfigError, did_you_mean

Settings = dict[str, Any]

BASELINES = ("rnd", "d-psgd", "dac", "sgp")
PLUS = "hat-dfed-plus-0.1"  # the recipe that the committed results are about
HARD: Mapping[str, Any] = {"label_concentration": 0.3, "device_online_probability": 0.5}  # the default setting
EASY: Mapping[str, Any] = {"label_concentration": 0.7, "device_online_probability": 0.9}
SETTING = ("label_concentration", "device_online_probability")  # λ and ρ

_SHARES = {"link_share": 0.3, "gain_share": 0.6, "quality_share": 0.4}  # γ, α, β


@dataclass(frozen=True)
class Scale:
    """How much of an experiment is run."""

    name: str
    datasets: tuple[str, ...]
    seeds: int
    servers: tuple[int, ...]  # of the scalability experiment
    common: Mapping[str, Any] = field(default_factory=dict)
    first_seed: int = 0  # of experiments that have fresh seeds at full scale
    fleets: tuple[int, ...] = ()  # numbers of servers of the frontier; the first of `servers` unless said


FULL = Scale("full", ("fashion-mnist", "cifar-10"), seeds=10, servers=(5, 10, 20, 50), fleets=(5, 20, 50))
# Enough to see that every table and figure can be made; its figures mean nothing.
SMOKE = Scale("smoke", ("digits",), seeds=2, servers=(5, 10), common={"rounds": 20, "validation_images": 100})
# Enough to look at a question on embedded data before the full scale decides it; confirms nothing.
EXPLORE = Scale("explore", ("digits",), seeds=5, servers=(5, 20), common={"rounds": 100}, first_seed=20, fleets=(5, 20))
SCALES = {scale.name: scale for scale in (SMOKE, EXPLORE, FULL)}


def scale_named(name: str) -> Scale:
    """The scale called `name`."""
    if name not in SCALES:
        raise ConfigError(f"There is no scale called {name!r}. {did_you_mean(name, SCALES)}")
    return SCALES[name]


def settings_of_table_1() -> list[dict[str, float]]:
    """λ and ρ, as in the paper."""
    return [
        {"label_concentration": skew, "device_online_probability": online}
        for skew in (0.3, 0.7)
        for online in (0.5, 0.9)
    ]


def setting_name(settings: Mapping[str, Any]) -> str:
    """λ and ρ, for the eye."""
    return f"λ {settings['label_concentration']:g}, ρ {settings['device_online_probability']:g}"


def point(dataset: str, method: str, **settings: Any) -> Settings:
    """The settings of a run but for its seed; those of the bandit and the merge only where a method has them."""
    shares = _SHARES if method.startswith("hat-dfed") else {}
    return {"dataset": dataset, "method": method, "servers": 5, **HARD, **shares, **settings}
