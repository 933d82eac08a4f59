"""A sweep's folder on disk.

sweep.yaml            what the sweep file said
runs/NAME/            one run each, as any other run folder
search.sqlite         what a search has tried (Optuna)
summary.json, .csv    the table, one row a point
pareto.png            accuracy over energy
tensorboard/, mlflow.sqlite   where they were asked for
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hatdfed.errors import RunFolderError
from hatdfed.runs.play import Job
from hatdfed.runs.records.checkpoint import write_atomically
from hatdfed.runs.records.lock import locked_folder
from hatdfed.sweeps.file import SweepFile, read_sweep
from hatdfed.sweeps.points import Run
from hatdfed.sweeps.resume_state import is_finished

DONE, BEGUN, OPEN = "done", "begun", "open"


@dataclass(frozen=True)
class SweepFolder:
    """The paths inside one sweep's folder, and what stands in them."""

    path: Path

    @property
    def search(self) -> Path:
        """What a search has tried."""
        return self.path / "search.sqlite"

    def job(self, run: Run) -> Job:
        """A run with its place."""
        return Job(run.config, self.path / "runs" / run.name)

    def standing(self, run: Run) -> str:
        """Whether a run is done, begun (it can go on) or open."""
        job = self.job(run)
        if is_finished(job):
            return DONE
        return BEGUN if job.out is not None and (job.out / "checkpoint.safetensors").is_file() else OPEN

    def refuse_others(self, sweep: SweepFile) -> None:
        """A folder that holds something else is not touched."""
        try:
            if not self.path.exists():
                return
        except OSError as error:  # a name that no folder can have
            raise RunFolderError(f"{self.path} cannot be a folder ({error.strerror}). Choose another --out.") from None
        written = self.path / "sweep.yaml"
        if written.is_file():
            there = read_sweep(written)
            if there.version != sweep.version:
                raise RunFolderError(
                    f"{self.path} belongs to another sweep file (version {there.version}, this one is "
                    f"{sweep.version}). Choose another --out, or leave it out: every version has a folder of its own."
                )
        elif not self.path.is_dir() or any(entry.name != ".lock" for entry in self.path.iterdir()):
            raise RunFolderError(f"{self.path} holds something that is no sweep. Choose another --out.")

    @contextmanager
    def claimed(self, sweep: SweepFile) -> Iterator[None]:
        """The folder for oneself and for this sweep."""
        self.refuse_others(sweep)
        with locked_folder(self.path, "--out"):
            self.refuse_others(sweep)
            content = yaml.safe_dump(_spoken(sweep), sort_keys=False, allow_unicode=True)
            write_atomically(self.path / "sweep.yaml", content.encode())
            yield


def default_folder(source: Path | str | Mapping[str, Any] | SweepFile, sweep: SweepFile) -> Path:
    """Every version of a sweep file has a folder of its own, so that the same command goes on with it."""
    stem = Path(source).stem if isinstance(source, str | Path) else "sweep"
    return Path("runs") / f"{stem}-{sweep.version}"


def _spoken(sweep: SweepFile) -> dict[str, Any]:
    """What was said, without what was not."""
    return {key: value for key, value in sweep.model_dump(mode="json", exclude_none=True).items() if value != {}}
