"""The runs that a sweep file stands for: points, seeds, settings and names. No files, no torch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from hatdfed.setup.config import Config
from hatdfed.setup.layers import merge_layers, resolve
from hatdfed.sweeps.file import SweepFile, folder_name, nested, short_keys

Settings = Mapping[str, Any]  # by dotted names


@dataclass(frozen=True)
class Run:
    """One run: the name of its folder, and everything that decides it."""

    name: str
    config: Config


@dataclass(frozen=True)
class Point:
    """What one row of the table is about: what was varied, and its runs, one a seed."""

    settings: Settings
    runs: tuple[Run, ...]

    @property
    def label(self) -> str:
        """What was varied, in a line."""
        short = short_keys(self.settings)
        return folder_name(self.settings, short) if self.settings else "as in base"


def points(sweep: SweepFile) -> list[Point]:
    """All points of a grid and a zip, in the order of the file; those that come to the same runs are one."""
    varied = [{**together, **combined} for together in _zipped(sweep.zip) for combined in _combined(sweep.grid)]
    short = short_keys([*sweep.zip, *sweep.grid, "seed"])
    return distinct(with_runs(sweep, [(settings, folder_name(settings, short)) for settings in varied]))


def with_runs(sweep: SweepFile, varied: Iterable[tuple[Settings, str]]) -> list[Point]:
    """A point for each settings and name; a run that several of them come to has its first name."""
    known: dict[str, Run] = {}
    taken: set[str] = set()
    found = []
    for settings, name in varied:
        runs = []
        for config in configs(sweep, settings):
            key = _decides(config)
            if key not in known:
                known[key] = Run(_free(f"{name},seed={config.seed}" if name else f"seed={config.seed}", taken), config)
            runs.append(known[key])
        found.append(Point(settings, tuple(runs)))
    return found


def distinct(found: Iterable[Point]) -> list[Point]:
    """Points that come to the same runs once."""
    return list({tuple(run.name for run in point.runs): point for point in reversed(list(found))}.values())[::-1]


def configs(sweep: SweepFile, settings: Settings) -> list[Config]:
    """The complete settings of a point, one a seed."""
    layer = merge_layers(nested(sweep.base), nested(settings))
    return [resolve(merge_layers(layer, {"seed": seed})) for seed in sweep.worlds]


def all_runs(found: Sequence[Point]) -> list[Run]:
    """Every run once, in order."""
    return list({run.name: run for point in found for run in point.runs}.values())


def _zipped(lists: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)] if lists else [{}]


def _combined(lists: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(lists, values, strict=True)) for values in product(*lists.values())]


def _decides(config: Config) -> str:
    """Two runs that agree in this are the same run."""
    return json.dumps(config.model_dump(mode="json", exclude={"checkpoint_every"}), sort_keys=True)


def _free(name: str, taken: set[str]) -> str:
    """Names that look the same, as 1 and "1" do, are told apart by a number."""
    free, number = name, 2
    while free in taken:
        free, number = f"{name}-{number}", number + 1
    taken.add(free)
    return free
