"""What `hat-dfed-plus` is ahead of other methods by, as rows and as Markdown: for every table about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hatdfed.runs.statistics import paired_or_none
from hatdfed.setup.layers import resolve
from hatdfed_paper.differences import Contest, percent_saved, points_gained
from hatdfed_paper.markdown import KEYS, NOTHING, format_difference, format_figure, format_seeds, format_setting, table
from hatdfed_paper.plan import BASELINES, PLUS, SETTING, Settings
from hatdfed_paper.results import Results
from hatdfed_paper.rows import Row, interval_or_none, row_of

PLACE = ("dataset", "servers", *SETTING)
_KEYS = {**KEYS, "every": "every", "words": "hat-dfed-plus …", "regime": "regime", "links": "links"}


def comparison_rows(results: Results, points: Sequence[Settings]) -> list[Row]:
    """Every method in every place, and what `hat-dfed-plus` is ahead of it and of the four baselines by."""
    rows = []
    for settings in points:
        at = results.at(settings)
        here = {each["method"]: each for each in points if all(each[name] == settings[name] for name in PLACE)}
        plus = here[PLUS]
        if not at or not results.at(plus):
            continue
        row = row_of(at, {name: settings[name] for name in (*PLACE, "method")}, None)
        row["every"] = resolve(settings).schedule.every
        names = [name for name in BASELINES if name in here] if settings is plus else [settings["method"]]
        rows.append({**row, "plus_is_ahead_by": compare_plus(results, plus, {name: here[name] for name in names})})
    return rows


def compare_plus(results: Results, plus: Settings, rivals: Mapping[str, Settings]) -> Row:
    """Points of accuracy more and percent of energy less than the rivals, paired over seeds."""
    contest = [Contest(plus, rivals)]
    return {
        "avg_accuracy_points": interval_or_none(points_gained(results, contest, "avg_accuracy")),
        "worst_over_best_points": _worst_over_best(results, plus, rivals),
        "total_energy_percent": interval_or_none(percent_saved(results, contest, "total_energy_mj")),
        "link_energy_percent": interval_or_none(percent_saved(results, contest, "link_energy_mj")),
    }


def _worst_over_best(results: Results, plus: Settings, rivals: Mapping[str, Settings]) -> Row | None:
    """How far its worst server is above the best server of the best rival."""
    theirs = [results.figures(each, "best_accuracy") for each in rivals.values()]
    mine = results.figures(plus, "worst_accuracy")
    top = {seed: max(each[seed] for each in theirs) for seed in set(mine).intersection(*theirs)}
    return interval_or_none(paired_or_none(mine, top))


def comparison_markdown(rows: Sequence[Row], keys: Sequence[str] = (*PLACE, "method")) -> str:
    """A method, and what hat-dfed-plus is ahead of it by; its own row holds it against all baselines."""
    headings = [*(_KEYS[key] for key in keys), "accuracy %", "worst %", "total MJ", "link MJ"]
    headings += ["plus is ahead, points", "total energy saved %", "link energy saved %", "seeds"]
    metrics = ("avg_accuracy", "worst_accuracy", "total_energy_mj", "link_energy_mj")
    differences = ("avg_accuracy_points", "total_energy_percent", "link_energy_percent")
    cells = []
    for row in rows:
        ahead = [row["plus_is_ahead_by"][name] for name in differences]
        shown = [format_difference(each, 1) if each is not None else NOTHING for each in ahead]
        figures = [format_figure(row[metric], None, is_energy=metric.endswith("_mj")) for metric in metrics]
        cells.append(
            [*(format_setting(row[key]) for key in keys), *figures, *shown, format_seeds(row["seeds"], ahead[0])]
        )
    return table(headings, cells)
