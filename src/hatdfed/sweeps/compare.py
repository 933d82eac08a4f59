"""Several methods in the same worlds: a seed is a world, every method meets each of them (D20).

In a folder a comparison can be stopped and started again: runs that are finished there are read, not played, and
those that were in play go on from their checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from hatdfed.errors import ConfigError, RunFolderError
from hatdfed.runs.progress import OnRun
from hatdfed.runs.records.lock import locked_folder
from hatdfed.runs.result import RunResult
from hatdfed.runs.statistics import Comparison, summarise_runs
from hatdfed.setup.config import Config
from hatdfed.setup.layers import merge_layers, resolve
from hatdfed.sweeps.batches import PlayOptions, play_runs
from hatdfed.sweeps.catalogue import PlannedRun
from hatdfed.sweeps.executors import LocalExecutor


def plan_comparison(
    methods: Iterable[str], seeds: int | Sequence[int], settings: Mapping[str, Any]
) -> list[PlannedRun]:
    """The runs of a comparison, method by method and seed by seed."""
    names = [methods] if isinstance(methods, str) else list(dict.fromkeys(methods))
    if isinstance(seeds, bool | str) or not isinstance(seeds, int | Iterable):
        raise ConfigError(f"seeds is {seeds!r}, but must be a number of seeds, or a list of seeds such as [0, 3, 7].")
    worlds = list(range(seeds)) if isinstance(seeds, int) else list(dict.fromkeys(seeds))
    if not names or not worlds:
        raise ConfigError("A comparison needs at least one method and one seed.")
    if not all(isinstance(name, str) for name in names):
        raise ConfigError(f"methods has {names!r:.100}, but must be a list of names, such as ['hat-dfed', 'rnd'].")
    layers = [{"method": method, "seed": seed} for method in names for seed in worlds]
    configs = [resolve(merge_layers(settings, layer)) for layer in layers]
    return [PlannedRun(name_compared_run(config), config) for config in configs]


def name_compared_run(config: Config) -> str:
    """The name of a run, and of its folder, in a comparison."""
    return f"{config.method}-seed{config.seed}"


def play_comparison(
    runs: Sequence[PlannedRun], processes: int | None, how: PlayOptions, folder: Path | None, on_run: OnRun | None
) -> list[RunResult]:
    """Play what is left of the runs; the results of all, in their order. The first that fails ends everything."""
    results: dict[str, RunResult] = {}

    def done(run: PlannedRun, result: RunResult) -> None:
        results[run.name] = result
        if on_run is not None:
            on_run(result, len(results), len(runs))

    with _lock(folder):
        play_runs(runs, LocalExecutor(processes).play, how, done)
    return [results[run.name] for run in runs]


def summarise_comparison(
    results: Sequence[RunResult], reference: str | None, target_accuracy: float | None
) -> Comparison:
    """The table of these runs, a row for each method."""
    names = dict.fromkeys(result.config.method for result in results)
    runs = {name: [result for result in results if result.config.method == name] for name in names}
    return summarise_runs(runs, reference, target_accuracy)


def refuse_other_folder(out: Path) -> None:
    """A folder that holds something else is not touched: its results.json would be written over."""
    holdings = {"config.yaml": "a run", "run.sqlite": "a run", "sweep.yaml": "a sweep"}
    try:
        there = [what for name, what in holdings.items() if (out / name).exists()]
    except OSError as error:
        raise RunFolderError(
            f"The folder {out} cannot be read ({error.strerror}). Choose another one with --out."
        ) from None
    if there:
        raise RunFolderError(f"{out} already holds {there[0]}, which is no comparison. Choose another --out.")


def _lock(folder: Path | None) -> AbstractContextManager[None]:
    """The folder for oneself."""
    if folder is None:
        return nullcontext()
    refuse_other_folder(folder)
    return locked_folder(folder, "--out")
