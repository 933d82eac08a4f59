"""Records that are read when somebody looks at them: those of a large run take more memory than the run did."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any, overload

from hatdfed.records.database import Records, RunDatabase


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
