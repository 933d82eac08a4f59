"""Every table that results make: those of the experiments, the headline, and the verdicts on the paper's claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hatdfed_paper.best_round import best_round_markdown, best_round_rows
from hatdfed_paper.claims import Claims
from hatdfed_paper.experiment import Table
from hatdfed_paper.experiments import EXPERIMENTS
from hatdfed_paper.headline import headline_markdown, headline_rows
from hatdfed_paper.markdown import table
from hatdfed_paper.plan import FULL, Scale
from hatdfed_paper.results import Results
from hatdfed_paper.rows import Row
from hatdfed_paper.verdict_rules import Verdict


def all_tables(results: Results, claims: Claims, scale: Scale) -> dict[str, list[Row]]:
    """The rows of every table, by name."""
    found: dict[str, list[Row]] = {}
    for experiment in EXPERIMENTS.values():
        own = experiment.own_results(results, scale)
        found |= {each.name: each.rows(own, claims, scale) for each in experiment.tables}
    found |= {each.name: each.rows(results.without_fresh_seeds(), claims, scale) for each in _SHARED}
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
    return [*(table for experiment in EXPERIMENTS.values() for table in experiment.tables), *_SHARED]


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


_SHARED = (
    Table("headline", headline_rows, headline_markdown),
    Table("claims", _claim_rows, _claim_markdown),
    Table("best_round", best_round_rows, best_round_markdown),
)
