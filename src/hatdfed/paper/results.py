"""Packed results: one JSON file for each experiment, one line for each run, written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hatdfed.errors import HatdfedError
from hatdfed.records.checkpoint import write_atomically

Record = dict[str, Any]
FORMAT = 1
SESSIONS = "sessions.json"


class ResultsError(HatdfedError):
    """Packed results that are missing or cannot be read."""


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
            records = {run_name(record["settings"]): record for record in content["runs"]}
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

    def add(self, record: Record) -> None:
        """Keep a run, in place of an older one of the same name."""
        self.records[run_name(record["settings"])] = record

    def write(self, experiment: str) -> None:
        """Put the file on the disk, in place of the one that is there."""
        head = {"format": FORMAT, "experiment": experiment, "scale": self.scale}
        lines = ",\n".join(json.dumps(record, ensure_ascii=False) for record in self.records.values())
        text = json.dumps(head, ensure_ascii=False)[:-1] + f', "runs": [\n{lines}\n]}}\n'
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path, text.encode())


def read_all(folder: Path, names: Iterable[str], scale: str) -> dict[str, ResultFile]:
    """The files of these experiments."""
    return {name: ResultFile.read(folder / f"{name}.json", scale) for name in names}


class Results:
    """All runs of all files, to be asked for by their settings."""

    def __init__(self, files: Mapping[str, ResultFile]) -> None:
        self.files = files
        self._by_point: dict[str, dict[int, Record]] = {}
        for file in files.values():
            for record in file.records.values():
                point = {name: value for name, value in record["settings"].items() if name != "seed"}
                self._by_point.setdefault(run_name(point), {})[record["settings"]["seed"]] = record

    @property
    def is_empty(self) -> bool:
        """Whether nothing has been run."""
        return not self._by_point

    def at(self, point: Mapping[str, Any]) -> dict[int, Record]:
        """The runs at a point, by seed."""
        return dict(sorted(self._by_point.get(run_name(point), {}).items()))

    def figures(self, point: Mapping[str, Any], figure: str) -> dict[int, float]:
        """One figure of the runs at a point, by seed."""
        return {seed: record["figures"][figure] for seed, record in self.at(point).items()}


def read_sessions(folder: Path) -> list[Record]:
    """What was computed where, in how many seconds."""
    try:
        sessions: list[Record] = json.loads((folder / SESSIONS).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise ResultsError(f"{folder / SESSIONS} cannot be read ({error}). Move it away and go on.") from None
    return sessions


def add_session(folder: Path, session: Record) -> None:
    """Keep what was computed in one call."""
    lines = ",\n".join(json.dumps(each, ensure_ascii=False) for each in [*read_sessions(folder), session])
    write_atomically(folder / SESSIONS, f"[\n{lines}\n]\n".encode())


def run_name(point: Mapping[str, Any]) -> str:
    """Settings as one string, whatever their order."""
    return json.dumps(point, sort_keys=True)
