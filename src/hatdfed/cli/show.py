"""hatdfed show: print the results or the progress of a run folder."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from hatdfed.cli.console import out
from hatdfed.cli.options import Json
from hatdfed.cli.tables import format_run_title, make_summary_table
from hatdfed.runs.display import format_energy
from hatdfed.runs.privacy_loss import format_privacy
from hatdfed.runs.records.cleaning import texts
from hatdfed.runs.records.folder import RunFolder, named_path
from hatdfed.runs.round_row import ROUND_COLUMNS, joules_of, results_over
from hatdfed.runs.trust_history import format_groups, read_changes, summarise_groups

_LONGEST_NOTE = 2000  # characters


def show_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", parser=named_path, help="A run folder.")], as_json: Json = False
) -> None:
    """Show a run: its summary, or its progress."""
    folder = RunFolder.open(run)
    config = folder.config()
    results = folder.read_final(config.rounds)
    with closing(folder.read()) as database:
        rounds = database.records("rounds")
        groups = summarise_groups(read_changes(database.records("trust")))
    if as_json:
        content = results or {"rounds": len(rounds), "config": config.model_dump(mode="json"), "finished": False}
        typer.echo(
            json.dumps({**results_over(rounds), **groups, **content, "last_round": rounds[-1] if rounds else None})
        )
        return
    if results is not None:
        out.print(make_summary_table([results], title=format_run_title(config)))
        _print_last_round(rounds)
        _print_groups(groups)
        if isinstance(results.get("privacy"), Mapping):
            out.print(format_privacy(results["privacy"]), soft_wrap=True)
        for sentence in texts(results.get("notes"), _LONGEST_NOTE):
            out.print(f"note: {sentence}", soft_wrap=True)
        return
    out.print(f"{format_run_title(config)}: {len(rounds)} of {config.rounds} rounds played.", soft_wrap=True)
    if rounds:
        out.print(f"Spent {format_energy(math.fsum(map(joules_of, rounds)))}.", soft_wrap=True)
    _print_last_round(rounds)
    _print_groups(groups)
    if (run / "journal.sqlite").exists():
        out.print(f"It runs on real machines: start its coordinator again with --state {run}", soft_wrap=True)
    else:
        out.print(f"Go on with: hatdfed run --resume {run}", soft_wrap=True)


def _print_last_round(rounds: Sequence[Mapping[str, Any]]) -> None:
    """Print the columns of the last round, and what those that are sums come to over all rounds."""
    for heading, kind in (("Last round", "last"), ("All rounds", "sum")):
        chosen = [column for column in ROUND_COLUMNS.values() if column.over_rounds == kind]
        if kind == "sum":
            chosen = [column for column in chosen if column.in_results]  # the others are in the table
        if rounds and chosen:
            figures = [f"{column.label} {column.text(column.value_over(rounds))}" for column in chosen]
            out.print(f"{heading}: {', '.join(figures)}.", soft_wrap=True)


def _print_groups(groups: Mapping[str, Any]) -> None:
    """Print the groups that were found, of a run whose policy learns whom to hear."""
    if groups:
        out.print(f"Groups found: {format_groups(groups)}.", soft_wrap=True, highlight=False)
