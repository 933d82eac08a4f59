"""The tables about `hat-dfed-plus` as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hatdfed_paper.markdown_cells import KEYS, beside, key_words, price, table, with_ends
from hatdfed_paper.rows import Row

_PLACE = ("dataset", "servers", "label_concentration", "device_online_probability", "method")
_NOTHING = "–"


def plus_markdown(tables: Mapping[str, Sequence[Row]]) -> dict[str, str]:
    """Every one of them, by name; empty where it has no rows."""
    return {
        "plus_summary": summary(tables["plus_summary"]),
        "plus_search": "\n\n".join(searches(tables["plus_search"]).values()),
        "plus": against(tables["plus"], _PLACE),
        "plus_equal_footing": against(tables["plus_equal_footing"], (*_PLACE, "every")),
        "plus_dense": against(tables["plus_dense"], _PLACE),
        "plus_regimes": against(tables["plus_regimes"], ("dataset", "servers", "regime", "links", "every")),
        "plus_ablation": against(tables["plus_ablation"], ("dataset", "words")),
        "plus_energy_split": energy_split(tables["plus_energy_split"]),
        "regimes": price_map(tables["regimes"]),
    }


def against(rows: Sequence[Row], keys: Sequence[str]) -> str:
    """A method, and what hat-dfed-plus is ahead of it by; its own row holds it against the mean of the baselines."""
    names = {**KEYS, "every": "every", "words": "hat-dfed-plus …", "regime": "regime", "links": "links"}
    headings = [*(names[key] for key in keys), "accuracy %", "worst %", "total MJ", "link MJ"]
    headings += ["plus is ahead, points", "total energy saved %", "link energy saved %", "seeds"]
    metrics = ("avg_accuracy", "worst_accuracy", "total_energy_mj", "link_energy_mj")
    differences = ("avg_accuracy_points", "total_energy_percent", "link_energy_percent")
    cells = []
    for row in rows:
        ahead = [row["plus_is_ahead_by"][name] for name in differences]
        shown = [with_ends(each, 1) if each is not None else "–" for each in ahead]
        figures = [beside(row[metric], None, is_energy=metric.endswith("_mj")) for metric in metrics]
        cells.append([*(key_words(row[key]) for key in keys), *figures, *shown, str(len(row["seeds"]))])
    return table(headings, cells)


def summary(rows: Sequence[Row]) -> str:
    """What is reached, a line for each figure, a column for each data set and fleet."""
    headings = ["", *(f"{row['dataset']}, N = {row['servers']}" for row in rows)]
    lines = [(name, [words(row) for row in rows]) for name, words in _SUMMARY.items()]
    return table(headings, [[name, *cells] for name, cells in lines]) if rows else ""


def _of(count: int, row: Row) -> str:
    return f"{count} of {row['settings']}"


def _difference(found: Row | None, unit: str) -> str:
    return _NOTHING if found is None else f"{with_ends(found, 1)} {unit}"


def _named(found: Row | None) -> str:
    """A difference, against whom and where."""
    return _NOTHING if found is None else f"{with_ends(found, 1)} points against {found['method']}, {found['setting']}"


def _equal_footing(row: Row) -> str:
    found = row["equal_footing"]
    return _NOTHING if found is None else _of(found["not_below"], found)


_SUMMARY: Mapping[str, Any] = {
    "accuracy, against the mean of the four": lambda row: _difference(row["avg_accuracy_points"], "points"),
    "total energy saved": lambda row: _difference(row["total_energy_percent"], "%"),
    "link energy saved": lambda row: _difference(row["link_energy_percent"], "%"),
    "settings: at least as accurate as the best of the four": lambda row: _of(row["as_accurate_as_the_best"], row),
    "settings: its worst server at least as good as the best server of all four": (
        lambda row: _of(row["worst_over_best"], row)
    ),
    "equal footing, settings: not distinguishably below the best": _equal_footing,
    "equal footing, against the mean of the four": (
        lambda row: _difference((row["equal_footing"] or {}).get("against_mean"), "points")
    ),
    "dense, against the best: mean over settings": lambda row: _difference((row["dense"] or {}).get("mean"), "points"),
    "dense, against the best: largest gap": lambda row: _named((row["dense"] or {}).get("largest_gap")),
    "seeds": lambda row: str(len(row["seeds"])),
}


def searches(rows: Sequence[Row]) -> dict[str, str]:
    """A table for each sweep that has been played: every value, what it brought and cost, what was chosen."""
    headings = ["part", "instead of the guess", "validation points", "link MJ", "", "worlds"]
    cells: dict[str, list[list[str]]] = {}
    for row in rows:
        points = row["validation_points"]
        verdict = "**chosen**" if row["is_chosen"] else "" if row["is_allowed"] else "too dear"
        cells.setdefault(row["sweep"], []).append(
            [
                row["part"],
                row["words"],
                _NOTHING if points is None else with_ends(points, 1),
                f"{row['link_energy_mj']:.3f}",
                verdict,
                str(len(row["seeds"])),
            ]
        )
    return {name: table(headings, lines) for name, lines in cells.items()}


def energy_split(rows: Sequence[Row]) -> str:
    """Joules by cause, in MJ, and the links' share."""
    headings = ["data set", "method", "upload MJ", "training MJ", "links MJ", "links' share"]
    causes = ("upload_energy_mj", "training_energy_mj", "link_energy_mj")
    cells = [
        [row["dataset"], row["method"], *(f"{row[name]:.2f}" for name in causes), f"{row['link_share_percent']:.0f} %"]
        for row in rows
    ]
    return table(headings, cells)


def price_map(rows: Sequence[Row]) -> str:
    """For each data set a table: joules a sample downwards, joules a sent model to the right."""
    parts = []
    for dataset in dict.fromkeys(row["dataset"] for row in rows):
        here = [row for row in rows if row["dataset"] == dataset]
        across, down = (sorted({row[name] for row in here}) for name in ("joules_per_model", "joules_per_sample"))
        found = {(row["joules_per_sample"], row["joules_per_model"]): row for row in here}
        lines = [[price(sample), *(_saved(found.get((sample, model))) for model in across)] for sample in down]
        parts.append(table([f"{dataset}: J a sample \\ J a model", *(price(model) for model in across)], lines))
    return "\n\n".join(parts)


def _saved(row: Row | None) -> str:
    """What hat-dfed-plus saves, and in brackets the links' share of the baselines' energy."""
    if row is None or row["plus_saves_percent"] is None:
        return _NOTHING
    return f"{row['plus_saves_percent']:.0f} % ({row['link_share_percent']:.0f})"
