"""Tables as Markdown, with columns that line up in a terminal, too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hatdfed_paper.claims import Claims
from hatdfed_paper.markdown_cells import KEYS, beside, key_words, table, with_ends
from hatdfed_paper.plans import Scale
from hatdfed_paper.plus_markdown import plus_markdown
from hatdfed_paper.results import Results
from hatdfed_paper.rows import Row
from hatdfed_paper.tables import all_tables

_METRICS = {  # ours, published, heading
    "avg_accuracy": ("avg_accuracy", "accuracy %"),
    "std_accuracy": ("var_accuracy", "deviation over servers"),  # D19: the published variance is a deviation
    "best_accuracy": ("best_accuracy", "best server %"),
    "worst_accuracy": ("worst_accuracy", "worst server %"),
    "total_energy_mj": ("total_energy_mj", "total MJ"),
    "link_energy_mj": ("link_energy_mj", "link MJ"),
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
        **plus_markdown(tables),
        "headline": _headline(tables["headline"]),
        "claims": _claims(tables["claims"]),
    }
    return {name: text for name, text in found.items() if text}


def _metrics(rows: Sequence[Row], metrics: Sequence[str]) -> str:
    """Ours, and in brackets what is published; a column of keys for each that the rows have."""
    if not rows:
        return ""
    keys = [key for key in rows[0] if key in KEYS]
    headings = [*(KEYS[key] for key in keys), *(_METRICS[metric][1] for metric in metrics), "seeds"]
    cells = []
    for row in rows:
        published = row["published"] or {}
        figures = [
            beside(row[metric], published.get(_METRICS[metric][0]), is_energy=metric.endswith("_mj"))
            for metric in metrics
        ]
        cells.append([*(key_words(row[key]) for key in keys), *figures, str(len(row["seeds"]))])
    return table(headings, cells)


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
            with_ends(row["validation_accuracy_difference"], 1) if row["validation_accuracy_difference"] else "–",
            with_ends(row["avg_accuracy_difference"], 1),
            with_ends(row["total_energy_mj_difference"], 2) + " MJ",
            str(row["avg_accuracy_difference"]["pairs"]),
        ]
        for row in rows
    ]
    return table(headings, cells)


def _released(rows: Sequence[Row]) -> str:
    headings = ["data set", "λ", "ρ", "method", "feedback", "last round %", "best round %", "published %", "seeds"]
    cells = []
    for row in rows:
        keys = [
            key_words(row[key]) for key in ("dataset", "label_concentration", "device_online_probability", "method")
        ]
        # The best round is one of those that the bandit learns from: on the test set where that is what it sees.
        best = beside(row["best_round_accuracy"], None) if row["feedback"] == "test" else "–"
        published = f"{row['published']['avg_accuracy'][0]:g}" if row["published"] else "–"
        last = beside(row["avg_accuracy"], None)
        cells.append([*keys, row["feedback"], last, best, published, str(len(row["seeds"]))])
    return table(headings, cells)


def _bandit(rows: Sequence[Row]) -> str:
    headings = ["data set", "λ", "ρ", "regret", "printed bound", "bound that holds", "runs above the printed"]
    headings += ["least p", "most p", "correlation of p and price", "accuracy against random links"]
    cells = []
    for row in rows:
        keys = [key_words(row[key]) for key in ("dataset", "label_concentration", "device_online_probability")]
        printed = row["printed_bound"]
        bounds = ["–" if printed is None else f"{printed:.0f}", f"{row['standard_bound']:.0f}"]
        regret = [f"{row['regret_best_fixed'][0]:.0f} ± {row['regret_best_fixed'][1]:.0f}", *bounds]
        names = ("least", "most", "correlation_with_price")
        ends = [" ± ".join(f"{value:.2f}" for value in row[f"probability_{name}"]) or "–" for name in names]
        against = row["against_random_links"]
        words = with_ends(against["avg_accuracy"], 1) + " points" if against else "–"
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
        [words, with_ends({"mean": mean, "low": low, "high": high}, 1), "–" if theirs is None else f"{theirs:+.1f}"]
        for words, mean, (low, high), theirs in parts
    ]
