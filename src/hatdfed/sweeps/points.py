"""The runs that a sweep file stands for: points, seeds, settings and names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from hatdfed.setup.config import Config
from hatdfed.setup.layers import merge_layers, resolve
from hatdfed.setup.run_identity import result_key, world_key
from hatdfed.sweeps.catalogue import PlannedRun
from hatdfed.sweeps.file import SweepFile, folder_name, nested, short_keys

Settings = Mapping[str, Any]  # by dotted names


@dataclass(frozen=True)
class Point:
    """One row of the table: the settings that were varied, and the runs with them, one for each seed."""

    settings: Settings
    runs: tuple[PlannedRun, ...]

    @property
    def label(self) -> str:
        """The varied settings in one line."""
        short = short_keys(self.settings)
        return folder_name(self.settings, short) if self.settings else "as in base"

    @property
    def world(self) -> str:
        """Points that agree in this can be ranked: their joules and accuracies mean the same.

        A sweep may ask how many rounds are worth their energy, so runs of different lengths are ranked together.
        """
        return world_key(self.runs[0].config, but=("rounds",))


class PointMaker:
    """Makes points: every config is resolved once, and a run that several points come to has its first name."""

    def __init__(self, sweep: SweepFile, folder: Path | None = None) -> None:
        """Runs get folders in `folder`, if it is given."""
        self._sweep, self._folder = sweep, folder
        self._runs: dict[str, PlannedRun] = {}
        self._taken: set[str] = set()

    def point(self, settings: Settings, name: str) -> Point:
        """A point of these settings; its runs are called by `name` and their seeds."""
        return Point(settings, tuple(self._run(config, name) for config in configs(self._sweep, settings)))

    def _run(self, config: Config, name: str) -> PlannedRun:
        key = result_key(config)
        if key not in self._runs:
            free = _free(f"{name},seed={config.seed}" if name else f"seed={config.seed}", self._taken)
            self._runs[key] = PlannedRun(free, config).within(self._folder)
        return self._runs[key]


def points(sweep: SweepFile, folder: Path | None = None) -> list[Point]:
    """All points of a grid and a zip, in the order of the file; those that come to the same runs are one."""
    varied = [{**together, **combined} for together in _zip_lists(sweep.zip) for combined in _combine_lists(sweep.grid)]
    short = short_keys([*sweep.zip, *sweep.grid, "seed"])
    maker = PointMaker(sweep, folder)
    return distinct(maker.point(settings, folder_name(settings, short)) for settings in varied)


def distinct(found: Iterable[Point]) -> list[Point]:
    """Points that come to the same runs once."""
    return list({tuple(run.name for run in point.runs): point for point in reversed(list(found))}.values())[::-1]


def configs(sweep: SweepFile, settings: Settings, seeds: Sequence[int] | None = None) -> list[Config]:
    """The complete settings of a point, one for each seed of the sweep, or of `seeds`."""
    layer = merge_layers(nested(sweep.base), nested(settings))
    return [resolve(merge_layers(layer, {"seed": seed})) for seed in seeds or sweep.worlds]


def all_runs(found: Sequence[Point]) -> list[PlannedRun]:
    """Every run once, in order."""
    return list({run.name: run for point in found for run in point.runs}.values())


def _zip_lists(lists: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)] if lists else [{}]


def _combine_lists(lists: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(lists, values, strict=True)) for values in product(*lists.values())]


def _free(name: str, taken: set[str]) -> str:
    """Names that look the same, as 1 and "1" do, are told apart by a number."""
    free, number = name, 2
    while free in taken:
        free, number = f"{name}-{number}", number + 1
    taken.add(free)
    return free
