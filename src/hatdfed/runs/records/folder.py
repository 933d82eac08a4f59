"""A run's folder on disk.

config.yaml              the complete settings
environment.json         machine and versions
run.sqlite               rounds, servers, links, ledger, trust
checkpoint.safetensors   where a resumed run goes on
results.json             the summary, once the run is finished
*.png                    pictures
.lock                    held by the command that plays the run
"""

from __future__ import annotations

import functools
import json
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from hatdfed.errors import RunFolderError
from hatdfed.runs.records.checkpoint import write_atomically
from hatdfed.runs.records.cleaning import whole
from hatdfed.runs.records.database import Records, RunDatabase
from hatdfed.runs.records.energy_names import name_megajoules
from hatdfed.setup.config import Config
from hatdfed.setup.layers import read_config

_PACKAGES = ("hatdfed", "numpy", "pydantic", "safetensors", "scikit-learn", "torch")
_FILES = ("config.yaml", "environment.json", "checkpoint.safetensors", "results.json", ".lock")
_DATABASES = ("run.sqlite", "journal.sqlite")  # with the files that SQLite keeps beside them


@dataclass(frozen=True)
class RunFolder:
    """The paths inside one run's folder."""

    path: Path

    @property
    def database(self) -> Path:
        """The file with the records of rounds and the ledger."""
        return self.path / "run.sqlite"

    @property
    def checkpoint(self) -> Path:
        """The file from which a run is resumed."""
        return self.path / "checkpoint.safetensors"

    @property
    def results(self) -> Path:
        """The summary of a finished run."""
        return self.path / "results.json"

    @classmethod
    def create(cls, path: Path, config: Config) -> RunFolder:
        """A new folder; one that already holds a run, a comparison, a sweep or other runs is refused."""
        folder = cls(path)
        try:
            is_taken, others = folder.database.exists(), folder._find_others()
            if not others:
                path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunFolderError(
                f"The folder {path} cannot be made ({error.strerror}). Choose another one with --out."
            ) from None
        if is_taken:
            raise RunFolderError(
                f"{path} already holds a run. Go on with it by --resume {path}, or choose another --out."
            )
        if others:
            raise RunFolderError(
                f"{path} already holds {others}, whose files would be written over. Choose another --out."
            )
        folder.write_config(config)
        folder.write_json("environment.json", environment())
        return folder

    def _find_others(self) -> str:
        """What the folder holds that is no run of its own, in words; empty if nothing."""
        if (self.path / "sweep.yaml").exists():
            return "a sweep"
        if self.results.exists() and not self.database.exists():
            return "a comparison"
        return "other runs" if any(self.path.glob("*/run.sqlite")) else ""

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """A folder that holds a run."""
        folder = cls(path)
        try:
            is_run = (path / "config.yaml").is_file() and folder.database.is_file()
        except OSError as error:
            raise RunFolderError(f"The folder {path} cannot be read ({error.strerror}). Check the path.") from None
        if not is_run:
            raise RunFolderError(f"{path} is not a run folder: it has no config.yaml and run.sqlite. Check the path.")
        return folder

    def config(self) -> Config:
        """The settings of the run."""
        return read_config(self.path / "config.yaml")

    def write_config(self, config: Config) -> None:
        """Keep the complete settings."""
        text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
        write_atomically(self.path / "config.yaml", text.encode())

    def note_fleet(self, computed_by: Mapping[str, str | int]) -> None:
        """Keep what the run is computed by from its first round on, beside the machine and the versions."""
        self.write_json("environment.json", {**environment(), "computed_by": dict(computed_by)})

    def first_fleet(self) -> Mapping[str, Any]:
        """The fleet and device that computed the run when it began; empty where they were not noted."""
        try:
            content = json.loads((self.path / "environment.json").read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        known = content.get("computed_by") if isinstance(content, dict) else None
        return known if isinstance(known, dict) else {}

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Keep a small document."""
        write_atomically(self.path / name, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())

    def read_results(self) -> dict[str, Any] | None:
        """The summary, or None while the run is not finished."""
        try:
            content: dict[str, Any] = json.loads(self.results.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            raise RunFolderError(
                f"{self.results} cannot be read ({error}). Finish the run again by --resume."
            ) from None
        if not isinstance(content, dict) or "avg_accuracy" not in content:
            raise RunFolderError(f"{self.results} holds no results. Finish the run again by --resume {self.path}.")
        return name_megajoules(content)

    def read_final(self, rounds: int) -> dict[str, Any] | None:
        """The summary of all `rounds`; None also where the run was given more since."""
        results = self.read_results()
        return None if results is None or (whole(results.get("rounds")) or 0) < rounds else results

    def read_ended(self, rounds: int, played: int) -> dict[str, Any] | None:
        """The summary of all `rounds`, or of the rounds `played` where a callback has ended the run after these."""
        results = self.read_results()
        if results is None:
            return None
        known = whole(results.get("rounds")) or 0
        is_stopped = isinstance(results.get("stopped_by"), str) and known == played  # and was not gone on with
        return results if known >= rounds or is_stopped else None

    def read_rounds(self) -> Records:
        """All rounds so far, in order; none where nothing was written yet."""
        if not self.database.is_file():
            return []
        database = self.read()
        try:
            return database.records("rounds")
        finally:
            database.close()

    def read(self) -> RunDatabase:
        """The records, for reading."""
        return RunDatabase(self.database, read_only=True)


def named_path(text: str) -> Path:
    """A path as a user types it; an empty one would be read as the current folder, which nobody meant."""
    if not text.strip():
        raise RunFolderError(
            "A path is empty, maybe a shell variable that is not set. Name a file or folder; . is the current folder."
        )
    return Path(text)


def refuse_file_of_run(path: Path) -> None:
    """Refuse to write something else to a file that belongs to a run."""
    real = path.resolve()
    is_one = real.name in _FILES or real.name.startswith(_DATABASES)
    if is_one and os.path.isfile(real.parent / "config.yaml"):  # noqa: PTH113 (pathlib fails on names that are too long)
        raise RunFolderError(f"{path} belongs to the run in {real.parent}. Choose another file with --out.")


def refuse_missing_folder(path: Path) -> None:
    """Refuse a folder that does not exist, or is a file."""
    if not os.path.isdir(path):  # noqa: PTH112 (pathlib fails on names that are too long)
        raise RunFolderError(f"There is no folder {path}. Check the path.")


def environment() -> dict[str, Any]:
    """Machine and versions, for the reader of a result."""
    return {
        "python": sys.version.split()[0],
        "platform": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "packages": {package: _version(package) for package in _PACKAGES},
    }


@functools.cache  # a sweep asks for every run, and it takes milliseconds each
def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
