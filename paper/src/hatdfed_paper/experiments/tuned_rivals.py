"""Every method with training settings tuned for it, ours included: tuned on validation data, then on fresh seeds.

`rival_tuning` plays the same trials for every method: learning rate, its cool-down, passes over a round's data and
batch size, drawn once from `SPACE`. The trial with the highest validation accuracy, mean over seeds, is frozen in
`paper/plans/tuned_rivals.choice.json`, from which `tuned_rivals` takes its settings. Until that file is there,
`tuned_rivals` has no points.

`tuned_rivals` has two contests: five servers, every method as it is but for its tuned settings; and 20 and 50 servers,
where the rivals also get the recipe's loss and finish and send whole models in every round (dense).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

from hatdfed.randomness import stream
from hatdfed.setup.layers import merge_layers
from hatdfed_paper.claims import Claims
from hatdfed_paper.differences import Contest, points_gained, shared_seeds
from hatdfed_paper.experiment import BEYOND, Experiment, Table
from hatdfed_paper.experiments.equal_footing import without_thrift
from hatdfed_paper.folders import choice_path
from hatdfed_paper.markdown import format_difference, table
from hatdfed_paper.plan import BASELINES, FULL, HARD, PLUS, Scale, Settings, point
from hatdfed_paper.plus_comparison import PLACE, compare_plus, comparison_markdown
from hatdfed_paper.protocol import Protocol, decide
from hatdfed_paper.results import Results, ResultsError
from hatdfed_paper.rows import Row, interval_or_none, row_of

TUNED = (*BASELINES, "el-oracle", "full", "hat-dfed", PLUS)
DENSE = (*BASELINES, "full")
TRIALS = 20  # for every method, the data set's own settings included
SPACE: Mapping[str, tuple[Any, ...]] = {
    "learning_rate": (3e-4, 1e-3, 3e-3),
    "cool_down": (0.0, 0.25, 1.0),
    "local_passes": (2, 4, 8, 16),
    "batch_size": (8, 16, 32),
}
_WAYS = {"as it is": "five servers, as it is", "dense": "dense: with its loss and finish, whole models in every round"}


def trials(scale: Scale) -> list[dict[str, Any]]:
    """Settings to try, the same for every method: none, then drawn without repetition."""
    grid = [dict(zip(SPACE, values, strict=True)) for values in product(*SPACE.values())]
    drawn = stream(0, "tuning").permutation(len(grid))[: (TRIALS if scale == FULL else 3) - 1]
    return [{}, *(_settings(grid[index]) for index in sorted(drawn.tolist()))]


def _settings(values: Mapping[str, Any]) -> dict[str, Any]:
    learner = {name: values[name] for name in ("learning_rate", "cool_down")}
    return {"learner": learner, "local_passes": values["local_passes"], "batch_size": values["batch_size"]}


def _tuning_points(dataset: str, scale: Scale) -> Iterator[Settings]:
    for method, trial in product(TUNED, trials(scale)):
        yield point(dataset, method, **trial)


# The choice


def choose_trials(results: Results, scale: Scale) -> dict[str, dict[str, dict[str, Any]]]:
    """By data set and method, the trial with the highest mean validation accuracy; all trials must have been played."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for dataset, method in product(scale.datasets, TUNED):
        means = [_mean_validation(results, point(dataset, method, **trial), scale) for trial in trials(scale)]
        best = max(range(len(means)), key=lambda k: means[k])
        found.setdefault(dataset, {})[method] = trials(scale)[best]
    return found


def _mean_validation(results: Results, settings: Settings, scale: Scale) -> float:
    seen, wanted = results.figures(settings, "validation_accuracy"), TUNING.seeds_of(settings, scale)
    if not set(wanted) <= set(seen):
        raise ResultsError(
            f"Not all trials of {TUNING.name} have been played, so nothing can be chosen. "
            f"Play them with: hatdfed paper run {TUNING.name} --scale {scale.name}"
        )
    return sum(seen[seed] for seed in wanted) / len(wanted)


def _freeze(results: Results, scale: Scale) -> str:
    return json.dumps(choose_trials(results, scale), indent=2) + "\n"


def frozen_choice(scale: Scale) -> dict[str, dict[str, dict[str, Any]]] | None:
    """What was frozen; None before that."""
    try:
        found: dict[str, dict[str, dict[str, Any]]] = json.loads(choice_path("tuned_rivals", scale).read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ResultsError(f"{choice_path('tuned_rivals', scale)} cannot be read ({error}): freeze it anew.") from None
    return found


# The contests


def _contests(dataset: str, scale: Scale) -> Iterator[tuple[str, Settings]]:
    choice = frozen_choice(scale)
    if choice is None:
        return
    few, many = (5, (20, 50)) if scale == FULL else (scale.servers[0], scale.servers[-1:])
    for method in TUNED:
        yield "as it is", point(dataset, method, servers=few, **choice[dataset][method])
    for servers in many:
        yield "dense", point(dataset, PLUS, servers=servers, **choice[dataset][PLUS])
        for method in DENSE:
            given = merge_layers(without_thrift(dataset), choice[dataset][method])
            yield "dense", point(dataset, method, servers=servers, **given)


def _points(dataset: str, scale: Scale) -> Iterator[Settings]:
    for _, settings in _contests(dataset, scale):
        yield settings


def _few(dataset: str, scale: Scale) -> dict[str, Settings]:
    """Every method in the contest with few servers; nothing before settings are frozen."""
    return {each["method"]: each for way, each in _contests(dataset, scale) if way == "as it is"}


def _decisive(dataset: str, scale: Scale) -> Iterator[Settings]:
    here = _few(dataset, scale)
    yield from (here[name] for name in (PLUS, *BASELINES) if name in here)


def _main_rows(results: Results, claims: Claims, scale: Scale) -> list[Row]:
    """The one comparison of the plan: the recipe against each of the four."""
    rows = []
    for dataset in scale.datasets:
        here = _few(dataset, scale)
        for rival in (name for name in BASELINES if here):
            contest = [Contest(here[PLUS], {rival: here[rival]})]
            gained = points_gained(results, contest, "avg_accuracy")
            if gained is not None:
                seeds = shared_seeds(results, contest)
                verdict = decide(gained, seeds, _TUNED.planned_seeds(scale))
                row = {"dataset": dataset, "rival": rival, "seeds": seeds, "verdict": verdict}
                rows.append({**row, "avg_accuracy_points": interval_or_none(gained)})
    return rows


def _main_markdown(rows: Sequence[Row]) -> str:
    cells = [
        [row["dataset"], row["rival"], format_difference(row["avg_accuracy_points"], 1), row["verdict"],
         str(len(row["seeds"]))]
        for row in rows
    ]  # fmt: skip
    return table(["data set", "rival", "hat-dfed-plus-0.1 is ahead, points", "verdict", "seeds"], cells)


def _rows(results: Results, claims: Claims, scale: Scale) -> list[Row]:
    """Every method with its tuned settings, and what the recipe is ahead of it by; its own row: of the baselines."""
    rows = []
    for dataset in scale.datasets:
        every = list(_contests(dataset, scale))
        for way, settings in every:
            here = {s["method"]: s for w, s in every if (w, s["servers"]) == (way, settings["servers"])}
            at = results.at(settings)
            if at and results.at(here[PLUS]):
                is_ours = settings["method"] == PLUS
                rivals = {name: here[name] for name in BASELINES} if is_ours else {settings["method"]: settings}
                keys = {"dataset": dataset, "servers": settings["servers"], **HARD, "method": settings["method"]}
                ahead = compare_plus(results, here[PLUS], rivals)
                rows.append({**row_of(at, {**keys, "words": _WAYS[way]}, None), "plus_is_ahead_by": ahead})
    return rows


def _tuning_rows(results: Results, claims: Claims, scale: Scale) -> list[Row]:
    """What each method gains on validation data by its best trial."""
    rows = []
    for dataset, method in product(scale.datasets, TUNED):
        played = [(trial, point(dataset, method, **trial)) for trial in trials(scale)]
        means = []
        for trial, settings in played:
            seen = results.figures(settings, "validation_accuracy")
            if seen:
                means.append((sum(seen.values()) / len(seen), trial))
        if len(means) == len(played):
            best = max(means, key=lambda each: each[0])
            seeds = sorted(results.at(played[0][1]))
            row = {"dataset": dataset, "method": method, "trials": len(played), "seeds": seeds, "best": best[1]}
            rows.append({**row, "validation_accuracy": round(best[0], 3), "untuned": round(means[0][0], 3)})
    return rows


def _tuning_markdown(rows: Sequence[Row]) -> str:
    cells = [
        [row["dataset"], row["method"], f"{row['untuned']:.1f}", f"{row['validation_accuracy']:.1f}",
         f"`{json.dumps(row['best'])}`" if row["best"] else "the data set's own", str(row["trials"]),
         str(len(row["seeds"]))]
        for row in rows
    ]  # fmt: skip
    return table(["data set", "method", "untuned %", "tuned %", "best trial", "trials", "seeds"], cells)


TUNING = Experiment(
    "rival_tuning",
    "First stage of tuned_rivals: the same trials for every method, on validation data",
    _tuning_points,
    BEYOND,
    fleet_seeds={5: range(310, 313)},
    known="table1, plus, plus_equal and plus_dense, on seeds 0–9",
    tables=(Table("rival_tuning", _tuning_rows, _tuning_markdown),),
)
_TUNED = Experiment(
    "tuned_rivals",
    "Every method with training settings tuned for it, and the dense contest with 20 and 50 servers",
    _points,
    BEYOND,
    fleet_seeds={5: range(230, 240), 20: range(230, 235), 50: range(230, 235)},
    protocol=Protocol(
        comparison=f"{PLUS} against each of {', '.join(BASELINES)}, every method with its tuned settings: test "
        "accuracy with five servers (λ 0.3, ρ 0.5), seed by seed, on each data set",
        null="the difference to at least one of the four is 0 points or less",
        rule="on each data set by itself: reproduced if the 95 % interval lies above 0 against every one of the four, "
        "which needs no correction for their number; otherwise not. The four keep their own loss. The dense contest, "
        "in which they have the recipe's, and all other rows are secondary; their intervals are not corrected for "
        "their number. Tuned passes cost joules of training, which the tables show; no claim is at equal joules.",
    ),
    known="table1, plus, plus_equal and plus_dense, on seeds 0–9; validation results of rival_tuning",
    first=TUNING.name,
    freeze=_freeze,
    decisive=_decisive,
    tables=(
        Table("tuned_rivals", _rows, partial(comparison_markdown, keys=("words", *PLACE[:2], "method"))),
        Table("tuned_rivals_main", _main_rows, _main_markdown),
    ),
)
EXPERIMENTS = (TUNING, _TUNED)
