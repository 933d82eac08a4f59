"""hatdfed show: what a run folder holds."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from hatdfed.cli.console import joules_text, out
from hatdfed.cli.options import Json
from hatdfed.cli.tables import run_title, summary_table
from hatdfed.runs.records.folder import RunFolder, named_path


def show_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", parser=named_path, help="A run folder.")], as_json: Json = False
) -> None:
    """Show a run: its summary, or how far it has come."""
    folder = RunFolder.open(run)
    config = folder.config()
    results = folder.read_final(config.rounds)
    with closing(folder.read()) as database:
        rounds = database.records("rounds")
    if as_json:
        content = results or {"rounds": len(rounds), "config": config.model_dump(mode="json"), "finished": False}
        typer.echo(json.dumps(content))
        return
    if results is not None:
        out.print(summary_table([results], title=run_title(config)))
        for sentence in results.get("notes", ()):
            out.print(f"note: {sentence}", soft_wrap=True)
        return
    out.print(f"{run_title(config)}: {len(rounds)} of {config.rounds} rounds played.", soft_wrap=True)
    if rounds:
        spent = sum(row["upload_joules"] + row["training_joules"] + row["link_joules"] for row in rounds)
        accuracy = rounds[-1]["avg_accuracy"]
        out.print(f"Validation accuracy {accuracy:.1f} %, spent {joules_text(spent)}.", soft_wrap=True)
    if (run / "journal.sqlite").exists():
        out.print(f"It is played on real machines: start its coordinator again with --state {run}", soft_wrap=True)
    else:
        out.print(f"Go on with: hatdfed run --resume {run}", soft_wrap=True)
