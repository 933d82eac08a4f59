"""Results with figures made by hand, for the tests of what is made of results."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hatdfed_paper.results import ResultFile, Results, keep

NO_CURVE: dict[str, list[Any]] = {"round": [], "accuracy": [], "total_mj": [], "regret": []}


def results_of(
    runs: Iterable[tuple[Mapping[str, Any], Mapping[str, float]]], *, seeds: Sequence[int] = (0,), step: float = 0.0
) -> Results:
    """Results of (point, figures) with every seed; a figure grows by `step` from seed to seed."""
    files = {"by hand": ResultFile(None, "full")}
    for settings, figures in runs:
        for seed in seeds:
            spread = {name: value + step * seed for name, value in figures.items()}
            settled = {**settings, "seed": seed}
            keep(files, "by hand", {"key": "", "settings": settled, "figures": spread, "curve": NO_CURVE})
    return Results(files)


def results_by_seed(runs: Iterable[tuple[Mapping[str, Any], int, Mapping[str, float]]]) -> Results:
    """Results of (point, seed, figures)."""
    files = {"by hand": ResultFile(None, "full")}
    for settings, seed, figures in runs:
        settled = {**settings, "seed": seed}
        keep(files, "by hand", {"key": "", "settings": settled, "figures": figures, "curve": NO_CURVE})
    return Results(files)
