"""Comparisons of runs world by world: a seed means the same in all rows of a world, and in no two worlds.

Accuracies on other data and joules of other prices do not compare, so every world has its own rows and reference. The
reference and the order of methods are those of the comparison or sweep that the runs were made by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hatdfed.errors import HatdfedError
from hatdfed.report.groups import ComparisonRow, FinishedRun, make_comparison_rows, make_labels
from hatdfed.runs.records.cleaning import flat_settings, text, whole
from hatdfed.runs.records.small_files import read_document
from hatdfed.setup.run_identity import world_key, world_settings


class ComparedWorld(NamedTuple):
    """The rows of one world."""

    name: str  # data set, servers, rounds and, where several worlds agree in these, what else differs
    rows: list[ComparisonRow]

    @property
    def reference(self) -> ComparisonRow:
        """The row that the others are compared with."""
        return next(row for row in self.rows if row.is_reference)


class StoredOrder:
    """The order of methods and the reference, as the comparisons and sweeps state them that runs are part of."""

    def __init__(self) -> None:
        self.troubles: list[str] = []  # sentences about files that cannot be read
        self._known: dict[Path, _Stored] = {}

    def find_place(self, folder: Path, method: str) -> tuple[int, int]:
        """The place of a run: comparisons and sweeps in the order in which they are asked for, then their rows."""
        rows = [row.holds(folder, method) for row in self._read(folder.parent).rows]
        return list(self._known).index(folder.parent), rows.index(True) if True in rows else len(rows)

    def is_of_reference(self, run: FinishedRun) -> bool:
        """Whether a run is of the method that its comparison has as reference."""
        if run.folder is None:
            return False
        method = run.settings.get("method")
        return method is not None and self._read(run.folder.parent).reference == method

    def _read(self, folder: Path) -> _Stored:
        if folder not in self._known:
            try:
                self._known[folder] = _read_stored(folder)
            except HatdfedError as error:
                self.troubles.append(str(error))
                self._known[folder] = _Stored(None, [])
        return self._known[folder]


class _StoredRow(NamedTuple):
    """A row of a comparison, which names its method, or of a sweep, whose run folders have names that begin alike."""

    method: str | None = None
    beginning: str | None = None

    def holds(self, folder: Path, method: str) -> bool:
        """Whether a run is in this row."""
        return self.method == method or (self.beginning is not None and folder.name.startswith(self.beginning))


class _Stored(NamedTuple):
    """What a comparison or a sweep says of its runs."""

    reference: str | None
    rows: list[_StoredRow]


def _read_stored(folder: Path) -> _Stored:
    """Read what a comparison says of the runs in its folder, or a sweep of those in its folder `runs`."""
    if (folder / "results.json").is_file():
        document = read_document(folder, "results.json")
        methods, reference = _list_rows(document.get("methods")), document.get("reference")
        rows = [_StoredRow(method=row["method"]) for row in methods if isinstance(row.get("method"), str)]
        return _Stored(reference if isinstance(reference, str) else None, rows)
    if folder.name == "runs" and (folder.parent / "sweep.yaml").is_file():
        points = _list_rows(read_document(folder.parent, "summary.json").get("rows"))
        return _Stored(None, [_StoredRow(beginning=f"{_name_point(row)},seed=") for row in points])
    return _Stored(None, [])


def _list_rows(rows: Any) -> list[Mapping[str, Any]]:
    return [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []


def _name_point(row: Mapping[str, Any]) -> str:
    """How the folders of a point's runs are named: by its settings, or by the number of a search's trial."""
    trial = whole(row.get("trial"))
    return text(row.get("point")) if trial is None else f"trial={trial:03d}"


def compare_worlds(runs: Sequence[FinishedRun], order: StoredOrder, against: str = "") -> list[ComparedWorld]:
    """Make the rows of each world, worlds in the order of their first run.

    The reference of a world is that of the run `against`, else that of the first comparison that has one here, else
    the first row that did not see the test set.
    """
    worlds: dict[str, list[FinishedRun]] = {}
    for run in runs:
        worlds.setdefault(world_key(run.settings), []).append(run)
    names = name_worlds([members[0].settings for members in worlds.values()])
    return [
        ComparedWorld(name, make_comparison_rows(members, _find_reference(members, order, against)))
        for name, members in zip(names, worlds.values(), strict=True)
    ]


def _find_reference(runs: Sequence[FinishedRun], order: StoredOrder, against: str) -> str | None:
    chosen = [run.name for run in runs if run.name == against]
    return next(iter([*chosen, *(run.name for run in runs if order.is_of_reference(run))]), None)


def name_worlds(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Make a unique name for each world."""
    flat = [dict(flat_settings(world_settings(one))) for one in settings]
    return make_labels([_describe(one) for one in settings], flat)


def _describe(settings: Mapping[str, Any]) -> str:
    counts = [(whole(settings.get(name)), name) for name in ("servers", "rounds")]
    parts = [f"{count} {name if count != 1 else name[:-1]}" for count, name in counts if count is not None]
    return ", ".join([text(settings.get("dataset"), 60), *parts])
