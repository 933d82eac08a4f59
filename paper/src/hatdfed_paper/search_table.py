"""Rows of the search for `hat-dfed-plus`: every value that was tried, what it brought and cost, and what was chosen."""

from __future__ import annotations

from hatdfed_paper.plans import Scale
from hatdfed_paper.plus_choice import allowed_link_mj, chosen_changes, gain, tried
from hatdfed_paper.plus_plans import SWEEPS
from hatdfed_paper.results import Results
from hatdfed_paper.rows import Row, interval


def search_table(results: Results, scale: Scale) -> list[Row]:
    """Sweep by sweep, the guess first; a sweep that has not been played has no rows."""
    rows = []
    for name, sweep in SWEEPS.items():
        found = tried(results, scale, sweep)
        allowed = allowed_link_mj(results, scale, sweep)
        chosen = chosen_changes(found, allowed)
        for each in found:
            difference = gain(each, found[0]) if each.change else None
            rows.append(
                {
                    "sweep": name,
                    "part": each.change.part if each.change else "",
                    "words": each.change.words if each.change else "the guess",
                    "validation_points": None if difference is None else interval(difference),
                    "link_energy_mj": round(each.link_mj, 4),
                    "is_allowed": each.link_mj <= allowed,
                    "is_chosen": each.change in chosen,
                    "seeds": sorted(each.accuracy),
                }
            )
    return rows
