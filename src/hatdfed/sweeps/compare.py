"""Several methods in the same worlds: a seed is a world, every method meets each of them (D20).

In a folder a comparison can be stopped and started again: runs that are finished there are read, not played.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from hatdfed.errors import ConfigError, RunFolderError, did_you_mean
from hatdfed.runs.play import Job
from hatdfed.runs.recorder import RunResult
from hatdfed.runs.records.lock import locked_folder
from hatdfed.runs.statistics import Comparison, summarise_runs
from hatdfed.setup.build.placement import Placement
from hatdfed.setup.config import Config
from hatdfed.setup.layers import merge_layers, resolve
from hatdfed.sweeps.batches import OnRounds, PlayOptions, play_jobs
from hatdfed.sweeps.resume_state import prepare_to_resume, read_if_finished
from hatdfed.sweeps.workers import refuse_in_unguarded_script

OnRun = Callable[[RunResult, int, int], None]  # the run, how many are done, how many there are


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
    reference: str | None = None,
    target_accuracy: float | None = None,
    **settings: Any,
) -> Comparison:
    """Run every method on every seed; `jobs` processes share the work. `out` keeps the runs and is gone on with.

    Runs of one network are played together in stacked fleets, on the GPU where there is one.
    """
    refuse_in_unguarded_script()
    names = list(dict.fromkeys(methods))
    worlds = list(range(seeds)) if isinstance(seeds, int) else list(dict.fromkeys(seeds))
    if not names or not worlds:
        raise ConfigError("A comparison needs at least one method and one seed.")
    check_question(names, reference, target_accuracy)
    configs = [_config(settings, method, seed) for method in names for seed in worlds]
    how = PlayOptions(Placement(fleet, device), data_dir, on_rounds, on_note)
    with _claimed(out):
        results = _play_all([Job(config, _folder(out, config)) for config in configs], jobs, how, on_run)
    runs = {name: [result for result in results if result.config.method == name] for name in names}
    return summarise_runs(runs, reference, target_accuracy)


def check_question(methods: Sequence[str], reference: str | None, target_accuracy: float | None) -> None:
    """Refuse a reference that is not compared and an accuracy that none can reach, before anything is played."""
    if reference is not None and reference not in methods:
        hint = did_you_mean(reference, methods)
        raise ConfigError(f"The reference {reference!r} is not among the methods that are compared. {hint}")
    if target_accuracy is not None and not 0 < target_accuracy <= 100:
        raise ConfigError(f"The target accuracy is {target_accuracy:g}, but must be a percentage above 0, up to 100.")


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


def _claimed(out: Path | str | None) -> AbstractContextManager[None]:
    """The folder for oneself."""
    if out is None:
        return nullcontext()
    refuse_other_folder(Path(out))
    return locked_folder(Path(out), "--out")


def _config(settings: Mapping[str, Any], method: str, seed: int) -> Config:
    return resolve(merge_layers({"checkpoint_every": 0}, settings, {"method": method, "seed": seed}))


def _folder(out: Path | str | None, config: Config) -> Path | None:
    return None if out is None else Path(out) / f"{config.method}-seed{config.seed}"


def _play_all(jobs: Sequence[Job], processes: int, how: PlayOptions, on_run: OnRun | None) -> list[RunResult]:
    results: dict[int, RunResult] = {}

    def done(index: int, result: RunResult) -> None:
        results[index] = result
        if on_run is not None:
            on_run(result, len(results), len(jobs))

    there = [read_if_finished(job) for job in jobs]  # all of them before the first is played: any may be refused
    for index, result in enumerate(there):
        if result is not None:
            done(index, result)
    missing = {index: prepare_to_resume(job) for index, job in enumerate(jobs) if there[index] is None}
    play_jobs(missing, processes, how, done)
    return [results[index] for index in range(len(jobs))]
