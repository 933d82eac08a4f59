"""The authors' code as published, with its habits, and the paper as printed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hatdfed_paper.claims import Claims
from hatdfed_paper.experiment import BEHIND, Experiment, Table
from hatdfed_paper.markdown import NOTHING, format_figure, format_setting, table
from hatdfed_paper.plan import SETTING, Scale, Settings, point, settings_of_table_1
from hatdfed_paper.results import Results
from hatdfed_paper.rows import Row, pair, row_of

RELEASED = "hat-dfed-released"
_KEYS = ("dataset", *SETTING, "method")


def _points(dataset: str, scale: Scale) -> Iterator[Settings]:
    for setting in settings_of_table_1():
        yield point(dataset, RELEASED, **setting)
    yield point(dataset, RELEASED, feedback="validation")
    yield point(dataset, "hat-dfed-literal")


def _rows(results: Results, claims: Claims, scale: Scale) -> list[Row]:
    """The best round on the test set beside the last one, and without the leak."""
    rows = []
    for each in EXPERIMENT.all_points(scale):
        if at := results.at(each):
            published = claims.row("table_1", {**each, "method": "hat-dfed"})
            feedback = each.get("feedback", "test" if each["method"] == RELEASED else "validation")
            row = row_of(at, {**{name: each[name] for name in _KEYS}, "feedback": feedback}, published)
            best = pair(record["figures"]["best_round_accuracy"] for record in at.values())
            rows.append({**row, "best_round_accuracy": best})
    return rows


def _markdown(rows: Sequence[Row]) -> str:
    headings = ["data set", "λ", "ρ", "method", "feedback", "last round %", "best round %", "published %", "seeds"]
    cells = []
    for row in rows:
        keys = [format_setting(row[key]) for key in _KEYS]
        # The best round is one of those that the bandit learns from: on the test set where that is what it sees.
        best = format_figure(row["best_round_accuracy"], None) if row["feedback"] == "test" else NOTHING
        published = f"{row['published']['avg_accuracy'][0]:g}" if row["published"] else NOTHING
        last = format_figure(row["avg_accuracy"], None)
        cells.append([*keys, row["feedback"], last, best, published, str(len(row["seeds"]))])
    return table(headings, cells)


EXPERIMENT = Experiment(
    "released",
    "The authors' code as published, and the paper as printed",
    _points,
    BEHIND,
    seeds=5,
    tables=(Table("released", _rows, _markdown),),
)
