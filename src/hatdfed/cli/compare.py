"""hatdfed compare: several methods in the same worlds."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hatdfed.cli.console import download_bar, err, note, out, require_torch
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
from hatdfed.errors import ConfigError
from hatdfed.methods import METHODS
from hatdfed.records.checkpoint import write_atomically
from hatdfed.resolve import merge_layers, notes, resolve

if TYPE_CHECKING:
    from hatdfed.comparison import Comparison, OnRun
    from hatdfed.experiment import RunResult


def compare_command(
    config: ConfigFile = None,
    methods: Annotated[str, typer.Option("--methods", help="Names separated by commas, or `all`.")] = "all",
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Number of worlds: seeds 0, 1, …")] = 3,
    dataset: DatasetName = None,
    servers: Servers = None,
    rounds: Rounds = None,
    assignments: Assignments = None,
    folder: Annotated[Path | None, typer.Option("--out", help="Folder for all runs; runs/… by default.")] = None,
    data_dir: DataDir = None,
    jobs: Annotated[int | None, typer.Option("--jobs", min=1, help="Runs at a time; one a core by default.")] = None,
    as_json: Json = False,
) -> None:
    """Compare methods on the same seeds and keep all runs in a folder."""
    require_torch()
    from hatdfed.comparison import compare
    from hatdfed.learning.datasets import load_dataset

    names = list(METHODS) if methods == "all" else [name.strip() for name in methods.split(",") if name.strip()]
    layer = user_layer(config, assignments, dataset=dataset, servers=servers, rounds=rounds)
    _refuse_per_run_keys(layer)
    configs = [resolve(merge_layers(layer, {"method": name})) for name in names]
    for sentence in dict.fromkeys(sentence for one in configs for sentence in notes(one)):
        note(sentence)
    folder = folder or fresh_folder("compare", configs[0].dataset if configs else "nothing")
    with download_bar() as progress:  # once, before the workers look for it
        load_dataset(
            configs[0].dataset, data_dir=data_dir, progress=progress, options=configs[0].dataset_options
        ) if configs else None
    with _live() as on_run:
        comparison = compare(
            names,
            seeds=seeds,
            jobs=jobs or os.cpu_count() or 1,
            out=folder,
            data_dir=data_dir,
            on_run=on_run,
            **layer,
        )
    _write(comparison, folder)
    if as_json:
        typer.echo(json.dumps({"methods": comparison.summary, "run_folder": str(folder)}))
        return
    one = configs[0]
    heading = f"{one.dataset}, {one.servers} servers, {one.rounds} rounds, mean ± sd over {seeds} seeds"
    out.print(summary_table(comparison.summary, title=heading))
    out.print(f"Plots, tables and all runs: {folder}", soft_wrap=True)


def _refuse_per_run_keys(layer: dict[str, object]) -> None:
    for key, option in (("method", "--methods"), ("seed", "--seeds")):
        if key in layer:
            raise ConfigError(f"A comparison sets {key!r} for each run by itself. Use {option} instead.")


def _write(comparison: Comparison, folder: Path) -> None:
    from hatdfed.report.comparison_figures import write_comparison_figures
    from hatdfed.report.run_data import run_data

    rows = json.dumps(comparison.summary, indent=2, ensure_ascii=False) + "\n"
    write_atomically(folder / "comparison.json", rows.encode())
    data = {name: [run_data(result) for result in runs] for name, runs in comparison.runs.items()}
    write_comparison_figures(data, folder)


@contextmanager
def _live() -> Iterator[OnRun]:
    """A progress bar on a terminal, a plain line for each run elsewhere."""

    def line(result: RunResult) -> str:
        summary = result.summary
        return f"{summary['method']} seed {summary['seed']}: accuracy {summary['avg_accuracy']:.1f} %"

    if not err.is_terminal:
        yield lambda result, done, total: err.print(f"run {done}/{total}  {line(result)}", soft_wrap=True)
        return

    columns = (
        TextColumn("run"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task("getting ready")
        yield lambda result, done, total: bar.update(task, total=total, completed=done, description=line(result))
