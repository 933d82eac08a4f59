"""A run's records as they are in its folder; those of a large fleet are read when somebody looks at them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from hatdfed.runs.records.cleaning import number
from hatdfed.runs.records.database import Records, RunDatabase
from hatdfed.runs.records.folder import RunFolder
from hatdfed.runs.records.schema import MATRIX_LIMIT
from hatdfed.runs.trust_history import TrustHistory, read_changes

_LONG = ("servers", "links", "ledger")  # as many rows a round as there are servers, or more


def read_tables(folder: RunFolder, servers: int) -> dict[str, Any]:
    """What a `RunResult` holds beside its settings and its summary."""
    with closing(folder.read()) as database:
        found: dict[str, Any] = {"rounds": database.records("rounds")}
        found |= {name: records_of(database, folder, name, servers) for name in _LONG}
        found |= {"propensity": database.last_propensity(), "link_joules": _paid(found["ledger"], servers)}
        return {**found, "trust": read_trust(database)}


def read_trust(database: RunDatabase) -> TrustHistory | None:
    """The beliefs of the run's policy; None where it learns nothing about servers."""
    changes, last = read_changes(database.records("trust")), database.last_verdicts()
    if not changes:
        return None
    return TrustHistory(changes) if last is None else TrustHistory(changes, last[1], last[0])


def records_of(database: RunDatabase, folder: RunFolder | None, table: str, servers: int) -> Sequence[dict[str, Any]]:
    """The records of one table; those of a large run are read when they are first used."""
    if folder is None or servers <= MATRIX_LIMIT:
        return database.records(table)
    return LazyRecords(folder.database, table)


def _paid(ledger: Sequence[dict[str, Any]], servers: int) -> NDArray[np.float64] | None:
    """[N, N] joules of every link that was used, nan of the others; None where that would be a large matrix."""
    if servers > MATRIX_LIMIT:
        return None
    prices = np.full((servers, servers), np.nan)
    np.fill_diagonal(prices, 0.0)
    for row in ledger:
        ends = row["receiver"], row["sender"]
        if row["cause"] == "link" and all(end in range(servers) for end in ends):
            prices[ends] = np.nan if number(row["joules"]) is None else row["joules"]
    return prices


class LazyRecords(Sequence[dict[str, Any]]):
    """One table of a run's database."""

    def __init__(self, path: Path, table: str) -> None:
        self._path = path
        self._table = table

    @cached_property
    def _rows(self) -> Records:
        with closing(RunDatabase(self._path, read_only=True)) as database:
            return database.records(self._table)

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, place: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, place: slice) -> Records: ...
    def __getitem__(self, place: int | slice) -> dict[str, Any] | Records:
        return self._rows[place]

    def __eq__(self, other: object) -> bool:
        return self._rows == (list(other) if isinstance(other, Sequence) else other)

    __hash__ = None  # type: ignore[assignment]
