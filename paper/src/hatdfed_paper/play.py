"""Plays what is missing of an experiment, in batches, and packs every batch as it ends."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import hatdfed
from hatdfed.runs.records.folder import environment
from hatdfed.setup.build.placement import device_of
from hatdfed.sweeps.batches import PlayOptions, play_runs
from hatdfed.sweeps.catalogue import PlannedRun
from hatdfed.sweeps.executors import LocalExecutor
from hatdfed.sweeps.workers import multi_process_service
from hatdfed_paper.packing import pack_run, with_settings
from hatdfed_paper.plan import Settings
from hatdfed_paper.protocol import CONFIRMATORY, EXPLORATORY
from hatdfed_paper.provenance import code_commit
from hatdfed_paper.results import Record, ResultFile, keep, read_sessions, write_sessions
from hatdfed_paper.todo import Todo

OnRun = Callable[[Settings, dict[str, Any], int, int], None]  # settings, figures, how many are done, how many there are


@dataclass(frozen=True)
class Outcome:
    """What a call brought."""

    played: int
    missing: int  # for which there was no time
    seconds: float


def play_missing(
    what: Todo, *, processes: int, how: PlayOptions, plans: Mapping[str, str] | None = None, on_run: OnRun | None = None
) -> Outcome:
    """Play it, and keep every run as soon as its batch is done; the folder must be ours (`results.locked`).

    `plans` has the digests of the committed plans, by experiment; a run of any other experiment is exploratory.
    """
    code, plans = code_commit(), plans or {}
    runs, earlier = [PlannedRun(name, run.config) for name, run in what.missing.items()], read_sessions(what.folder)
    writer, start = _Writer(what.files), time.monotonic()

    def done(run: PlannedRun, record: Record) -> None:
        wanted = what.missing[run.name]
        plan = plans.get(wanted.experiment)
        made = {"kind": EXPLORATORY if plan is None else CONFIRMATORY, "plan": plan, **code}
        writer.add(wanted.experiment, with_settings(record, wanted.settings) | {"made": made})
        if on_run is not None:
            on_run(wanted.settings, record["figures"], writer.count, len(runs))

    try:
        play_runs(runs, LocalExecutor(processes).play, replace(how, keep=pack_run, on_batch=writer.write), done)
    finally:
        writer.write()
        seconds = time.monotonic() - start
        if writer.count:
            session = _session(what, writer, seconds, processes, device_of(how.placement)) | {"code": code}
            write_sessions(what.folder, [*earlier, session])
    return Outcome(writer.count, len(runs) - writer.count, seconds)


class _Writer:
    """Writes the files that have changed."""

    def __init__(self, files: Mapping[str, ResultFile]) -> None:
        self._files, self._changed = files, set[str]()
        self.count = self.server_rounds = 0
        self.by_experiment: dict[str, int] = {}  # server-rounds

    def add(self, experiment: str, record: Record) -> None:
        self._changed |= keep(self._files, experiment, record)
        self.count += 1
        amount = record["settings"]["servers"] * record["curve"]["round"][-1]
        self.server_rounds += amount
        self.by_experiment[experiment] = self.by_experiment.get(experiment, 0) + amount

    def write(self) -> None:
        for name in sorted(self._changed):
            self._files[name].write(name)
        self._changed.clear()


def _session(what: Todo, writer: _Writer, seconds: float, processes: int, device: str) -> Record:
    """For the reader of a result: what was computed, where, by which code, and how long it took."""
    known = environment()
    return {
        "experiments": list(what.names),
        "scale": what.scale.name,
        "runs": writer.count,
        "server_rounds": writer.server_rounds,
        "server_rounds_by_experiment": writer.by_experiment,
        "seconds": round(seconds, 2),
        "device": torch.cuda.get_device_name() if device == "cuda" else known["processor"],
        "processes": processes,
        "mps": device == "cuda" and multi_process_service(),
        "cores": known["cores"],
        "python": known["python"],
        "torch": torch.__version__,
        "hatdfed": hatdfed.__version__,
        "source": source_digest(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }


def source_digest() -> str:
    """A short name for the code that ran: of every Python and C file in the package."""
    root = Path(hatdfed.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(each for each in root.rglob("*") if each.suffix in (".py", ".c", ".h")):
        digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return digest.hexdigest()[:12]
