"""Packed results: one JSON file for each experiment, one line for each run, written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hatdfed.errors import HatdfedError
from hatdfed.runs.records.checkpoint import write_atomically
from hatdfed.runs.records.lock import locked_folder

Record = dict[str, Any]
FORMAT = 1
SESSIONS = "sessions.json"
FIRST_FRESH_SEED = 200  # from here on, seeds are for confirmatory experiments and what is tuned for them


class ResultsError(HatdfedError):
    """Packed results that are missing, in use, or cannot be read or written."""


@dataclass
class ResultFile:
    """What is known of one experiment."""

    path: Path
    scale: str
    records: dict[str, Record] = field(default_factory=dict)  # by name

    @classmethod
    def read(cls, path: Path, scale: str) -> ResultFile:
        """The file, or an empty one where there is none yet."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["format"] != FORMAT:
                raise ValueError(f"format {content['format']}, wanted {FORMAT}")
            records = {run_name(record["settings"]): _complete(record) for record in content["runs"]}
            there = content["scale"]
        except FileNotFoundError:
            return cls(path, scale)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ResultsError(
                f"{path} holds no packed results ({error or type(error).__name__}). "
                "Move it away and run the experiment again."
            ) from None
        if there != scale:
            raise ResultsError(f"{path} has results of scale {there}, wanted {scale}. Choose another --results folder.")
        return cls(path, scale, records)

    def write(self, experiment: str) -> None:
        """Put the file on the disk, in place of the one that is there."""
        head = {"format": FORMAT, "experiment": experiment, "scale": self.scale}
        lines = ",\n".join(json.dumps(record, ensure_ascii=False) for record in self.records.values())
        text = json.dumps(head, ensure_ascii=False)[:-1] + f', "runs": [\n{lines}\n]}}\n'
        write_atomically(self.path, text.encode())


def _complete(record: Record) -> Record:
    for part in ("key", "figures", "curve"):
        record[part]  # raises where it is missing
    record["settings"]["seed"]
    return record


def read_all(folder: Path, names: Iterable[str], scale: str) -> dict[str, ResultFile]:
    """The files of these experiments."""
    return {name: ResultFile.read(folder / f"{name}.json", scale) for name in names}


def keep(files: Mapping[str, ResultFile], experiment: str, record: Record) -> set[str]:
    """Put a run into its experiment's file and take older ones of its name out of all others; which files changed."""
    name = run_name(record["settings"])
    changed = {other for other, file in files.items() if file.records.pop(name, None) is not None}
    files[experiment].records[name] = record
    return changed | {experiment}


def locked(folder: Path) -> AbstractContextManager[None]:
    """The results folder for oneself, made if need be."""
    return locked_folder(folder, "--results", ResultsError)


class Results:
    """All runs of all files, to be asked for by their settings."""

    def __init__(self, files: Mapping[str, ResultFile]) -> None:
        self.files = files
        self._by_point: dict[str, dict[int, Record]] = {}
        for file in files.values():
            for record in file.records.values():
                point = {name: value for name, value in record["settings"].items() if name != "seed"}
                seeds = self._by_point.setdefault(run_name(point), {})
                if record["settings"]["seed"] in seeds:
                    raise ResultsError(
                        f"{file.path} has a run that another file has, too: {record['settings']}. Remove one of them."
                    )
                seeds[record["settings"]["seed"]] = record

    def only(self, wanted: Callable[[Record], bool]) -> Results:
        """The runs whose settings, seed included, are wanted."""
        if all(wanted(record["settings"]) for file in self.files.values() for record in file.records.values()):
            return self
        files = {}
        for name, file in self.files.items():
            kept = {each: record for each, record in file.records.items() if wanted(record["settings"])}
            files[name] = ResultFile(file.path, file.scale, kept)
        return Results(files)

    def without_fresh_seeds(self) -> Results:
        """Without the seeds that are kept for confirmatory experiments, whose points other experiments may share."""
        return self.only(lambda settings: settings["seed"] < FIRST_FRESH_SEED)

    @property
    def is_empty(self) -> bool:
        """Whether nothing has been run."""
        return not self._by_point

    def at(self, point: Mapping[str, Any]) -> dict[int, Record]:
        """The runs at a point, by seed."""
        return dict(sorted(self._by_point.get(run_name(point), {}).items()))

    def figures(self, point: Mapping[str, Any], figure: str) -> dict[int, float]:
        """One figure of the runs at a point, by seed; runs that lack it are left out."""
        found = {seed: record["figures"].get(figure) for seed, record in self.at(point).items()}
        return {seed: value for seed, value in found.items() if value is not None}


def read_sessions(folder: Path) -> list[Record]:
    """What was computed where, in how many seconds."""
    try:
        sessions: list[Record] = json.loads((folder / SESSIONS).read_text(encoding="utf-8"))
        if not all(isinstance(each, dict) for each in sessions):
            raise ValueError("not a list of objects")
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError) as error:
        raise ResultsError(f"{folder / SESSIONS} cannot be read ({error}). Move it away and go on.") from None
    return sessions


def write_sessions(folder: Path, sessions: Iterable[Record]) -> None:
    """Keep what was computed, one line a call."""
    lines = ",\n".join(json.dumps(each, ensure_ascii=False) for each in sessions)
    write_atomically(folder / SESSIONS, f"[\n{lines}\n]\n".encode())


def run_name(point: Mapping[str, Any]) -> str:
    """Settings as one string, whatever their order."""
    return json.dumps(point, sort_keys=True)
