"""The four baselines one by one, beside their mean: what each of them costs, and which is the best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hatdfed_paper.figure_words import span
from hatdfed_paper.markdown_cells import with_ends
from hatdfed_paper.plans import BASELINES

Row = dict[str, Any]
_SETTING = ("label_concentration", "device_online_probability")


def saved_span(rows: Sequence[Row], place: Row) -> str:
    """Percent of the energy saved against each of the four in each setting of a place, from least to most."""
    saved = [row["plus_is_ahead_by"]["total_energy_percent"]["mean"] for row in _four(rows, place)]
    return span(saved, ".1f") if saved else "–"


def mostly_rnd(rows: Sequence[Row]) -> list[str]:
    """Where `rnd` alone makes more than half of the link energy of the four, and so of their mean."""
    found = []
    for dataset, servers in dict.fromkeys((row["dataset"], row["servers"]) for row in rows):
        four = _four(rows, {"dataset": dataset, "servers": servers})
        joules = [(row["method"], row["link_energy_mj"][0]) for row in four]
        share = sum(mj for name, mj in joules if name == "rnd") / (sum(mj for _, mj in joules) or 1.0)
        if share > 0.5:
            found.append(f"{100 * share:.0f} % on {dataset}, {servers} servers")
    if not found:
        return []
    return [
        "- In large fleets the mean of the four is mostly `rnd`, which draws a share of all links. Of their link "
        f"energy it makes {'; '.join(found)}."
    ]


def lead_over_best(rows: Sequence[Row], place: Row) -> str:
    """Points ahead of the most accurate of the four; over several settings from least to most."""
    settings: dict[tuple[float, ...], list[Row]] = {}
    for row in _four(rows, place):
        settings.setdefault(tuple(row[name] for name in _SETTING), []).append(row)
    best = [max(rivals, key=lambda row: float(row["avg_accuracy"][0])) for rivals in settings.values()]
    leads = [row["plus_is_ahead_by"]["avg_accuracy_points"] for row in best]
    if len(leads) == 1:
        return with_ends(leads[0], 1)
    return span([lead["mean"] for lead in leads], "+.1f").replace("−", "-") if leads else "–"


def spent_less(rows: Sequence[Row]) -> str:
    """How many percent less than the recipe each rival spends on links on equal footing, by size of the fleet."""
    parts = []
    for servers in sorted({row["servers"] for row in rows}):
        less: dict[str, list[float]] = {}
        for row in rows:
            ahead = row["plus_is_ahead_by"]["link_energy_percent"]
            if row["servers"] == servers and row["method"] != "hat-dfed-plus-0.1" and ahead:
                # Of the rival's joules the recipe spends 100 - ahead percent.
                less.setdefault(row["method"], []).append(100 - 1e4 / (100 - ahead["mean"]))
        each = ", ".join(f"`{name}` {span(values, '.0f')} %" for name, values in less.items())
        parts.append(f"- {servers} servers: {each}.")
    return "\n".join(parts) or "Not played yet."


def _four(rows: Sequence[Row], place: Row) -> list[Row]:
    """Rows of the four in one place that can be held against the recipe."""
    here = (place["dataset"], place["servers"])
    return [row for row in rows if row["method"] in BASELINES and (row["dataset"], row["servers"]) == here]
