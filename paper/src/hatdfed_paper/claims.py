"""What the paper reports, from `published.toml` beside this module."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

METRICS = (
    "avg_accuracy",
    "var_accuracy",
    "best_accuracy",
    "worst_accuracy",
    "total_energy_mj",
    "link_energy_mj",
)
_PUBLISHED = Path(__file__).with_name("published.toml")
Pair = list[float]  # mean and standard deviation over seeds


class Claims:
    """The published figures, row by row."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self._content = content

    @classmethod
    def read(cls) -> Claims:
        """From the file that comes with this package."""
        return cls(tomllib.loads(_PUBLISHED.read_text(encoding="utf-8")))

    def row(self, table: str, point: Mapping[str, Any]) -> dict[str, Pair] | None:
        """The published metrics of a point; None where the paper has none."""
        for row in self._content[table]:
            where = {name: value for name, value in row.items() if name not in METRICS}
            if all(point.get(name) == value for name, value in where.items()):
                return {name: row[name] for name in METRICS if name in row}
        return None

    @property
    def headline(self) -> dict[str, Any]:
        """The figures of abstract and text."""
        return self.section("headline")

    def section(self, name: str) -> dict[str, Any]:
        """Figures of the text that are no rows of a table."""
        return dict(self._content[name])
