"""hatdfed show: print the results or the progress of the folder of a run, a comparison or a sweep."""

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
from hatdfed.cli.tables import (
    describe_spread,
    format_run_title,
    make_difference_table,
    make_summary_table,
    make_sweep_table,
    print_failures,
    print_search,
)
from hatdfed.runs.confusion import format_by_class
from hatdfed.runs.display import format_energy
from hatdfed.runs.privacy_loss import format_privacy
from hatdfed.runs.records.cleaning import texts
from hatdfed.runs.records.folder import RunFolder, named_path
from hatdfed.runs.round_row import ROUND_COLUMNS, format_metric, joules_of, metrics_in, results_over
from hatdfed.runs.trust_history import format_groups, read_changes, summarise_groups
from hatdfed.sweeps.documents import (
    find_compared_runs,
    find_runs,
    find_sweep_runs,
    is_finished_sweep,
    is_run,
    is_sweep,
    read_comparison_document,
    read_sweep_document,
)

_LONGEST_NOTE = 2000  # characters


def show_command(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", parser=named_path, help="Folder of a run, a comparison or a sweep.")
    ],
    as_json: Json = False,
) -> None:
    """Show a run, a comparison or a sweep: its results, or its progress."""
    if is_sweep(folder):
        _show_sweep(folder, as_json)
    elif is_run(folder) or (folder / "run.sqlite").exists():
        _show_run(folder, as_json)
    else:
        _show_comparison(folder, as_json)


def _show_sweep(folder: Path, as_json: bool) -> None:
    if not is_finished_sweep(folder):
        _show_unfinished("sweep", find_sweep_runs(folder), as_json)
        return
    document = read_sweep_document(folder)
    if as_json:
        typer.echo(json.dumps({**document, "folder": str(folder)}))
        return
    if document["rows"]:
        sought = {} if document.get("search") is None else {"objectives": document["search"]["objectives"]}
        what = "search" if sought else "sweep"
        over = describe_spread(document["rows"])
        out.print(make_sweep_table(document["rows"], title=f"{what} {folder.name}, {over}", **sought))
    if document.get("search") is not None:
        print_search(document["search"])
    if document["failed"]:
        print_failures(document["failed"], "The command that started the sweep tries them again.")


def _show_comparison(folder: Path, as_json: bool) -> None:
    runs = find_runs(folder)
    document = read_comparison_document(folder)
    if document is not None:
        runs = find_compared_runs(folder, document["methods"])
    if document is not None and as_json:
        typer.echo(json.dumps({**document, "run_folder": str(folder)}))
    elif document is not None:
        config = RunFolder.open(runs[0]).config()
        heading = f"{config.dataset}, {config.servers} servers, {config.rounds} rounds"
        seeds = max(len(row.get("seeds", ())) for row in document["methods"])
        over = f"mean ± sd over {seeds} seeds" if seeds > 1 else "one seed"
        out.print(make_summary_table(document["methods"], title=f"{heading}, {over}"))
        target, reference = document.get("target_accuracy"), str(document.get("reference"))
        out.print(make_difference_table(document["methods"], reference=reference, target_accuracy=target))
    else:
        _show_unfinished("comparison", runs, as_json)


def _show_unfinished(what: str, runs: Sequence[Path], as_json: bool) -> None:
    """Show how far the runs of a comparison or a sweep are that was stopped, or is in play."""
    rows = []
    for path in runs:
        run = RunFolder(path)
        rows.append({"run": path.name, "rounds": len(run.read_rounds()), "of": run.config().rounds})
    if as_json:
        typer.echo(json.dumps({"runs": rows, "finished": False}))
        return
    done = sum(row["rounds"] == row["of"] for row in rows)
    begun = f"{done} of the {len(rows)} runs that were begun are at their end." if rows else "No run was begun."
    out.print(f"This {what} is not finished. {begun}")
    for row in rows:
        out.print(f"  {row['run']}: {row['rounds']} of {row['of']} rounds", soft_wrap=True)


def _show_run(run: Path, as_json: bool) -> None:
    folder = RunFolder.open(run)
    config = folder.config()
    with closing(folder.read()) as database:
        rounds = database.records("rounds")
        groups = summarise_groups(read_changes(database.records("trust")))
    results = folder.read_ended(config.rounds, len(rounds))
    if as_json:
        content = results or {"rounds": len(rounds), "config": config.model_dump(mode="json"), "finished": False}
        typer.echo(
            json.dumps({**results_over(rounds), **groups, **content, "last_round": rounds[-1] if rounds else None})
        )
        return
    if results is not None:
        out.print(make_summary_table([results], title=format_run_title(config)))
        if (by_class := format_by_class(results)) is not None:
            out.print(by_class, soft_wrap=True)
        _print_last_round(rounds)
        _print_groups(groups)
        if isinstance(results.get("privacy"), Mapping):
            out.print(format_privacy(results["privacy"]), soft_wrap=True)
        for sentence in texts(results.get("notes"), _LONGEST_NOTE):
            out.print(f"note: {sentence}", soft_wrap=True)
        return
    out.print(f"{format_run_title(config)}: {len(rounds)} of {config.rounds} rounds completed.", soft_wrap=True)
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
    shown = [column for column in ROUND_COLUMNS.values() if not column.is_optional or _is_known(column.name, rounds)]
    for heading, kind in (("Last round", "last"), ("All rounds", "sum")):
        chosen = [column for column in shown if column.over_rounds == kind]
        if kind == "sum":
            chosen = [column for column in chosen if column.in_results]  # the others are in the table
        if rounds and chosen:
            figures = [f"{column.label} {column.text(column.value_over(rounds))}" for column in chosen]
            if kind == "last":
                figures += [f"{name} {format_metric(rounds[-1].get(name))}" for name in metrics_in(rounds)]
            out.print(f"{heading}: {', '.join(figures)}.", soft_wrap=True)


def _is_known(name: str, rounds: Sequence[Mapping[str, Any]]) -> bool:
    return any(row.get(name) is not None for row in rounds)


def _print_groups(groups: Mapping[str, Any]) -> None:
    """Print the groups that were found, of a run whose policy learns whom to hear."""
    if groups:
        out.print(f"Groups found: {format_groups(groups)}.", soft_wrap=True, highlight=False)
