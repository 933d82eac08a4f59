"""hatdfed paper: the paper's experiments, tables and figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hatdfed.cli.console import interruptible, note, out, require_torch
from hatdfed.cli.options import DataDir, DeviceName
from hatdfed.cli.progress import watch_experiment
from hatdfed.errors import ConfigError
from hatdfed.paper.folders import results_folder
from hatdfed.paper.plans import EXPERIMENTS, THE_PAPER, experiment_named, points, runs, scale_named
from hatdfed.paper.results import read_all

app = typer.Typer(help="The paper's experiments: run them, and make its tables and figures.", no_args_is_help=True)

ScaleName = Annotated[str, typer.Option("--scale", help="smoke (digits, minutes on a CPU) or full (a GPU).")]
ResultsDir = Annotated[
    Path | None, typer.Option("--results", help="Folder of packed results; paper/results, or runs/paper-smoke.")
]


@app.command("list")
def list_command(scale: ScaleName = "full", results: ResultsDir = None) -> None:
    """List the experiments and how much of each is done."""
    from rich.table import Table

    chosen = scale_named(scale)
    files = read_all(results_folder(results, chosen), EXPERIMENTS, chosen.name)
    table = Table("experiment", "question", "points", "runs", "done", box=None)
    for name, experiment in EXPERIMENTS.items():
        total = len(runs(name, chosen))
        table.add_row(
            name, experiment.question, str(len(points(name, chosen))), str(total), str(len(files[name].records))
        )
    out.print(table)
    out.print("Runs that two experiments share are kept by the first. `hatdfed paper run all` plays RQ1 to RQ5.")


@app.command("run")
def run_command(
    names: Annotated[list[str], typer.Argument(metavar="NAME…", help="Experiments, or `all` for RQ1 to RQ5.")],
    scale: ScaleName = "full",
    dataset: Annotated[str | None, typer.Option("--dataset", help="Only the runs on this data set.")] = None,
    results: ResultsDir = None,
    time_limit: Annotated[
        float | None, typer.Option("--time-limit", metavar="SECONDS", help="Start nothing that would end later.")
    ] = None,
    data_dir: DataDir = None,
    jobs: Annotated[int | None, typer.Option("--jobs", min=1, help="Processes; a few on a GPU.")] = None,
    device: DeviceName = "auto",
) -> None:
    """Play what is missing of an experiment and pack it into one file."""
    require_torch()
    from hatdfed.batches import How, TimeLimit, default_processes
    from hatdfed.build.placement import Placement
    from hatdfed.paper.play import run_experiments

    if time_limit is not None and not time_limit > 0:
        raise ConfigError(f"--time-limit is {time_limit:g}, but must be a number of seconds above 0.")
    chosen = scale_named(scale)
    if dataset is not None and dataset not in chosen.datasets:
        raise ConfigError(f"--dataset is {dataset!r}, but scale {scale} has {' and '.join(chosen.datasets)}.")
    wanted = list(dict.fromkeys(name for given in names for name in (THE_PAPER if given == "all" else (given,))))
    for name in wanted:
        experiment_named(name)
    folder, placement = results_folder(results, chosen), Placement("auto", device)
    again = f"hatdfed paper run {' '.join(names)} --scale {scale}"
    with interruptible(f"What is done is in {folder}; the same command goes on."), watch_experiment() as watch:
        on_run, on_rounds = watch
        limit = TimeLimit(time_limit if time_limit is not None else float("inf"))
        how = How(placement, data_dir, on_rounds, note, limit=limit)
        processes = jobs or default_processes(placement)
        outcome = run_experiments(wanted, chosen, folder, processes=processes, how=how, dataset=dataset, on_run=on_run)
    if outcome.stale:
        note(
            f"{outcome.stale} results in {folder} were made with other defaults; they are replaced as runs are played."
        )
    if outcome.missing:
        note(f"The time limit left {outcome.missing} runs undone. Go on with: {again}")
    out.print(
        f"{outcome.played} runs played in {outcome.seconds:.0f} s, {outcome.known} were known. Results: {folder}",
        soft_wrap=True,
    )
