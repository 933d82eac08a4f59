"""hatdfed run: one run, watched."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hatdfed.cli.console import download_bar, err, joules_text, note, out, require_torch
from hatdfed.cli.options import (
    Assignments,
    ConfigFile,
    DataDir,
    DatasetName,
    Json,
    Rounds,
    Servers,
    fresh_folder,
    user_layer,
)
from hatdfed.cli.tables import summary_table
from hatdfed.config import Config
from hatdfed.energy.ledger import total_joules
from hatdfed.resolve import notes, resolve
from hatdfed.round import RoundRecord

if TYPE_CHECKING:
    from hatdfed.experiment import OnRound, RunResult


def run_command(
    config: ConfigFile = None,
    method: Annotated[str | None, typer.Option("--method", help="Method; `hatdfed methods` lists them.")] = None,
    dataset: DatasetName = None,
    servers: Servers = None,
    rounds: Rounds = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Which world.")] = None,
    assignments: Assignments = None,
    folder: Annotated[Path | None, typer.Option("--out", help="Folder for this run; runs/… by default.")] = None,
    resume_from: Annotated[Path | None, typer.Option("--resume", help="Go on with the run in this folder.")] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Play one run and keep it in a folder."""
    require_torch()
    from hatdfed import experiment

    layer = user_layer(config, assignments, method=method, dataset=dataset, servers=servers, rounds=rounds, seed=seed)
    with download_bar() as progress:
        if resume_from is not None:
            with _live() as on_round:
                result = experiment.resume(resume_from, layer, data_dir=data_dir, on_round=on_round, progress=progress)
        else:
            complete = resolve(layer)
            for sentence in notes(complete):
                note(sentence)
            folder = folder or fresh_folder(complete.method, complete.dataset, f"seed{complete.seed}")
            with _live() as on_round:
                result = experiment.run(complete, out=folder, data_dir=data_dir, on_round=on_round, progress=progress)
    _draw(result)
    if as_json:
        typer.echo(json.dumps({**result.summary, "config": result.config.model_dump(mode="json")}))
    else:
        out.print(summary_table([result.summary], title=title(result.config)))
        out.print(f"Run folder: {result.folder}", soft_wrap=True)


def title(config: Config) -> str:
    """What a run is, in one line."""
    return f"{config.method} on {config.dataset}, {config.servers} servers, {config.rounds} rounds, seed {config.seed}"


def _draw(result: RunResult) -> None:
    from hatdfed.report.run_data import run_data
    from hatdfed.report.run_figures import write_run_figures

    if result.folder is not None:
        write_run_figures(run_data(result), result.folder)


@contextmanager
def _live() -> Iterator[OnRound]:
    """A progress bar on a terminal, now and then a plain line elsewhere."""
    spent = 0.0

    def figures(record: RoundRecord) -> tuple[float, float]:
        nonlocal spent
        spent += total_joules(record.report.energy)
        return 100 * float(record.report.accuracy.mean()), spent

    if not err.is_terminal:

        def print_line(config: Config, record: RoundRecord) -> None:
            accuracy, joules = figures(record)
            if (record.t + 1) % max(1, config.rounds // 10) == 0 or record.t + 1 == config.rounds:
                text = f"round {record.t + 1}/{config.rounds}  accuracy {accuracy:.1f} %  spent {joules_text(joules)}"
                err.print(text, soft_wrap=True)

        yield print_line
        return

    columns: tuple[Any, ...] = (
        TextColumn("round"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task("getting ready")

        def move_bar(config: Config, record: RoundRecord) -> None:
            accuracy, joules = figures(record)
            text = f"accuracy {accuracy:.1f} %  spent {joules_text(joules)}"
            bar.update(task, total=config.rounds, completed=record.t + 1, description=text)

        yield move_bar
