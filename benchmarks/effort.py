"""Where joules of training and uploads can be saved: decisions about training, and uploads that are kept. Exploratory.

    OMP_NUM_THREADS=1 python benchmarks/effort.py [--dataset digits] [--seeds 30 31 32 33 34] [--recipes keep …]
        prints tables, writes results/effort-DATASET.json
    python benchmarks/effort.py --dataset fashion-mnist --charged pass --group search --device cuda --time-limit 110
        plays the recipes of a group, as many runs together as can share a fleet

Every recipe is that of hat-dfed-plus with a few parts changed, charged by the sample and pass, and by the sample as in
the paper (D6). On digits, prices are such that training, uploads and links have about the shares that they have with
hat-dfed-plus on Fashion-MNIST. Accuracies are those on validation data after the last round; the test set is not used.
A cell that is in the file already is not played again, so a command that ran out of time goes on. Recipes share seeds,
so they meet the same worlds; those with `common_init` have other initial models.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hatdfed.runs.play import Job
from hatdfed.runs.records.folder import environment
from hatdfed.runs.result import RunResult
from hatdfed.setup.build.placement import Placement
from hatdfed.setup.config import Config
from hatdfed.setup.layers import merge_layers, resolve
from hatdfed.sweeps.batches import PlayOptions, TimeLimit, play_jobs

RESULTS = Path(__file__).parent / "results"
ACCOUNTINGS = ("pass", "sample")
CAUSES = ("training", "upload", "link")
REFERENCE = "hat-dfed-plus"
Settings = Mapping[str, Any]

COMMON: dict[str, Settings] = {
    "digits": {
        "servers": 8,
        "rounds": 120,
        "images_per_server": 240,
        "energy": {"weak_joules_per_sample": 0.7, "strong_joules_per_sample": 0.35, "link_kbit_per_joule": [5.0, 12.5]},
    },
    "fashion-mnist": {},
}
KEEP: Settings = {"uploads": {"keep": "samples"}}


def _train(name: str, **settings: Any) -> Settings:
    return {"training": {"name": name, **settings}}


def _split_budget(every: int) -> Settings:
    """About half of what keeping uploads leaves on digits, charged by the pass."""
    return {**KEEP, "budget_joules": 20_000.0, "schedule": {"every": every, "finish_rounds": 2}}


RECIPES: dict[str, Settings] = {
    REFERENCE: {},
    "keep": KEEP,
    "keep at most 60": {"uploads": {"keep": "samples", "memory_samples": 60}},
    "1 pass": {"local_passes": 1},
    "4 passes": {"local_passes": 4},
    "every 2nd": _train("every", rounds=2),
    "keep, every 2nd": {**KEEP, **_train("every", rounds=2)},
    "keep, every 2nd in turn": {**KEEP, **_train("every", rounds=2, staggered=True)},
    "keep, every 2nd, 4 passes": {**KEEP, **_train("every", rounds=2), "local_passes": 4},
    "keep, every 3rd, 6 passes": {**KEEP, **_train("every", rounds=3), "local_passes": 6},
    "keep, ask every 4th": {**KEEP, **_train("every", rounds=1, ask_every=4)},
    "keep, skip-train 2/1": {**KEEP, **_train("skip-train", train_rounds=2, sync_rounds=1)},
    "keep, skip-train 1/1": {**KEEP, **_train("skip-train")},
    "keep, skip-train 1/0, 60 rounds": {**KEEP, **_train("skip-train", sync_rounds=0, budget_rounds=60)},
    "marginal-gain 0.4": _train("marginal-gain", saved=0.4),
    "keep, marginal-gain 0.3": {**KEEP, **_train("marginal-gain", saved=0.3)},
    "keep, marginal-gain 0.5": {**KEEP, **_train("marginal-gain", saved=0.5)},
    "keep, by-price 2/1": {**KEEP, **_train("by-price")},
    "keep, 1 pass": {**KEEP, "local_passes": 1},
    "keep, 1 pass, batch 16": {**KEEP, "local_passes": 1, "batch_size": 16},
    "keep, 1 pass, batch 8": {**KEEP, "local_passes": 1, "batch_size": 8},
    "1 pass, batch 16": {"local_passes": 1, "batch_size": 16},
    "batch 8": {"batch_size": 8},
    "keep, every 2nd, batch 16": {**KEEP, **_train("every", rounds=2), "batch_size": 16},
    "keep, every 2nd, batch 8": {**KEEP, **_train("every", rounds=2), "batch_size": 8},
    "keep, every 2nd in turn, batch 8": {**KEEP, **_train("every", rounds=2, staggered=True), "batch_size": 8},
    "keep, every 3rd, batch 8": {**KEEP, **_train("every", rounds=3), "batch_size": 8},
    "keep, skip-train 2/1, batch 8": {**KEEP, **_train("skip-train", train_rounds=2), "batch_size": 8},
    "keep, marginal-gain 0.5, batch 8": {**KEEP, **_train("marginal-gain", saved=0.5), "batch_size": 8},
    "keep, every 2nd, 1 pass, batch 8": {**KEEP, **_train("every", rounds=2), "local_passes": 1, "batch_size": 8},
    "keep, 1 pass, rate 0.002": {**KEEP, "local_passes": 1, "learner": {"learning_rate": 2e-3}},
    "keep, 1 pass, rate 0.003": {**KEEP, "local_passes": 1, "learner": {"learning_rate": 3e-3}},
    "keep, 1 pass, batch 16, rate 0.002": {
        **KEEP,
        "local_passes": 1,
        "batch_size": 16,
        "learner": {"learning_rate": 2e-3},
    },
    "keep, taper 2 to 0.6": {**KEEP, **_train("taper", first=2.0, last=0.6)},
    "keep, taper 0.6 to 2": {**KEEP, **_train("taper", first=0.6, last=2.0)},
    "keep, taper 2.6 to 0": {**KEEP, **_train("taper", first=2.6, last=0.0)},
    "keep, taper 0.6 to 2, rate 0.002": {
        **KEEP,
        **_train("taper", first=0.6, last=2.0),
        "learner": {"learning_rate": 2e-3},
    },
    "rate 0.002": {"learner": {"learning_rate": 2e-3}},
    "rate 0.003": {"learner": {"learning_rate": 3e-3}},
    # One budget, split between links and training in several ways; links come first.
    **{f"keep, budget, links every {m}": _split_budget(m) for m in (1, 2, 4, 8, 16)},
}

# What leaves out training, and what makes up for it: other samples, more or other links, other steps.
_SAVINGS: dict[str, Settings] = {
    "1 pass": {"local_passes": 1},
    "by-price 2/1": _train("by-price"),
    "taper 0.6 to 2": _train("taper", first=0.6, last=2.0),
    "taper 1 to 1.6": _train("taper", first=1.0, last=1.6),
    "taper 1 to 2": _train("taper", first=1.0, last=2.0),
    "1 pass over 40": {"local_passes": 1, "uploads": {"train_samples": 40}},
    "1 pass over 48": {"local_passes": 1, "uploads": {"train_samples": 48}},
    "2 passes over 20": {"uploads": {"train_samples": 20}},
    "2 passes over 24": {"uploads": {"train_samples": 24}},
}
_MEANS: dict[str, Settings] = {
    "rate 0.0015": {"learner": {"learning_rate": 1.5e-3}},
    "rate 0.002, cool 0.5": {"learner": {"learning_rate": 2e-3, "cool_down": 0.5}},
    "rate 0.003, cool 1": {"learner": {"learning_rate": 3e-3, "cool_down": 1.0}},
    "cool 0.5": {"learner": {"cool_down": 0.5}},
    "links every round": {"schedule": {"every": 1}},
    "links every round, cool 0.5": {"schedule": {"every": 1}, "learner": {"cool_down": 0.5}},
    "links every round, rate 0.002, cool 0.5": {
        "schedule": {"every": 1},
        "learner": {"learning_rate": 2e-3, "cool_down": 0.5},
    },
    "2 links": {"policy": {"degree": 2}},
    "finish 4": {"schedule": {"finish_rounds": 4}},
    "common start": {"common_init": True},
    "common start, links every round": {"common_init": True, "schedule": {"every": 1}},
    "AdamW": {"learner": {"optimiser": "adamw", "optimiser_settings": {"weight_decay": 0.05}}},
    "NAdam": {"learner": {"optimiser": "nadam"}},
    "prior 1.25": {"loss": {"strength": 1.25}},
}
SEARCH: dict[str, Settings] = {
    **{f"keep, {name}": merge_layers(KEEP, saving) for name, saving in _SAVINGS.items()},
    **{
        f"keep, {name}, {more}": merge_layers(KEEP, saving, means)
        for name, saving in _SAVINGS.items()
        for more, means in _MEANS.items()
    },
    # What the same means do without leaving out any training.
    **{f"keep, {more}": merge_layers(KEEP, means) for more, means in _MEANS.items()},
}
RECIPES = {**RECIPES, **{name: settings for name, settings in SEARCH.items() if name not in RECIPES}}
GROUPS = {"all": list(RECIPES), "search": [REFERENCE, "keep", *SEARCH]}

# Recipes that are compared with each other, seed by seed.
PAIRS = (
    ("keep, marginal-gain 0.5", "keep, every 2nd in turn"),
    ("keep, marginal-gain 0.3", "keep, skip-train 2/1"),
    ("keep, marginal-gain 0.5, batch 8", "keep, every 2nd in turn, batch 8"),
    ("keep, every 2nd in turn, batch 8", "batch 8"),
    ("keep, 1 pass, rate 0.003", "rate 0.003"),
    *((f"keep, budget, links every {m}", "keep, budget, links every 2") for m in (1, 4, 8, 16)),
)


def main() -> None:
    """Play what is missing, and keep what has ended after each batch of runs."""
    options = _options()
    path = options.out or RESULTS / f"effort-{options.dataset}.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"] if path.exists() else []
    rows = [row for row in rows if row["recipe"] in RECIPES and row["recipe"] not in options.again]
    have = {(row["recipe"], row["charged_per"], row["seed"]) for row in rows}
    wanted = itertools.product(options.seeds, options.recipes or GROUPS[options.group], options.charged)
    cells = [cell for seed, recipe, per in wanted if (cell := (recipe, per, seed)) not in have]
    jobs = {place: Job(_config(options.dataset, *cell)) for place, cell in enumerate(cells)}

    def done(place: int, figures: dict[str, Any]) -> None:
        recipe, per, seed = cells[place]
        rows.append({"recipe": recipe, "charged_per": per, "seed": seed, **figures})

    def write() -> None:
        content = {"machine": environment(), "common": COMMON[options.dataset], "rows": sorted(rows, key=_place)}
        path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    how = PlayOptions(
        Placement("stacked", options.device),
        options.data,
        keep=_figures,
        on_batch=write,
        limit=TimeLimit(options.limit),
    )
    play_jobs(jobs, options.jobs, how, done)
    for per in ACCOUNTINGS:
        _print_table([row for row in rows if row["charged_per"] == per], per)
    _print_pairs([row for row in rows if row["charged_per"] == ACCOUNTINGS[0]])


def _place(row: Mapping[str, Any]) -> tuple[int, int, int]:
    """Where a row stands in the file, in whatever order runs have ended."""
    return list(RECIPES).index(row["recipe"]), ACCOUNTINGS.index(row["charged_per"]), row["seed"]


def _config(dataset: str, recipe: str, per: str, seed: int) -> Config:
    fixed = {"method": "hat-dfed-plus", "dataset": dataset, "seed": seed, "checkpoint_every": 0}
    return resolve(merge_layers(fixed, COMMON[dataset], {"energy": {"training_per": per}}, RECIPES[recipe]))


def _figures(result: RunResult) -> dict[str, Any]:
    """Mean validation accuracy of the servers in percent, and joules by cause."""
    joules = {cause: 1e6 * result.summary["energy_by_cause_mj"][cause] for cause in CAUSES}
    return {
        "accuracy": result.rounds[-1]["avg_accuracy"],
        "curve": [row["avg_accuracy"] for row in result.rounds][:: max(1, result.config.rounds // 20)],
        "joules": joules,
        "total_joules": sum(joules.values()),
    }


def _print_table(rows: list[dict[str, Any]], per: str) -> None:
    """Means over seeds, beside the reference; the difference in accuracy with its standard error, seed by seed."""
    print(f"charged per {per}")
    reference = {row["seed"]: row for row in rows if row["recipe"] == REFERENCE}
    for recipe in RECIPES:
        found = [row for row in rows if row["recipe"] == recipe and row["seed"] in reference]
        if not found:
            continue
        lost = np.array([row["accuracy"] - reference[row["seed"]]["accuracy"] for row in found])
        saved = [1 - row["total_joules"] / reference[row["seed"]]["total_joules"] for row in found]
        parts = "  ".join(f"{cause} {np.mean([row['joules'][cause] for row in found]):6.0f}" for cause in CAUSES)
        error = lost.std(ddof=1) / len(lost) ** 0.5 if len(lost) > 1 else np.nan
        accuracy = np.mean([row["accuracy"] for row in found])
        figures = f"{accuracy:5.2f} %  {lost.mean():+5.2f} ± {error:4.2f}  saved {100 * np.mean(saved):5.1f} %"
        print(f"    {recipe:42} {figures}  {parts}")


def _print_pairs(rows: list[dict[str, Any]]) -> None:
    accuracy = {(row["recipe"], row["seed"]): row["accuracy"] for row in rows}
    for one, other in PAIRS:
        seeds = [seed for recipe, seed in accuracy if recipe == one and (other, seed) in accuracy]
        if not seeds:
            continue
        gains = np.array([accuracy[one, seed] - accuracy[other, seed] for seed in seeds])
        error = gains.std(ddof=1) / len(gains) ** 0.5 if len(gains) > 1 else np.nan
        print(f"{one} − {other}: {gains.mean():+.2f} ± {error:.2f}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="digits", choices=COMMON)
    parser.add_argument("--seeds", type=int, nargs="+", default=[30, 31, 32, 33, 34])
    parser.add_argument("--recipes", default=[], nargs="+", choices=RECIPES, metavar="RECIPE", help="only these")
    parser.add_argument("--group", default="all", choices=GROUPS, help="these, unless --recipes names some")
    parser.add_argument("--charged", default=list(ACCOUNTINGS), nargs="+", choices=ACCOUNTINGS, help="by what")
    parser.add_argument("--data", type=Path, help="folder of the data set; the usual one if not given")
    parser.add_argument("--again", default=[], nargs="+", metavar="RECIPE", help="recipes to play anew")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--jobs", type=int, default=1, help="processes; several share a GPU under NVIDIA's MPS")
    parser.add_argument("--time-limit", dest="limit", type=float, default=float("inf"), help="seconds")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
