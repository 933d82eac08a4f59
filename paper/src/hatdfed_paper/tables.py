"""Every table that results make: those of the experiments, the headline, and the verdicts on the paper's claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hatdfed_paper.best_round import best_round_markdown, best_round_rows
from hatdfed_paper.claims import Claims
from hatdfed_paper.experiment import Table
from hatdfed_paper.experiments import EXPERIMENTS
from hatdfed_paper.headline import headline_markdown, headline_rows
from hatdfed_paper.markdown import NOTHING, table
from hatdfed_paper.plan import FULL, Scale, Settings
from hatdfed_paper.protocol import estimated_minutes, server_rounds
from hatdfed_paper.results import Results, run_name
from hatdfed_paper.rows import Row
from hatdfed_paper.verdict_rules import Verdict


def all_tables(results: Results, claims: Claims, scale: Scale) -> dict[str, list[Row]]:
    """The rows of every table, by name."""
    found: dict[str, list[Row]] = {}
    for experiment in EXPERIMENTS.values():
        own = experiment.own_results(results, scale)
        found |= {each.name: each.rows(own, claims, scale) for each in experiment.tables}
    found |= {each.name: each.rows(results.without_fresh_seeds(), claims, scale) for each in _SHARED}
    found[_PLANNED.name] = _PLANNED.rows(results, claims, scale)
    return {name: [{"published": None, **row} for row in rows] for name, rows in found.items()}


def all_markdown(tables: Mapping[str, Sequence[Row]]) -> dict[str, str]:
    """Every one of these tables that has rows, as Markdown."""
    found = {each.name: each.markdown(tables[each.name]) for each in _tables() if each.name in tables}
    return {name: text for name, text in found.items() if text}


def judge_claims(results: Results, claims: Claims, scale: Scale) -> list[Verdict]:
    """A verdict on every claim that our runs can say something about, in the paper's order."""
    judges = [each.verdicts for each in EXPERIMENTS.values() if each.verdicts is not None]
    seen = results.without_fresh_seeds()
    return [verdict for judge in judges for verdict in judge(seen, claims, scale)]


def _tables() -> list[Table]:
    return [*(table for experiment in EXPERIMENTS.values() for table in experiment.tables), *_SHARED, _PLANNED]


def _claim_rows(results: Results, claims: Claims, scale: Scale) -> list[Row]:
    if scale != FULL:
        return []
    checks = [each.checks for each in EXPERIMENTS.values() if each.checks is not None]
    checked = [verdict for check in checks for verdict in check(results, claims, scale)]
    return [each._asdict() for each in (*checked, *judge_claims(results, claims, scale))]


def _claim_markdown(rows: Sequence[Row]) -> str:
    columns = ("group", "claim", "published", "null", "ours", "verdict")
    return table(
        ["", "claim", "published", "null hypothesis", "ours", "verdict", "seeds"],
        [[*(row[name] for name in columns), str(row["pairs"])] for row in rows],
    )


def _planned_rows(results: Results, claims: Claims, scale: Scale) -> list[Row]:
    """How much has been played of every confirmatory experiment, and of the stages that choose settings for them."""
    first = {each.first for each in EXPERIMENTS.values() if each.first is not None}
    rows = []
    for name, each in EXPERIMENTS.items():
        if each.protocol is None and name not in first:
            continue
        runs, decisive = each.runs(scale), each.decisive_runs(scale)
        played = [run for run in runs if run["seed"] in results.at(_point_of(run))]
        deciding = [run for run in runs if run_name(run) in decisive]
        counts = {
            "runs": len(runs), "played": len(played), "decisive_runs": len(decisive),
            "decisive_played": sum(run_name(run) in decisive for run in played),
        }  # fmt: skip
        minutes = {"minutes_h200": _minutes(runs, scale), "decisive_minutes_h200": _minutes(deciding, scale)}
        waits_for = each.first if each.first is not None and not runs else None
        row = {"experiment": name, "kind": each.kind, **counts, **minutes, "seeds": each.every_seed(scale)}
        rows.append({**row, "state": _state(counts, waits_for)})
    return rows


def _minutes(runs: Sequence[Settings], scale: Scale) -> float | None:
    """On one H200, where rates are known: at full scale."""
    return round(estimated_minutes(server_rounds(runs, scale)), 1) if scale == FULL else None


def _point_of(run: Settings) -> Settings:
    return {name: value for name, value in run.items() if name != "seed"}


def _state(counts: Mapping[str, int], waits_for: str | None) -> str:
    if waits_for is not None:
        return f"waits for {waits_for}"
    if counts["played"] == 0:
        return "not played"
    if counts["played"] == counts["runs"]:
        return "played"
    if counts["decisive_runs"] and counts["decisive_played"] == counts["decisive_runs"]:
        return "all that decides is played"
    return "partly played, decides nothing yet"


def _planned_markdown(rows: Sequence[Row]) -> str:
    headings = ["experiment", "kind", "state", "runs that decide", "GPU minutes", "all runs", "GPU minutes"]
    cells = [
        [
            row["experiment"], row["kind"], row["state"],
            *(_of(row, "decisive_played", "decisive_runs", "decisive_minutes_h200") if row["decisive_runs"]
              else (NOTHING, NOTHING)),
            *(_of(row, "played", "runs", "minutes_h200") if row["runs"] else (NOTHING, NOTHING)),
        ]
        for row in rows
    ]  # fmt: skip
    return table(headings, cells)


def _of(row: Row, played: str, runs: str, minutes: str) -> tuple[str, str]:
    return f"{row[played]:,} of {row[runs]:,}", NOTHING if row[minutes] is None else f"{row[minutes]:.0f}"


_SHARED = (
    Table("headline", headline_rows, headline_markdown),
    Table("claims", _claim_rows, _claim_markdown),
    Table("best_round", best_round_rows, best_round_markdown),
)
_PLANNED = Table("planned", _planned_rows, _planned_markdown)
