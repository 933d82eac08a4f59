"""Several methods in the same worlds: a seed is a world, every method meets each of them (D20)."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hatdfed.config import Config
from hatdfed.errors import ConfigError, HatdfedError
from hatdfed.experiment import RunResult, run
from hatdfed.resolve import merge_layers, resolve
from hatdfed.summary import METRICS, mean_and_deviation

OnRun = Callable[[RunResult, int, int], None]  # the run, how many are done, how many there are


@dataclass(frozen=True)
class Comparison:
    """The runs of each method, by seed, and the table that they make."""

    runs: dict[str, list[RunResult]]
    summary: list[dict[str, Any]]


def compare(
    methods: Iterable[str],
    *,
    seeds: int | Sequence[int] = 3,
    jobs: int = 1,
    out: Path | str | None = None,
    data_dir: Path | str | None = None,
    on_run: OnRun | None = None,
    **settings: Any,
) -> Comparison:
    """Run every method on every seed; `jobs` processes share the work."""
    names = list(dict.fromkeys(methods))
    worlds = list(range(seeds)) if isinstance(seeds, int) else list(dict.fromkeys(seeds))
    if not names or not worlds:
        raise ConfigError("A comparison needs at least one method and one seed.")
    configs = [_config(settings, method, seed) for method in names for seed in worlds]
    tasks = [_Task(config, _folder(out, config), data_dir) for config in configs]
    results = _play_all(tasks, max(1, min(jobs, len(tasks))), on_run)
    runs = {name: [result for result in results if result.config.method == name] for name in names}
    return Comparison(runs, [table_row(name, runs[name]) for name in names])


def table_row(method: str, runs: Sequence[RunResult]) -> dict[str, Any]:
    """Mean and standard deviation of each metric over seeds."""
    row: dict[str, Any] = {"method": method, "seeds": [result.config.seed for result in runs]}
    for metric in (*METRICS, "links_per_round", "seconds"):
        row[metric], row[f"{metric}_sd"] = mean_and_deviation([result.summary[metric] for result in runs])
    row["leaks_test"] = any(result.config.leaks_test for result in runs)
    return row


@dataclass(frozen=True)
class _Task:
    config: Config
    out: Path | None
    data_dir: Path | str | None


def _config(settings: Mapping[str, Any], method: str, seed: int) -> Config:
    return resolve(merge_layers({"checkpoint_every": 0}, settings, {"method": method, "seed": seed}))


def _folder(out: Path | str | None, config: Config) -> Path | None:
    return None if out is None else Path(out) / f"{config.method}-seed{config.seed}"


def _play_all(tasks: Sequence[_Task], jobs: int, on_run: OnRun | None) -> list[RunResult]:
    results: dict[int, RunResult] = {}

    def done(index: int, result: RunResult) -> None:
        results[index] = result
        if on_run is not None:
            on_run(result, len(results), len(tasks))

    if jobs == 1:
        for index, task in enumerate(tasks):
            done(index, _play(task))
    else:
        _play_in_processes(tasks, jobs, done)
    return [results[index] for index in range(len(tasks))]


def _play_in_processes(tasks: Sequence[_Task], jobs: int, done: Callable[[int, RunResult], None]) -> None:
    # Spawned, not forked: torch's threads do not survive a fork.
    threads = max(1, (os.cpu_count() or 1) // jobs)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_limit_threads, initargs=(threads,)) as pool:
        futures = {pool.submit(_play, task): index for index, task in enumerate(tasks)}
        try:
            for future in as_completed(futures):
                done(futures[future], future.result())
        except BrokenProcessPool:
            raise HatdfedError(
                "A worker process was killed, perhaps for want of memory. Try again with --jobs 1."
            ) from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _limit_threads(threads: int) -> None:
    torch.set_num_threads(threads)


def _play(task: _Task) -> RunResult:
    return run(task.config, out=task.out, data_dir=task.data_dir)
