"""Several methods in the same worlds: a seed is a world, every method meets each of them (D20).

In a folder a comparison can be stopped and started again: runs that are finished there are read, not played, and
those that were in play go on from their checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from hatdfed.errors import ConfigError, RunFolderError, advising_on_interrupt
from hatdfed.report.comparison_files import write_comparison_files
from hatdfed.runs.play import with_target
from hatdfed.runs.progress import OnRounds, OnRun, follow_runs, interactive_counter
from hatdfed.runs.records.lock import locked_folder
from hatdfed.runs.result import RunResult
from hatdfed.runs.statistics import Comparison, summarise_runs
from hatdfed.setup.build.placement import Placement
from hatdfed.setup.config import Config
from hatdfed.setup.layers import merge_layers, refuse_set_by_itself, resolve
from hatdfed.setup.methods import check_question
from hatdfed.sweeps.batches import PlayOptions, play_runs
from hatdfed.sweeps.catalogue import PlannedRun, check_runs, unfinished
from hatdfed.sweeps.executors import LocalExecutor
from hatdfed.sweeps.workers import refuse_in_unguarded_script


def compare(
    methods: Iterable[str],
    *,
    seeds: int | Sequence[int] = 3,
    jobs: int = 1,
    fleet: str = "auto",
    device: str = "auto",
    out: Path | str | None = None,
    data_dir: Path | str | None = None,
    on_run: OnRun | None = None,
    on_rounds: OnRounds | None = None,
    on_note: Callable[[str], None] | None = None,
    show_progress: bool | None = None,
    reference: str | None = None,
    target_accuracy: float | None = None,
    target: str | None = None,
    **settings: Any,
) -> Comparison:
    """Run every method on every seed; `jobs` processes share the work. `out` keeps the runs and is gone on with.

    Runs of one network are played together in stacked fleets, on the GPU where there is one. `dataset` and `target`
    and `show_progress` are as for `hatdfed.run`; data that are Python objects are for one process.
    """
    refuse_in_unguarded_script()
    refuse_set_by_itself(settings)
    folder = None if out is None else Path(out)
    if folder is not None:
        refuse_other_folder(folder)
    runs = [run.within(folder) for run in plan_comparison(methods, seeds, with_target(settings, target))]
    check_question((run.config.method for run in runs), reference, target_accuracy)
    how = PlayOptions(Placement(fleet, device), data_dir, on_rounds, on_note)
    check_runs((run.config for run in unfinished(runs)), how.datasets, data_dir)
    advice = None if folder is None else f"The same call, with out={str(folder)!r}, goes on with what is missing."
    with (
        advising_on_interrupt(advice),
        interactive_counter("round", show_progress if on_rounds is None else False) as show,
    ):
        if show is not None:
            tell_run, tell_rounds = follow_runs(show)
            how, on_run = replace(how, on_rounds=tell_rounds), tell_run if on_run is None else on_run
        results = play_comparison(runs, jobs, how, folder, on_run)
    comparison = summarise_comparison(results, reference, target_accuracy)
    if folder is not None:
        write_comparison_files(comparison, folder)
    return comparison


def plan_comparison(
    methods: Iterable[str], seeds: int | Sequence[int], settings: Mapping[str, Any]
) -> list[PlannedRun]:
    """The runs of a comparison, method by method and seed by seed."""
    names = [methods] if isinstance(methods, str) else list(dict.fromkeys(methods))
    if not isinstance(seeds, int | Iterable):
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
