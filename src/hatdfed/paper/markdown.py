"""Tables as Markdown, with columns that line up in a terminal, too."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hatdfed.paper.claims import Claims
from hatdfed.paper.plans import Scale
from hatdfed.paper.results import Results
from hatdfed.paper.rows import Row
from hatdfed.paper.tables import all_tables

_METRICS = {  # ours, published, heading
    "avg_accuracy": ("avg_accuracy", "accuracy %"),
    "std_accuracy": ("var_accuracy", "deviation over servers"),  # D19: the published variance is a deviation
    "best_accuracy": ("best_accuracy", "best server %"),
    "worst_accuracy": ("worst_accuracy", "worst server %"),
    "total_energy_mj": ("total_energy_mj", "total MJ"),
    "link_energy_mj": ("link_energy_mj", "link MJ"),
}
_KEYS = {
    "dataset": "data set",
    "label_concentration": "λ",
    "device_online_probability": "ρ",
    "method": "method",
    "link_share": "γ",
    "servers": "N",
    "gain_share": "α",
    "quality_share": "β",
    "feedback": "feedback",
}


def all_markdown(results: Results, claims: Claims, scale: Scale) -> dict[str, str]:
    """Every table that has rows, by name."""
    tables = all_tables(results, claims, scale)
    energies = ("avg_accuracy", "total_energy_mj", "link_energy_mj")
    found = {
        "table_1": _metrics(tables["table_1"], tuple(_METRICS)),
        "sparsity": _metrics(tables["sparsity"], energies),
        "scalability": _metrics(tables["scalability"], tuple(_METRICS)[:4]),
        "sensitivity": _metrics(tables["sensitivity"], energies),
        "ablation": _metrics(tables["ablation"], tuple(_METRICS)),
        "calibration": _calibration(tables["calibration"]),
        "readings": _readings(tables["readings"]),
        "released": _released(tables["released"]),
        "bandit": _bandit(tables["bandit"]),
        "energy": _energy(tables["energy"]),
        "plus": _plus(
            tables["plus"], ("dataset", "servers", "label_concentration", "device_online_probability", "method")
        ),
        "plus_equal_footing": _plus(
            tables["plus_equal_footing"],
            ("dataset", "servers", "label_concentration", "device_online_probability", "method", "every"),
        ),
        "plus_dense": _plus(
            tables["plus_dense"],
            ("dataset", "servers", "label_concentration", "device_online_probability", "method"),
        ),
        "plus_regimes": _plus(tables["plus_regimes"], ("dataset", "servers", "regime", "links")),
        "plus_ablation": _plus(tables["plus_ablation"], ("dataset", "words")),
        "headline": _headline(tables["headline"]),
        "claims": _claims(tables["claims"]),
    }
    return {name: text for name, text in found.items() if text}


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, padded; nothing without rows."""
    if not rows:
        return ""
    widths = [max(len(line[column]) for line in (headings, *rows)) for column in range(len(headings))]
    lines = [headings, ["-" * width for width in widths], *rows]
    padded = ([cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in padded)


def _metrics(rows: Sequence[Row], metrics: Sequence[str]) -> str:
    """Ours, and in brackets what is published; a column of keys for each that the rows have."""
    if not rows:
        return ""
    keys = [key for key in rows[0] if key in _KEYS]
    headings = [*(_KEYS[key] for key in keys), *(_METRICS[metric][1] for metric in metrics), "seeds"]
    cells = []
    for row in rows:
        published = row["published"] or {}
        figures = [
            _beside(row[metric], published.get(_METRICS[metric][0]), is_energy=metric.endswith("_mj"))
            for metric in metrics
        ]
        cells.append([*(_key(row[key]) for key in keys), *figures, str(len(row["seeds"]))])
    return table(headings, cells)


def _beside(ours: Sequence[float], published: Sequence[float] | None, *, is_energy: bool = False) -> str:
    """Mean ± deviation (published); a small energy with three digits that count, a small deviation of accuracy as 0."""
    digits = 1 if ours[0] >= 20 else 2
    if is_energy and 0 < ours[0] < 0.1:
        digits = 2 - math.floor(math.log10(ours[0]))
    text = f"{ours[0]:.{digits}f} ± {ours[1]:.{digits}f}"
    return text if published is None else f"{text} ({published[0]:g})"


def _key(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def _calibration(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    settings = list(rows[0]["validation_accuracy"])
    headings = ["data set", "samples a round", "passes", *settings, "mean distance to published"]
    cells = [
        [row["dataset"], str(row["samples_per_round"]), str(row["local_passes"])]
        + [f"{row['validation_accuracy'][setting]:.1f}" for setting in settings]
        + [f"{row['mean_distance_points']:.2f}"]
        for row in rows
    ]
    return table(headings, cells)


def _readings(rows: Sequence[Row]) -> str:
    headings = ["", "reading", "data set", "validation points", "test points", "total energy", "seeds"]
    cells = [
        [
            row["reading"],
            row["words"],
            row["dataset"],
            _interval(row["validation_accuracy_difference"], 1) if row["validation_accuracy_difference"] else "–",
            _interval(row["avg_accuracy_difference"], 1),
            _interval(row["total_energy_mj_difference"], 2) + " MJ",
            str(row["avg_accuracy_difference"]["pairs"]),
        ]
        for row in rows
    ]
    return table(headings, cells)


def _interval(difference: Mapping[str, Any], digits: int) -> str:
    if difference["low"] is None:
        return f"{difference['mean']:+.{digits}f}"
    low, high = (f"{difference[end]:+.{digits}f}" for end in ("low", "high"))
    return f"{difference['mean']:+.{digits}f} ({low} to {high})"


def _released(rows: Sequence[Row]) -> str:
    headings = ["data set", "λ", "ρ", "method", "feedback", "last round %", "best round %", "published %", "seeds"]
    cells = []
    for row in rows:
        keys = [_key(row[key]) for key in ("dataset", "label_concentration", "device_online_probability", "method")]
        # The best round is one of those that the bandit learns from: on the test set where that is what it sees.
        best = _beside(row["best_round_accuracy"], None) if row["feedback"] == "test" else "–"
        published = f"{row['published']['avg_accuracy'][0]:g}" if row["published"] else "–"
        last = _beside(row["avg_accuracy"], None)
        cells.append([*keys, row["feedback"], last, best, published, str(len(row["seeds"]))])
    return table(headings, cells)


def _bandit(rows: Sequence[Row]) -> str:
    headings = ["data set", "λ", "ρ", "regret", "printed bound", "bound that holds", "runs above the printed"]
    headings += ["least p", "most p", "correlation of p and price", "accuracy against random links"]
    cells = []
    for row in rows:
        keys = [_key(row[key]) for key in ("dataset", "label_concentration", "device_online_probability")]
        printed = row["printed_bound"]
        bounds = ["–" if printed is None else f"{printed:.0f}", f"{row['standard_bound']:.0f}"]
        regret = [f"{row['regret_best_fixed'][0]:.0f} ± {row['regret_best_fixed'][1]:.0f}", *bounds]
        names = ("least", "most", "correlation_with_price")
        ends = [" ± ".join(f"{value:.2f}" for value in row[f"probability_{name}"]) or "–" for name in names]
        against = row["against_random_links"]
        words = _interval(against["avg_accuracy"], 1) + " points" if against else "–"
        cells.append([*keys, *regret, f"{row['runs_above_printed_bound']} of {len(row['seeds'])}", *ends, words])
    return table(headings, cells)


def _energy(rows: Sequence[Row]) -> str:
    """One line for each method, worst setting first; λ and ρ change nothing but the data's share."""
    headings = ["data set", "method", "links a round", "link MJ", "expected", "largest deviation, link", "total"]
    cells = []
    for dataset, method in dict.fromkeys((row["dataset"], row["method"]) for row in rows):
        alike = [row for row in rows if (row["dataset"], row["method"]) == (dataset, method)]
        worst = [
            max((row[f"{kind}_energy_mj_deviation_percent"] for row in alike), key=abs) for kind in ("link", "total")
        ]
        first = alike[0]
        figures = [f"{first[name]:.2f}" for name in ("links_per_round", "link_energy_mj", "expected_link_energy_mj")]
        cells.append([dataset, method, *figures, *(f"{value:+.1f} %" for value in worst)])
    return table(headings, cells)


def _plus(rows: Sequence[Row], keys: Sequence[str]) -> str:
    """A method, and what hat-dfed-plus is ahead of it by; its own row holds it against the mean of the baselines."""
    names = {**_KEYS, "every": "every", "words": "hat-dfed-plus …", "regime": "regime", "links": "links"}
    headings = [*(names[key] for key in keys), "accuracy %", "worst %", "total MJ", "link MJ"]
    headings += ["plus is ahead, points", "total energy saved %", "link energy saved %", "seeds"]
    metrics = ("avg_accuracy", "worst_accuracy", "total_energy_mj", "link_energy_mj")
    differences = ("avg_accuracy_points", "total_energy_percent", "link_energy_percent")
    cells = []
    for row in rows:
        ahead = [row["plus_is_ahead_by"][name] for name in differences]
        shown = [_interval(each, 1) if each is not None else "–" for each in ahead]
        figures = [_beside(row[metric], None, is_energy=metric.endswith("_mj")) for metric in metrics]
        cells.append([*(_key(row[key]) for key in keys), *figures, *shown, str(len(row["seeds"]))])
    return table(headings, cells)


def _claims(rows: Sequence[Row]) -> str:
    columns = ("group", "claim", "published", "ours", "verdict")
    return table(["", *columns[1:], "seeds"], [[*(row[name] for name in columns), str(row["pairs"])] for row in rows])


def _headline(rows: Sequence[Row]) -> str:
    """Figures of the paper's abstract and text: ours with the interval, and the published ones."""
    cells = []
    for row in rows:
        for name, ours in row.items():
            if name not in ("published", "intervals", "pairs", "seeds"):
                published = None if row["published"] is None else row["published"][name]
                cells += _headline_cells(name, ours, row["intervals"][name], published)
    return table(["figure", "ours", "published"], cells)


def _headline_cells(name: str, ours: Any, ends: Any, published: Any) -> list[list[str]]:
    if isinstance(ours, dict):
        parts = [(f"{name}, {key}", ours[key], ends[key], (published or {}).get(key)) for key in ours]
    elif isinstance(ours, list):
        words = ("total", "link")
        parts = [(f"{name}, {w}", ours[k], ends[k], (published or [None] * 2)[k]) for k, w in enumerate(words)]
    else:
        parts = [(name, ours, ends, published)]
    return [
        [words, _interval({"mean": mean, "low": low, "high": high}, 1), "–" if theirs is None else f"{theirs:+.1f}"]
        for words, mean, (low, high), theirs in parts
    ]
