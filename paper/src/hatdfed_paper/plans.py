"""The experiments as lists of settings: RQ1 to RQ5 of the paper, and three of ours that stand behind them.

Every run names the settings that any experiment varies, so that experiments recognise each other's runs: the paper's
γ = 0.3 is played once, for Table 1, and also stands in the sparsity figure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any

from hatdfed.data.datasets import dataset_kind
from hatdfed.errors import ConfigError, did_you_mean
from hatdfed_paper.equal_footing import equal_footing, without_thrift
from hatdfed_paper.link_regimes import ways_to_draw
from hatdfed_paper.places import EASY, HARD
from hatdfed_paper.plus_plans import PLUS, SWEEPS, WITHOUT

Settings = dict[str, Any]

BASELINES = ("rnd", "d-psgd", "dac", "sgp")
TABLE_METHODS = (*BASELINES, "hat-dfed", "full", "local")
ABLATIONS = ("hat-dfed", "hat-dfed-without-utc", "hat-dfed-without-ima")
LINK_SHARES = (0.1, 0.2, 0.3, 0.4, 0.5)
GAIN_SHARES = (0.4, 0.5, 0.6, 0.7, 0.8)  # α, swept at three β
QUALITY_SHARES = (0.2, 0.3, 0.4, 0.5, 0.6)  # β, swept at three α
PASSES = (1, 2, 4, 8)  # what D4 is chosen from
MANY_SAMPLES = 240  # a round, the variant of D4

_SHARES = {"link_share": 0.3, "gain_share": 0.6, "quality_share": 0.4}  # γ, α, β


@dataclass(frozen=True)
class Scale:
    """How much of an experiment is run."""

    name: str
    datasets: tuple[str, ...]
    seeds: int
    servers: tuple[int, ...]  # of the scalability experiment
    common: Mapping[str, Any] = field(default_factory=dict)


FULL = Scale("full", ("fashion-mnist", "cifar-10"), seeds=10, servers=(5, 10, 20, 50))
# Enough to see that every table and figure can be made; its figures mean nothing.
SMOKE = Scale("smoke", ("digits",), seeds=2, servers=(5, 10), common={"rounds": 20, "validation_images": 100})
SCALES = {scale.name: scale for scale in (SMOKE, FULL)}


@dataclass(frozen=True)
class Experiment:
    """A name, what it asks, and its points: settings without seed."""

    name: str
    question: str
    points: Callable[[str, Scale], Iterator[Settings]]  # of one data set
    group: str = "paper"  # RQ1 to RQ5; or "behind": what stands behind them; or "plus": what goes beyond
    seeds: int | None = None  # fewer than the scale's
    first_seed: int = 0


def _table1(dataset: str, scale: Scale) -> Iterator[Settings]:
    for setting, method in product(settings_of_table_1(), TABLE_METHODS):
        yield point(dataset, method, **setting)


def _sparsity(dataset: str, scale: Scale) -> Iterator[Settings]:
    for setting, share in product(settings_of_table_1(), LINK_SHARES):
        yield point(dataset, "hat-dfed", **setting, link_share=share)


def _scalability(dataset: str, scale: Scale) -> Iterator[Settings]:
    for servers in scale.servers:
        yield point(dataset, "hat-dfed", **EASY, servers=servers)


def _sensitivity(dataset: str, scale: Scale) -> Iterator[Settings]:
    pairs = {*product(GAIN_SHARES, QUALITY_SHARES[1:4]), *product(GAIN_SHARES[1:4], QUALITY_SHARES)}
    for gain, quality in sorted(pairs):
        yield point(dataset, "hat-dfed", gain_share=gain, quality_share=quality)


def _ablation(dataset: str, scale: Scale) -> Iterator[Settings]:
    for method in ABLATIONS:
        yield point(dataset, method)


def _calibration(dataset: str, scale: Scale) -> Iterator[Settings]:
    for setting, passes in product(settings_of_table_1(), PASSES):
        yield point(dataset, "d-psgd", **setting, local_passes=passes)
    for setting, passes in product(settings_of_table_1(), PASSES[:3]):
        yield point(dataset, "d-psgd", **setting, local_passes=passes, samples_per_round=MANY_SAMPLES)


def _readings(dataset: str, scale: Scale) -> Iterator[Settings]:
    yield point(dataset, "hat-dfed")
    for reading in READINGS:
        if reading.settings != {"local_passes": dataset_kind(dataset).defaults["local_passes"]}:  # that is the first
            yield point(dataset, "hat-dfed", **reading.settings)


def _released(dataset: str, scale: Scale) -> Iterator[Settings]:
    for setting in settings_of_table_1():
        yield point(dataset, "hat-dfed-released", **setting)
    yield point(dataset, "hat-dfed-released", feedback="validation")
    yield point(dataset, "hat-dfed-literal")


def _plus(dataset: str, scale: Scale) -> Iterator[Settings]:
    for setting, method in product(settings_of_table_1(), (*BASELINES, "hat-dfed", PLUS)):
        yield point(dataset, method, **setting)


def _plus_large(dataset: str, scale: Scale) -> Iterator[Settings]:
    for servers, method in product(scale.servers[2:], (*BASELINES, "hat-dfed", PLUS)):
        yield point(dataset, method, servers=servers)


def _plus_equal(dataset: str, scale: Scale) -> Iterator[Settings]:
    for setting in settings_of_table_1():
        yield point(dataset, PLUS, **setting)
        for method in (*BASELINES, "hat-dfed"):
            yield point(dataset, method, **setting, **equal_footing(method, dataset, 5))


def _plus_equal_large(dataset: str, scale: Scale) -> Iterator[Settings]:
    for servers in scale.servers[2:]:
        yield point(dataset, PLUS, servers=servers)
        for method in (*BASELINES, "hat-dfed"):
            yield point(dataset, method, servers=servers, **equal_footing(method, dataset, servers))


def _plus_dense(dataset: str, scale: Scale) -> Iterator[Settings]:
    for setting in settings_of_table_1():
        yield point(dataset, PLUS, **setting)
        for method in BASELINES:
            yield point(dataset, method, **setting, **without_thrift(dataset))


def _plus_regimes(dataset: str, scale: Scale) -> Iterator[Settings]:
    for servers in scale.servers[2:] or scale.servers[-1:]:
        for _, _, settings in ways_to_draw(dataset, servers):
            yield point(dataset, PLUS, **settings)


def _plus_ablation(dataset: str, scale: Scale) -> Iterator[Settings]:
    yield point(dataset, PLUS)
    for without in WITHOUT:
        yield point(dataset, PLUS, **without.settings)


def _sweep(name: str, dataset: str, scale: Scale) -> Iterator[Settings]:
    sweep = SWEEPS[name]
    for place, changed in product(sweep.places_for(dataset), sweep.settings()):
        yield point(dataset, "hat-dfed", **place, **changed)


@dataclass(frozen=True)
class Reading:
    """One other way to read the paper."""

    number: str
    words: str
    settings: Mapping[str, Any]


READINGS = (
    Reading("D3", "the bandit learns from the test set", {"feedback": "test"}),
    Reading("D4", "1 pass over a round's data, as printed", {"local_passes": 1}),
    *(Reading("D4", f"{passes} passes over a round's data", {"local_passes": passes}) for passes in PASSES[1:]),
    Reading("D4", "240 samples a round", {"samples_per_round": MANY_SAMPLES}),
    Reading("D7", "softmax, as printed", {"utility": {"normalisation": "softmax"}}),
    Reading("D7", "softmax of z-scores", {"utility": {"normalisation": "softmax-standardised"}}),
    Reading("D8", "accuracy gain as released", {"utility": {"gain": "released"}}),
    Reading("D8", "unit costs as released", {"utility": {"thrift": "released"}}),
    Reading("D8", "η = 0.01", {"policy": {"learning_rate": 0.01}}),
    Reading("D8", "P_0 = 0", {"first_gain_from": "zero"}),
    Reading("D8", "PyTorch's initialisation", {"learner": {"initialisation": "module"}}),
    Reading("D9", "divide by p after rounding", {"policy": {"propensity": "after-rounding"}}),
    Reading("D12", "clip what exceeds 1", {"policy": {"capping": "clip"}}),
    Reading("D15", "probe of 50", {"probe_size": 50}),
    Reading("D15", "probe of 50, topped up", {"probe_size": 50, "probe_top_up": True}),
    Reading("D16", "high loss first, as printed", {"aggregator": {"loss_order": "high-first"}}),
    Reading("D17", "B·RMS(loss), as printed", {"aggregator": {"loss_scale": "printed"}}),
    Reading("D17", "mean loss / √50, as released", {"aggregator": {"loss_scale": "released"}}),
    Reading("D17", "softmax of counts, as printed", {"aggregator": {"volume": "softmax-of-counts"}}),
    Reading("D18", "the receiver's count for all", {"aggregator": {"volume": "receiver-count"}}),
)  # fmt: skip

_TABLE = (
    Experiment("table1", "RQ1: accuracy and energy against the baselines in four settings", _table1),
    Experiment("sparsity", "RQ2: how many links, γ = 0.1 … 0.5", _sparsity),
    Experiment("scalability", "RQ3: more servers, up to N = 50", _scalability),
    Experiment("sensitivity", "RQ4: the weights α and β", _sensitivity),
    Experiment("ablation", "RQ5: without the bandit, without importance-aware merging", _ablation),
    Experiment(
        "calibration", "D4: how much local work brings d-psgd to its published accuracy", _calibration, "behind", 5
    ),
    Experiment("readings", "What each reading of the paper is worth", _readings, "behind"),
    Experiment("released", "The authors' code as published, and the paper as printed", _released, "behind", 5),
    Experiment(
        "plus_search",
        "What hat-dfed-plus should be made of, on validation data",
        partial(_sweep, "plus_search"),
        "plus",
        seeds=3,
        first_seed=100,
    ),
    Experiment(
        "plus_search_again",
        "Again, from what that chose",
        partial(_sweep, "plus_search_again"),
        "plus",
        seeds=5,
        first_seed=103,
    ),
    Experiment(
        "plus_search_many",
        "The same question with 20 and 50 servers",
        partial(_sweep, "plus_search_many"),
        "plus",
        seeds=3,
        first_seed=108,
    ),
    Experiment("plus", "hat-dfed-plus against every method as it is", _plus, "plus"),
    Experiment("plus_large", "The same with 20 and 50 servers", _plus_large, "plus", 5),
    Experiment("plus_equal", "Every method with the same loss, finish, codec and link joules", _plus_equal, "plus"),
    Experiment("plus_equal_large", "The same with 20 and 50 servers", _plus_equal_large, "plus", 5),
    Experiment(
        "plus_dense", "The baselines with its loss and finish, but whole models in every round", _plus_dense, "plus"
    ),
    Experiment("plus_regimes", "Where it might matter which links are drawn", _plus_regimes, "plus", 5),
    Experiment("plus_ablation", "hat-dfed-plus without each of its parts", _plus_ablation, "plus"),
)
EXPERIMENTS = {experiment.name: experiment for experiment in _TABLE}
THE_PAPER = tuple(experiment.name for experiment in _TABLE if experiment.group == "paper")


def settings_of_table_1() -> list[dict[str, float]]:
    """λ and ρ, as in the paper."""
    return [
        {"label_concentration": skew, "device_online_probability": online}
        for skew in (0.3, 0.7)
        for online in (0.5, 0.9)
    ]


def point(dataset: str, method: str, **settings: Any) -> Settings:
    """The settings of a run but for its seed; those of the bandit and the merge only where a method has them."""
    shares = _SHARES if method.startswith("hat-dfed") else {}
    return {"dataset": dataset, "method": method, "servers": 5, **HARD, **shares, **settings}


def points(experiment: str, scale: Scale) -> list[Settings]:
    """Every point of an experiment, data set by data set."""
    chosen = experiment_named(experiment)
    return [found for dataset in scale.datasets for found in chosen.points(dataset, scale)]


def runs(experiment: str, scale: Scale) -> list[Settings]:
    """Every run of an experiment; those that share a world stand together."""
    chosen = experiment_named(experiment)
    seeds = min(scale.seeds, chosen.seeds or scale.seeds)
    return [
        {**found, "seed": seed}
        for dataset in scale.datasets
        for seed in range(chosen.first_seed, chosen.first_seed + seeds)
        for found in points(experiment, scale)
        if found["dataset"] == dataset
    ]


def experiment_named(name: str) -> Experiment:
    """The experiment called `name`."""
    if name not in EXPERIMENTS:
        raise ConfigError(f"There is no experiment called {name!r}. {did_you_mean(name, EXPERIMENTS)}")
    return EXPERIMENTS[name]


def scale_named(name: str) -> Scale:
    """The scale called `name`."""
    if name not in SCALES:
        raise ConfigError(f"There is no scale called {name!r}. {did_you_mean(name, SCALES)}")
    return SCALES[name]
