"""What the paper reports, from `paper/claims/published.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hatdfed_paper.results import ResultsError

METRICS = (
    "avg_accuracy",
    "var_accuracy",
    "best_accuracy",
    "worst_accuracy",
    "total_energy_mj",
    "link_energy_mj",
)
Pair = list[float]  # mean and standard deviation over seeds


class Claims:
    """The published figures, row by row."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self._content = content

    @classmethod
    def read(cls, folder: Path) -> Claims:
        """From the folder `paper`."""
        path = folder / "claims" / "published.toml"
        try:
            return cls(tomllib.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise ResultsError(
                f"The published figures in {path} cannot be read ({error}). Run this in a checkout of hatdfed."
            ) from None

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
