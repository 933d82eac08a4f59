"""Plays what is missing of an experiment, in batches, and packs it as it comes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from hatdfed import __version__
from hatdfed.batches import How, play_jobs
from hatdfed.build.placement import device_of
from hatdfed.experiment import Job
from hatdfed.paper.packing import packed, run_key, with_settings
from hatdfed.paper.plans import EXPERIMENTS, Scale, Settings, runs
from hatdfed.paper.results import ResultFile, add_session, read_all, run_name
from hatdfed.records.folder import environment
from hatdfed.resolve import merge_layers, resolve
from hatdfed.workers import multi_process_service

WRITE_SECONDS = 5.0  # between two writings of a file that grows

OnRun = Callable[[Settings, dict[str, Any], int, int], None]  # settings, figures, how many are done, how many there are


@dataclass(frozen=True)
class Outcome:
    """What a call brought."""

    played: int
    known: int  # were there already
    missing: int  # for which there was no time
    stale: int  # results of what the settings meant before something was changed
    seconds: float


@dataclass(frozen=True)
class _Wanted:
    experiment: str
    settings: Settings
    job: Job


@dataclass(frozen=True)
class Todo:
    """What has to be played, and what is there."""

    names: tuple[str, ...]
    scale: Scale
    folder: Path
    files: dict[str, ResultFile]
    missing: dict[str, _Wanted]  # by the name of the run
    known: int
    stale: int

    @property
    def datasets(self) -> list[str]:
        """That will be needed."""
        return list(dict.fromkeys(run.settings["dataset"] for run in self.missing.values()))


def todo(names: Sequence[str], scale: Scale, folder: Path, dataset: str | None = None) -> Todo:
    """The runs of these experiments, or of one data set in them, that no file in `folder` has yet."""
    files = read_all(folder, EXPERIMENTS, scale.name)
    there = {name: record["key"] for file in files.values() for name, record in file.records.items()}
    wanted = {name: run for name, run in _wanted(names, scale).items() if dataset in (None, run.settings["dataset"])}
    missing = {name: run for name, run in wanted.items() if there.get(name) != run_key(run.job.config)}
    stale = sum(name in there for name in missing)
    return Todo(tuple(names), scale, folder, files, missing, len(wanted) - len(missing), stale)


def play_missing(what: Todo, *, processes: int, how: How, on_run: OnRun | None = None) -> Outcome:
    """Play it, and keep every run as soon as its batch is done."""
    runs_in_order, start, writer = list(what.missing.values()), time.monotonic(), _Writer(what.files)

    def done(index: int, record: dict[str, Any]) -> None:
        run = runs_in_order[index]
        writer.add(run.experiment, with_settings(record, run.settings))
        if on_run is not None:
            on_run(run.settings, record["figures"], writer.count, len(what.missing))

    try:
        jobs = {index: run.job for index, run in enumerate(runs_in_order)}
        play_jobs(jobs, processes, replace(how, keep=packed), done)
    finally:
        writer.write()
        seconds = time.monotonic() - start
        if writer.count:
            add_session(what.folder, _session(what, writer, seconds, processes, device_of(how.placement)))
    return Outcome(writer.count, what.known, len(what.missing) - writer.count, what.stale, seconds)


def _wanted(names: Sequence[str], scale: Scale) -> dict[str, _Wanted]:
    """Every run once, by its name, under the first experiment that has it."""
    found: dict[str, _Wanted] = {}
    for name in names:
        for settings in runs(name, scale):
            config = resolve(merge_layers(scale.common, {"checkpoint_every": 0}, settings))
            found.setdefault(run_name(settings), _Wanted(name, settings, Job(config)))
    return found


class _Writer:
    """Writes files that have grown, not more often than need be."""

    def __init__(self, files: dict[str, ResultFile]) -> None:
        self._files, self._grown, self._written_at = files, set[str](), time.monotonic()
        self.count = self.server_rounds = 0

    def add(self, experiment: str, record: dict[str, Any]) -> None:
        self._files[experiment].add(record)
        self._grown.add(experiment)
        self.count += 1
        self.server_rounds += record["settings"]["servers"] * record["curve"]["round"][-1]
        if time.monotonic() - self._written_at > WRITE_SECONDS:
            self.write()

    def write(self) -> None:
        for name in sorted(self._grown):
            self._files[name].write(name)
        self._grown.clear()
        self._written_at = time.monotonic()


def _session(what: Todo, writer: _Writer, seconds: float, processes: int, device: str) -> dict[str, Any]:
    """For the reader of a result: what was computed, where, and how long it took."""
    known = environment()
    return {
        "experiments": list(what.names),
        "scale": what.scale.name,
        "runs": writer.count,
        "server_rounds": writer.server_rounds,
        "seconds": round(seconds, 1),
        "device": torch.cuda.get_device_name() if device == "cuda" else known["processor"],
        "processes": processes,
        "mps": device == "cuda" and multi_process_service(),
        "cores": known["cores"],
        "python": known["python"],
        "torch": torch.__version__,
        "hatdfed": __version__,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }
