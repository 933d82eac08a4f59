"""What is kept of a round: every figure declared once, with its unit, its meaning and how it is computed.

Whoever writes, reads, shows or explains rounds goes through this declaration: the database and its readers, `hatdfed
show` and `--json`, reports, the dashboard, TensorBoard and MLflow, the status of a deployment, docs/results.md. To add
a figure, add a column with the next number as its `since`; older run folders hold NULL there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.energy.energy_model import Cause, joules_by_cause
from hatdfed.core.round import RoundRecord
from hatdfed.runs.duration import format_seconds

Number = float | int
Row = Mapping[str, Any]


@dataclass(frozen=True)
class PlayedRound:
    """A round's record with what several figures are computed from."""

    record: RoundRecord
    seconds: float | None  # that it took; None while nobody has measured it

    @cached_property
    def accuracy(self) -> NDArray[np.float64]:
        """Validation accuracies of the servers that reported, in percent."""
        percent = 100 * self.record.report.accuracy
        known: NDArray[np.float64] = percent[~np.isnan(percent)]
        return known

    @cached_property
    def joules(self) -> dict[Cause, float]:
        """Spent in this round."""
        return joules_by_cause(self.record.report.energy)


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a run's database."""

    name: str
    sql: Literal["INTEGER", "REAL", "TEXT", "BLOB"]
    meaning: str  # in one sentence
    unit: Literal["", "%", "J", "s", "bits", "g"] = ""
    since: int = 0  # version of the database that brought it; 0: hatdfed 0.1.0
    may_be_unknown: bool = False

    @property
    def may_be_null(self) -> bool:
        """Whether a file may hold NULL: what is unknown, and what was played before the column was there."""
        return self.may_be_unknown or self.since > 0


@dataclass(frozen=True, kw_only=True)
class RoundColumn(Column):
    """A figure of a round."""

    label: str  # as people read it
    value: Callable[[PlayedRound], Number | None]
    over_rounds: Literal["sum", "last"] | None = "last"  # what it comes to in a whole run
    is_optional: bool = False  # unknown unless the settings ask for it: not shown where nobody knows it
    in_results: bool = True  # whether that stands in results.json, under the same name
    curve: str | None = ""  # its name in TensorBoard and MLflow; empty: the column's; None: not shown there
    chart: Literal["accuracy", "energy", "regret", "own"] | None = "own"  # of the dashboard; None: in none

    def value_over(self, rounds: Iterable[Row]) -> Number | None:
        """What it comes to in these rounds; None where that is unknown."""
        values: list[Number | None] = [row.get(self.name) for row in rounds]
        if not values or self.over_rounds is None:
            return None
        if self.over_rounds == "last":
            return values[-1]
        known = [value for value in values if value is not None]
        return math.fsum(known) if len(known) == len(values) else None

    def text(self, value: Number | None) -> str:
        """A value with its unit."""
        if value is None:
            return "unknown"
        if self.sql == "INTEGER":
            return f"{value:,d}" if isinstance(value, int) else f"{value:,.0f}"
        if self.unit == "s":
            return format_seconds(value)
        return f"{value:.1f} %" if self.unit == "%" else f"{value:.3g} {self.unit}".rstrip()


def _declared(*columns: RoundColumn) -> dict[str, RoundColumn]:
    return {column.name: column for column in columns}


def _accuracy(
    name: str, label: str, meaning: str, curve: str, value: Callable[[NDArray[np.float64]], float]
) -> RoundColumn:
    return RoundColumn(
        name=f"{name}_accuracy",
        sql="REAL",
        unit="%",
        label=label,
        meaning=meaning,
        value=lambda played: value(played.accuracy) if len(played.accuracy) else None,
        may_be_unknown=True,
        in_results=False,  # results.json has the figures of the test set under these names
        curve=f"validation_accuracy/{curve}",
        chart="accuracy",
    )


def _joules(cause: Cause, label: str, meaning: str, since: int = 0) -> RoundColumn:
    return RoundColumn(
        name=JOULES[cause],
        sql="REAL",
        unit="J",
        since=since,
        label=label,
        meaning=meaning,
        value=lambda played: played.joules[cause],
        over_rounds="sum",
        in_results=False,  # which has megajoules by cause
        curve=f"joules/{cause}",
        chart="energy",
    )


def _loss(name: str, label: str, meaning: str, value: Callable[[PlayedRound], Number | None]) -> RoundColumn:
    return RoundColumn(
        name=name,
        sql="REAL",
        since=5,
        label=label,
        meaning=meaning,
        value=value,
        may_be_unknown=True,
        is_optional=True,
        curve=name,
    )


JOULES = {cause: f"{cause}_joules" for cause in Cause}  # the columns of energy, in the order in which they are stacked

ROUND_COLUMNS: dict[str, RoundColumn] = _declared(
    RoundColumn(
        name="t",
        sql="INTEGER",
        label="round",
        meaning="Number of the round, counted from 0.",
        value=lambda played: played.record.t,
        over_rounds=None,
        in_results=False,
        curve=None,
        chart=None,
    ),
    RoundColumn(
        name="links",
        sql="INTEGER",
        label="links",
        meaning="Links that were drawn; with a parameter server, those to and from it.",
        value=lambda played: played.record.draw.num_messages,
        over_rounds="sum",
        in_results=False,  # which has links_per_round
        chart=None,
    ),
    _accuracy(
        "avg", "validation accuracy", "Validation accuracy, mean over the servers that reported.", "mean", np.mean
    ),
    _accuracy("std", "its deviation", "Standard deviation of the validation accuracy over servers.", "std", np.std),
    _accuracy("best", "best server", "Validation accuracy of the best server.", "max", np.max),
    _accuracy("worst", "worst server", "Validation accuracy of the worst server.", "min", np.min),
    _joules(Cause.UPLOAD, "device upload", "Energy that devices spent to send their data to their server."),
    _joules(Cause.TRAINING, "training", "Energy that servers spent on training."),
    _joules(Cause.LINK, "links", "Energy that servers spent to send their models."),
    RoundColumn(
        name="regret_best_fixed",
        sql="REAL",
        label="regret against the best fixed links",
        meaning="Utility missed so far against the best set of links kept for all rounds; unknown where the number of "
        "links changes.",
        value=lambda played: played.record.regret.best_fixed,
        may_be_unknown=True,
        curve="regret/best_fixed",
        chart="regret",
    ),
    RoundColumn(
        name="regret_best_each_round",
        sql="REAL",
        label="regret against the best links of each round",
        meaning="Utility missed so far against the best set of links of every single round.",
        value=lambda played: played.record.regret.best_each_round,
        may_be_unknown=True,
        curve="regret/best_each_round",
        chart="regret",
    ),
    RoundColumn(
        name="seconds",
        sql="REAL",
        unit="s",
        label="wall-clock time",
        meaning="Time that the round took; runs that are executed together share a batch's time.",
        value=lambda played: played.seconds,
        over_rounds="sum",
        curve=None,  # it is not known yet when a live sink is told of the round
        chart=None,
    ),
    RoundColumn(
        name="consensus_distance",
        sql="REAL",
        since=1,
        label="consensus distance",
        meaning="Mean distance of servers' models to the mean model after the merge, relative to the norm of the mean "
        "model. It is taken over the servers that reported and the part of a model that is sent: exact where one "
        "machine has all models, estimated with a standard error of about 4 % of the value on shards and real "
        "machines, unknown where a server sent no sketch.",
        value=lambda played: played.record.report.consensus_distance,
        may_be_unknown=True,
    ),
    _joules(Cause.PROBE, "probes", "Energy that servers spent to evaluate models on their probe.", since=4),
    _joules(Cause.MERGE, "merges", "Energy that servers spent to merge models.", since=4),
    _joules(
        Cause.EXCHANGE,
        "exchanges",
        "Energy that processors of servers spent on sending and receiving models, where it was measured.",
        since=4,
    ),
    _joules(Cause.IDLE, "idling", "Energy that servers spent because they were switched on.", since=4),
    RoundColumn(
        name="servers_away",
        sql="INTEGER",
        since=4,
        label="absent servers",
        meaning="Servers that took no part in the round; the table `servers` says which, and why.",
        value=lambda played: len(played.record.away),
        over_rounds="sum",
        chart=None,
    ),
    RoundColumn(
        name="lowest_charge",
        sql="REAL",
        unit="J",
        since=4,
        label="charge of the emptiest battery",
        meaning="Charge of the emptiest battery after the round; unknown where servers are on mains.",
        value=lambda played: None if played.record.charge is None else float(played.record.charge.min()),
        may_be_unknown=True,
        is_optional=True,
        chart=None,
    ),
    RoundColumn(
        name="carbon_grams",
        sql="REAL",
        unit="g",
        since=4,
        label="emissions",
        meaning="Emissions of the energy that came from the grid, in grams of CO2 equivalents; unknown without "
        "supply.carbon_trace.",
        value=lambda played: None if played.record.bill is None else played.record.bill.carbon_grams,
        over_rounds="sum",
        may_be_unknown=True,
        is_optional=True,
        chart=None,
    ),
    RoundColumn(
        name="cost",
        sql="REAL",
        since=4,
        label="cost",
        meaning="Price of the energy that came from the grid, in the currency of supply.tariff_trace; unknown without "
        "one.",
        value=lambda played: None if played.record.bill is None else played.record.bill.cost,
        over_rounds="sum",
        may_be_unknown=True,
        is_optional=True,
        chart=None,
    ),
    RoundColumn(
        name="simulated_seconds",
        sql="REAL",
        unit="s",
        since=4,
        label="simulated time",
        meaning="Time that the round takes on the machines and links that the settings describe. "
        "docs/time.md explains how.",
        value=lambda played: None if played.record.time is None else played.record.time.seconds,
        over_rounds="sum",
        may_be_unknown=True,
        curve="simulated_seconds",
    ),
    _loss(
        "training_loss",
        "training loss",
        "Mean loss of the batches that servers trained on, each before its step. The mean is over a server's steps and "
        "then over the servers that trained, with the loss that the settings choose; unknown with private training.",
        lambda played: played.record.report.training_loss,
    ),
    _loss(
        "validation_loss",
        "validation loss",
        "Mean loss of the merged models on validation data. The mean is over a server's samples and then over the "
        "servers that reported, always with the task's own loss, such as cross-entropy.",
        lambda played: played.record.report.validation_loss,
    ),
)


def round_row(record: RoundRecord, seconds: float | None) -> dict[str, Number | None]:
    """All figures of a round by name, metrics of the settings behind the columns; None for what is unknown."""
    played = PlayedRound(record, seconds)
    return add_metrics(
        {name: _plain(column.value(played)) for name, column in ROUND_COLUMNS.items()}, record.report.metrics
    )


def add_metrics(row: Row, metrics: Mapping[str, Number | None]) -> dict[str, Any]:
    """A row with metrics behind its columns; whatever a metric is called, it takes no column's place."""
    return {**row, **{name: value for name, value in metrics.items() if name not in row}}


def metrics_in(rounds: Iterable[Row]) -> list[str]:
    """The names of the metrics that rounds have besides their columns."""
    return [name for name in dict.fromkeys(name for row in rounds for name in row) if name not in ROUND_COLUMNS]


def format_metric(value: Number | None) -> str:
    """The value of a metric, whose unit nobody knows."""
    return "–" if value is None else f"{value:.4g}"


def _plain(value: Any) -> Number | None:
    if value is None or not math.isfinite(value):
        return None
    return int(value) if isinstance(value, int | np.integer) else float(value)


def joules_of(row: Row) -> float:
    """Everything that was spent in a round; what an older version did not know did not cost anything."""
    return math.fsum(row.get(name) or 0.0 for name in JOULES.values())


def results_over(rounds: Iterable[Row]) -> dict[str, Number | None]:
    """What stands in results.json under a column's own name."""
    kept = list(rounds)
    return {name: column.value_over(kept) for name, column in ROUND_COLUMNS.items() if column.in_results}


def columns_in(chart: str | None) -> dict[str, RoundColumn]:
    """The columns that one of the dashboard's charts shows; "own": those with a chart of their own."""
    return {name: column for name, column in ROUND_COLUMNS.items() if column.chart == chart}
