"""SkipTrain's experiment on CIFAR-10, shortened: phones that train or only exchange models, on three regular graphs.

A. Dhasade et al. Energy-aware decentralized learning with intermittent model training. IPDPS workshops 2024, arXiv
2407.01283: 256 servers with two shards of the labels each, LeNet with group norm, 20 steps of 32 images a round by SGD
with rate 0.1, and four kinds of phones. In a part of it a phone may spend a tenth of its battery on training.
Energies of a round and batteries are those of the authors' published trace. What is different here: 24 rounds in place
of 1,000, with budgets in proportion, which only one of the graphs has; graphs, shards and initial models of our own
drawing; the 32 images of a step come from 160 that a server draws for the round and goes through four times. The price
of a link is an assumption: with it, links of the sparsest graph take about a two-hundredth of what training takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from hatdfed.runs.statistics import PairedDifference
from hatdfed_paper.claims import Claims
from hatdfed_paper.differences import Contest, points_gained, shared_seeds
from hatdfed_paper.experiment import BEYOND, Experiment, Table
from hatdfed_paper.markdown import NOTHING, format_difference, format_figure, format_seeds, table
from hatdfed_paper.plan import EXPLORE, FULL, PLUS, SMOKE, Scale, Settings, point
from hatdfed_paper.protocol import Protocol
from hatdfed_paper.results import Results
from hatdfed_paper.rows import Row, interval_or_none, pair

_PUBLISHED_ROUNDS = 1000
_WH = 3600.0  # J
_MJ = 1e6  # J

# Watts while it trains, seconds for an image and pass, and rounds for a tenth of the battery, by the published trace.
_PHONES = {
    "xiaomi-12-pro": (17.7, 2.076125e-3, 272),
    "galaxy-s22-ultra": (15.1, 2.229913e-3, 324),
    "oneplus-nord-2": (11.0, 1.307190e-3, 681),
    "poco-x3": (8.2, 5.843909e-3, 272),
}

# Training and synchronisation rounds of a cycle, by the number of neighbours.
CYCLES = {6: (4, 4), 8: (3, 3), 10: (4, 2)}

D_PSGD, SKIP, OURS = "d-psgd", "skip-train", "ours"
GREEDY, SKIP_IN_BUDGET, OURS_IN_BUDGET = "greedy", "skip-train, budget", "ours, budget"
WITHOUT_BUDGET, IN_BUDGET = (D_PSGD, SKIP, OURS), (GREEDY, SKIP_IN_BUDGET, OURS_IN_BUDGET)
_BUDGET_DEGREE = 6  # of the graph on which there are budgets
RIVALS = {OURS: SKIP, OURS_IN_BUDGET: SKIP_IN_BUDGET}


class Size(NamedTuple):
    """How large the experiment is at a scale."""

    servers: int
    rounds: int
    datasets: tuple[str, ...]
    work: Mapping[str, int]


_PUBLISHED_WORK = {"images_per_server": 175, "samples_per_round": 160, "batch_size": 32, "local_passes": 4}
_LITTLE_WORK = {"images_per_server": 64, "samples_per_round": 64, "batch_size": 32, "local_passes": 2}
_SIZES = {
    FULL.name: Size(256, 24, ("cifar-10",), _PUBLISHED_WORK),
    EXPLORE.name: Size(16, 24, EXPLORE.datasets, _LITTLE_WORK),
    SMOKE.name: Size(12, 12, SMOKE.datasets, _LITTLE_WORK),
}


def place(dataset: str, degree: int, method: str, scale: Scale) -> Settings:
    """The settings of a method on a graph."""
    size = _SIZES[scale.name]
    graph = {"name": "regular-graph", "degree": degree}
    train, sync = CYCLES[degree]
    cycle = {"name": "skip-train", "train_rounds": train, "sync_rounds": sync}
    budget = {"budget_rounds": [round(each * size.rounds / _PUBLISHED_ROUNDS) for _, _, each in _PHONES.values()]}
    training: Mapping[str, Mapping[str, Any]] = {
        D_PSGD: {"name": "always"},
        SKIP: cycle,
        OURS: cycle,
        GREEDY: {"name": "skip-train", "sync_rounds": 0, "spread": False, **budget},
        SKIP_IN_BUDGET: {**cycle, **budget},
        OURS_IN_BUDGET: {**cycle, **budget},
    }
    is_ours = method in RIVALS
    learner = {"optimiser": "sgd", "learning_rate": 0.1, "initialisation": "module"}
    return point(
        dataset,
        PLUS if is_ours else "d-psgd",
        policy=graph,
        training=training[method],
        learner={**learner, "cool_down": 0.25} if is_ours else learner,
        **({"schedule": {"every": 1, "finish_rounds": 0}} if is_ours else {}),
        servers=size.servers,
        rounds=size.rounds,
        device_online_probability=1.0,
        devices=1,
        network="lenet-group-norm",
        common_init=True,
        split="shards",
        split_options={"shards_per_server": 2},
        validation_images=100,
        uploads={"keep": "samples"},
        machines={"profiles": [_profile(name, *figures) for name, figures in _PHONES.items()]},
        energy={
            "model_bits": "actual", "training_per": "pass", "device_kbit_per_joule": 1e9,
            "link_kbit_per_joule": [175_000.0, 175_000.0],
        },
        **size.work,
    )  # fmt: skip


def _profile(name: str, watts: float, seconds: float, rounds: int) -> dict[str, Any]:
    """A phone as a machine; what is not in the trace plays no part here, such as rates."""
    rates = {"upload_mbit_per_second": 100.0, "uplink_mbit_per_second": 100.0, "latency_seconds": 0.01}
    return {"name": name, "idle_watts": 1.0, "training_watts": watts, "sample_seconds": seconds, **rates}


def _points(dataset: str, scale: Scale) -> Iterator[Settings]:
    if dataset in _SIZES[scale.name].datasets:
        for degree, method in lines():
            yield place(dataset, degree, method, scale)


def _decisive(dataset: str, scale: Scale) -> Iterator[Settings]:
    if dataset in _SIZES[scale.name].datasets:
        for degree, method in product(CYCLES, (SKIP, OURS)):
            yield place(dataset, degree, method, scale)


def lines() -> list[tuple[int, str]]:
    """Neighbours and method of every line of the table."""
    return [*product(CYCLES, WITHOUT_BUDGET), *product((_BUDGET_DEGREE,), IN_BUDGET)]


def graph_rows(results: Results, claims: Claims, scale: Scale) -> list[Row]:
    """A row for each graph and method: accuracy, watt-hours, and how ours stand to their rival."""
    rows = []
    for dataset, (degree, method) in product(_SIZES[scale.name].datasets, lines()):
        mine = place(dataset, degree, method, scale)
        if not results.at(mine):
            continue
        rival = place(dataset, degree, RIVALS[method], scale) if method in RIVALS else None
        gained = None if rival is None else points_gained(results, [Contest(mine, {"": rival})], "avg_accuracy")
        contest = [Contest(mine, {} if rival is None else {"": rival})]
        is_complete = EXPERIMENT.is_complete(shared_seeds(results, contest), scale)
        training, total = (_watt_hours(results, mine, name) for name in ("training_energy_mj", "total_energy_mj"))
        rows.append(
            {
                "dataset": dataset, "servers": mine["servers"], "degree": degree, "method": method,
                "avg_accuracy": pair(results.figures(mine, "avg_accuracy").values()),
                "training_wh": pair(training.values()), "total_wh": pair(total.values()),
                "training_wh_in_1000_rounds": pair(
                    each * _PUBLISHED_ROUNDS / mine["rounds"] for each in training.values()
                ),
                "against": RIVALS.get(method), "accuracy_points": interval_or_none(gained),
                "holds": None if rival is None or not is_complete or gained is None else judge(
                    gained, training, _watt_hours(results, rival, "training_energy_mj")
                ),
                "seeds": sorted(results.at(mine)),
            }
        )  # fmt: skip
    return rows


def judge(gained: PairedDifference, mine: Mapping[int, float], rival: Mapping[int, float]) -> bool | None:
    """Whether a method is more accurate on a graph for no more watt-hours of training; None with too few seeds."""
    if gained.low is None:
        return None
    return gained.low > 0 and all(mine[seed] <= rival[seed] * (1 + 1e-9) for seed in mine.keys() & rival.keys())


def graph_markdown(rows: Sequence[Row]) -> str:
    """Methods one below another, graph by graph."""
    headings = ["data set", "N", "neighbours", "method", "accuracy %", "training Wh", "in 1,000 rounds", "all Wh",
                "against", "points", "shown", "seeds"]  # fmt: skip
    words = {True: "yes", False: "no", None: NOTHING}
    cells = [
        [
            row["dataset"], str(row["servers"]), str(row["degree"]), row["method"],
            format_figure(row["avg_accuracy"], None),
            *(f"{row[key][0]:,.4g}" for key in ("training_wh", "training_wh_in_1000_rounds", "total_wh")),
            row["against"] or NOTHING,
            NOTHING if row["accuracy_points"] is None else format_difference(row["accuracy_points"], 2),
            words[row["holds"]], format_seeds(row["seeds"], row["accuracy_points"]),
        ]
        for row in rows
    ]  # fmt: skip
    return table(headings, cells)


def _watt_hours(results: Results, place: Settings, figure: str) -> dict[int, float]:
    return {seed: value * _MJ / _WH for seed, value in results.figures(place, figure).items()}


EXPERIMENT = Experiment(
    "skip_train",
    "SkipTrain's experiment on CIFAR-10, with 24 of its 1,000 rounds",
    _points,
    BEYOND,
    fleet_seeds={256: range(400, 403)},
    protocol=Protocol(
        comparison=f"on each of three graphs, {OURS} against {SKIP}, both in the same rounds of training and exchange: "
        "the label-prior loss, the cool-down and the four-bit messages of the recipe; mean test accuracy of servers, "
        "seed by seed",
        null="the difference is 0 points or less",
        rule="shown if on all three graphs the 95 % interval lies above 0 and no seed has more watt-hours of training. "
        f"{OURS_IN_BUDGET} against {SKIP_IN_BUDGET}, on one graph, is judged likewise, by itself. {D_PSGD} and "
        f"{GREEDY} are reported without a claim. Runs have a fortieth of the published rounds, so accuracies are not "
        "those of the paper.",
    ),
    known="none of these settings; digits, and validation accuracies of fleets of 10 and 12 servers on CIFAR-10",
    decisive=_decisive,
    tables=(Table("skip_train", graph_rows, graph_markdown),),
)
