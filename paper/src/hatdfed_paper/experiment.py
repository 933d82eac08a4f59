"""An experiment: which runs it has, and the tables, figures and verdicts that its results make."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hatdfed_paper.claims import Claims
from hatdfed_paper.figure_parts import Data
from hatdfed_paper.plan import Scale, Settings
from hatdfed_paper.results import Results
from hatdfed_paper.rows import Row
from hatdfed_paper.verdict_rules import Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

PAPER, BEHIND, BEYOND = "paper", "behind", "plus"  # groups: RQ1 to RQ5; what stands behind them; what goes beyond

Points = Callable[[str, Scale], Iterator[Settings]]  # of one data set, settings without seed
Judge = Callable[[Results, Claims, Scale], Iterable[Verdict]]


@dataclass(frozen=True)
class Table:
    """Rows as plain data, and how they are written as Markdown."""

    name: str
    rows: Callable[[Results, Claims, Scale], list[Row]]
    markdown: Callable[[Sequence[Row]], str]


@dataclass(frozen=True)
class Figure:
    """A picture for each data set: its numbers, what they say in a sentence, and how they are drawn."""

    kind: str
    panels: Callable[[Results, Claims, str, Scale], list[Data]]
    title: Callable[[Data], str]
    draw: Callable[[Data, str], Picture]  # data and title; imports matplotlib when it is called


@dataclass(frozen=True)
class Experiment:
    """A name, what it asks, its points, and what is made of its results."""

    name: str
    question: str
    points: Points
    group: str = PAPER
    seeds: int | None = None  # fewer than the scale's
    first_seed: int = 0
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
    headline: Callable[[Results, Scale], Mapping[str, Any]] | None = None  # figures of the paper's abstract and text
    checks: Judge | None = None  # whether our world is the paper's
    verdicts: Judge | None = None  # on the paper's claims

    def all_points(self, scale: Scale) -> list[Settings]:
        """Every point, data set by data set."""
        return [found for dataset in scale.datasets for found in self.points(dataset, scale)]

    def runs(self, scale: Scale) -> list[Settings]:
        """Every run; those that share a world stand together."""
        seeds = min(scale.seeds, self.seeds or scale.seeds)
        return [
            {**found, "seed": seed}
            for dataset in scale.datasets
            for seed in range(self.first_seed, self.first_seed + seeds)
            for found in self.points(dataset, scale)
        ]
