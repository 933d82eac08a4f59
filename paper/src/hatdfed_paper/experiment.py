"""An experiment: which runs it has, and the tables, figures and verdicts that its results make."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hatdfed_paper.claims import Claims
from hatdfed_paper.figure_parts import Data
from hatdfed_paper.plan import FULL, Scale, Settings
from hatdfed_paper.protocol import (
    CONFIRMATORY,
    EXPLORATORY,
    UNTIL_COMPLETE,
    Protocol,
    estimated_minutes,
    runs_digest,
    server_rounds,
    spans,
    toml_value,
    varied_settings,
)
from hatdfed_paper.results import Results, run_name
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
    fleet_seeds: Mapping[int, range] | None = None  # by number of servers, at full scale; in place of the two above
    protocol: Protocol | None = None  # of a confirmatory experiment
    decisive: Points | None = None  # the points of the comparison that decides, which are played before all others
    known: str = ""  # the test results that were known when it was planned
    first: str | None = None  # the exploratory experiment that chooses the settings of this one
    freeze: Callable[[Results, Scale], str] | None = None  # the text of the file that holds that choice
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
    headline: Callable[[Results, Scale], Mapping[str, Any]] | None = None  # figures of the paper's abstract and text
    checks: Judge | None = None  # whether our world is the paper's
    verdicts: Judge | None = None  # on the paper's claims

    @property
    def kind(self) -> str:
        """Confirmatory with a protocol, otherwise exploratory."""
        return EXPLORATORY if self.protocol is None else CONFIRMATORY

    def all_points(self, scale: Scale) -> list[Settings]:
        """Every point, data set by data set."""
        return [found for dataset in scale.datasets for found in self.points(dataset, scale)]

    def seeds_of(self, settings: Settings, scale: Scale) -> range:
        """The seeds that a point is played with; fresh ones are never touched at another scale than the full one."""
        if self.fleet_seeds is not None:
            if scale == FULL:
                return self.fleet_seeds[settings["servers"]]
            return range(scale.first_seed, scale.first_seed + scale.seeds)
        return range(self.first_seed, self.first_seed + min(scale.seeds, self.seeds or scale.seeds))

    def decisive_points(self, scale: Scale) -> list[Settings]:
        """The points that the rule of a confirmatory experiment looks at."""
        return [] if self.decisive is None else [each for name in scale.datasets for each in self.decisive(name, scale)]

    def planned_seeds(self, scale: Scale) -> list[int]:
        """The seeds that all decisive points are to be played with, without which nothing is decided."""
        points = self.decisive_points(scale)
        return sorted(set.intersection(*(set(self.seeds_of(each, scale)) for each in points))) if points else []

    def every_seed(self, scale: Scale) -> list[int]:
        """All seeds that it uses, also while its points wait for another experiment."""
        if scale == FULL and self.fleet_seeds is not None:
            return sorted({seed for seeds in self.fleet_seeds.values() for seed in seeds})
        return sorted({run["seed"] for run in self.runs(scale)} or range(self.first_seed, self.first_seed + 1))

    def is_complete(self, seeds: Collection[int], scale: Scale) -> bool:
        """Whether a comparison over these seeds has all that were planned, without which nothing is decided."""
        return set(self.planned_seeds(scale)) <= set(seeds)

    def decisive_runs(self, scale: Scale) -> set[str]:
        """The names of the runs that the rule looks at."""
        seeds = self.planned_seeds(scale)
        return {run_name({**each, "seed": seed}) for each in self.decisive_points(scale) for seed in seeds}

    def runs(self, scale: Scale) -> list[Settings]:
        """Every run; those that share a world stand together.

        Runs of a confirmatory experiment stand in the order in which they are worth most if time runs out: those that
        decide before all others, and of either kind a whole seed, of all data sets, before the next.
        """
        return self._runs_by_data_set(scale) if self.protocol is None else self._runs_by_seed(scale)

    def _runs_by_seed(self, scale: Scale) -> list[Settings]:
        decisive, found = self.decisive_runs(scale), []
        for each in self.all_points(scale):
            for place, seed in enumerate(self.seeds_of(each, scale)):
                run = {**each, "seed": seed}
                found.append(((run_name(run) not in decisive, place), run))
        return [run for _, run in sorted(found, key=lambda found: found[0])]

    def _runs_by_data_set(self, scale: Scale) -> list[Settings]:
        found = []
        for dataset in scale.datasets:
            points = [(each, self.seeds_of(each, scale)) for each in self.points(dataset, scale)]
            for seed in sorted({seed for _, seeds in points for seed in seeds}):
                found += [{**each, "seed": seed} for each, seeds in points if seed in seeds]
        return found

    def own_results(self, results: Results, scale: Scale) -> Results:
        """The results that it may look at: with seeds of its own only those, otherwise none of the fresh seeds."""
        if scale != FULL:
            return results
        if self.fleet_seeds is None:
            return results.without_fresh_seeds()
        own = self.fleet_seeds
        return results.only(lambda settings: settings["seed"] in own.get(settings["servers"], ()))

    def write_plan(self, scale: Scale = FULL) -> str:
        """The plan as TOML: what is compared, what decides, which runs there are, and what they take."""
        points, runs = self.all_points(scale), self.runs(scale)
        shared, varied = varied_settings(points)
        amount = server_rounds(runs, scale)
        lines = [
            "# Written by `hatdfed paper plan`; do not edit.",
            f"name = {toml_value(self.name)}",
            f"kind = {toml_value(self.kind)}",
            f"question = {toml_value(self.question)}",
        ]
        if self.protocol is not None:
            for name in ("comparison", "null", "rule"):
                lines.append(f"{name} = {toml_value(getattr(self.protocol, name))}")
            lines.append(f"until_complete = {toml_value(UNTIL_COMPLETE)}")
        if self.known:
            lines.append(f"known_test_results = {toml_value(self.known)}")
        lines += [
            f"points = {len(points)}",
            f"runs = {len(runs)}",
            f"runs_digest = {toml_value(runs_digest(runs))}",
            f"estimated_minutes_h200 = {estimated_minutes(amount):.0f}",
            *self._write_decisive(runs, scale),
            "",
            "[server_rounds]",
            *(f"{dataset} = {count}" for dataset, count in amount.items()),
            "",
            "[seeds]",
            *(f"servers_{count} = {toml_value(seeds)}" for count, seeds in self._seeds_by_fleet(runs).items()),
            "",
            "[shared_settings]",
            *(f"{name} = {toml_value(value)}" for name, value in shared.items()),
            "",
            "[varied_settings]",
            *(f"{name} = [\n{_one_a_line(values)}\n]" for name, values in varied.items()),
        ]
        return "\n".join(lines) + "\n"

    def _write_decisive(self, runs: Sequence[Settings], scale: Scale) -> list[str]:
        if self.decisive is None:
            return []
        names = self.decisive_runs(scale)
        first = [run for run in runs if run_name(run) in names]
        minutes = estimated_minutes(server_rounds(first, scale))
        return [f"decisive_runs = {len(first)}", f"decisive_minutes_h200 = {minutes:.0f}"]

    def _seeds_by_fleet(self, runs: Sequence[Settings]) -> dict[int, str]:
        counts = sorted({run["servers"] for run in runs})
        return {count: spans([run["seed"] for run in runs if run["servers"] == count]) for count in counts}


def _one_a_line(values: Sequence[Any]) -> str:
    return "\n".join(f"  {toml_value(value)}," for value in values)
