"""The frozen recipe and every method that can be ranked, on seeds that nothing has been run with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product

from hatdfed.setup.layers import resolve
from hatdfed.setup.methods import METHODS, method_named
from hatdfed_paper.claims import Claims
from hatdfed_paper.differences import Contest, points_gained, shared_seeds
from hatdfed_paper.experiment import BEYOND, Experiment, Table
from hatdfed_paper.markdown import format_difference, table
from hatdfed_paper.plan import BASELINES, EASY, FULL, HARD, PLUS, SETTING, Scale, Settings, point
from hatdfed_paper.plus_comparison import PLACE, compare_plus, comparison_markdown
from hatdfed_paper.protocol import Protocol, decide
from hatdfed_paper.results import Results
from hatdfed_paper.rows import Row, interval_or_none, row_of

# Bounds that know what no method can know; they say so in their summaries.
_NOT_FOR_COMPARISON = ("oracle", "oracle-groups")
NEWEST = "hat-dfed-plus"
# Points against the mean of the four in experiment plus, over the two settings that are played again.
BEFORE = {"fashion-mnist": 4.6, "cifar-10": 10.5}


def rankable() -> list[str]:
    """Methods that neither see the test set nor are bounds; `hat-dfed-plus` only if it is another recipe than 0.1."""
    same = method_named(NEWEST).settings == method_named(PLUS).settings
    left_out = (*_NOT_FOR_COMPARISON, *((NEWEST,) if same else ()))
    return [name for name in METHODS if name not in left_out and not resolve({"method": name}).leaks_test]


def _places(scale: Scale) -> list[dict[str, float]]:
    if scale != FULL:
        return [{"servers": scale.servers[0], **HARD}]
    return [{"servers": 5, **HARD}, {"servers": 5, **EASY}, {"servers": 20, **HARD}, {"servers": 50, **HARD}]


def _points(dataset: str, scale: Scale) -> Iterator[Settings]:
    for place, method in product(_places(scale), rankable()):
        yield point(dataset, method, **place)


def _rows(results: Results, claims: Claims, scale: Scale) -> list[Row]:
    """Every method in every place, and what the recipe is ahead of it by; its own row: of the four baselines."""
    rows = []
    for dataset, place in product(scale.datasets, _places(scale)):
        here = {name: point(dataset, name, **place) for name in rankable()}
        if not results.at(here[PLUS]):
            continue
        for name, settings in here.items():
            at = results.at(settings)
            if at:
                rivals = {each: here[each] for each in BASELINES} if name == PLUS else {name: settings}
                keys = {"dataset": dataset, "servers": place["servers"], **{key: place[key] for key in SETTING}}
                row = row_of(at, {**keys, "method": name}, None)
                rows.append({**row, "plus_is_ahead_by": compare_plus(results, here[PLUS], rivals)})
    return rows


def main_contests(dataset: str, scale: Scale) -> list[Contest]:
    """The comparison that decides: the recipe against the four, in the fleet that stands first."""
    return [
        Contest(point(dataset, PLUS, **place), {name: point(dataset, name, **place) for name in BASELINES})
        for place in _places(scale)
        if place["servers"] == _places(scale)[0]["servers"]
    ]


def _decisive(dataset: str, scale: Scale) -> Iterator[Settings]:
    for contest in main_contests(dataset, scale):
        yield contest.mine
        yield from contest.rivals.values()


def _main_rows(results: Results, claims: Claims, scale: Scale) -> list[Row]:
    """The one comparison of the plan, beside what was reported before."""
    rows = []
    for dataset in scale.datasets:
        contests = main_contests(dataset, scale)
        gained = points_gained(results, contests, "avg_accuracy")
        if gained is not None:
            seeds = shared_seeds(results, contests)
            row = {"dataset": dataset, "before": BEFORE.get(dataset), "seeds": seeds}
            verdict = decide(gained, seeds, EXPERIMENT.planned_seeds(scale), BEFORE.get(dataset, 0.0))
            rows.append({**row, "avg_accuracy_points": interval_or_none(gained), "verdict": verdict})
    return rows


def _main_markdown(rows: Sequence[Row]) -> str:
    cells = [
        [row["dataset"], format_difference(row["avg_accuracy_points"], 1), f"{row['before'] or 0:+.1f}",
         row["verdict"], str(len(row["seeds"]))]
        for row in rows
    ]  # fmt: skip
    return table(["data set", "points against the mean of the four", "reported before", "verdict", "seeds"], cells)


EXPERIMENT = Experiment(
    "fresh_seeds",
    "The frozen recipe and every rankable method on seeds that nothing has used",
    _points,
    BEYOND,
    fleet_seeds={5: range(200, 220), 20: range(220, 230), 50: range(220, 230)},
    protocol=Protocol(
        comparison=f"{PLUS} against the mean of {', '.join(BASELINES)} as they are: test accuracy with five servers, "
        "mean over both settings (λ 0.3, ρ 0.5 and λ 0.7, ρ 0.9), seed by seed, on each data set",
        null="the difference is 0 points or less",
        rule="on each data set by itself: reproduced if the 95 % interval lies above 0 and reaches the points that "
        f"seeds 0–9 gave in the same settings ({', '.join(f'{name} {value:+.1f}' for name, value in BEFORE.items())}); "
        "partly if it lies above 0 and stays below them; otherwise not. The four have none of the recipe's parts, so "
        "this says nothing about its links. All other rows are secondary; their intervals are not corrected for their "
        "number.",
    ),
    known="all of table1, plus, plus_large, plus_equal and plus_dense, on seeds 0–9; none on these seeds",
    decisive=_decisive,
    tables=(
        Table("fresh_seeds", _rows, partial(comparison_markdown, keys=(*PLACE, "method"))),
        Table("fresh_seeds_main", _main_rows, _main_markdown),
    ),
)
