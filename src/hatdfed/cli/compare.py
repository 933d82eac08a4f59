"""hatdfed compare: several methods in the same worlds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hatdfed.cli.console import interruptible, note, out, require_torch
from hatdfed.cli.options import (
    Assignments,
    ConfigFile,
    DataDir,
    DatasetName,
    DeviceName,
    FleetName,
    Jobs,
    Json,
    MlflowFlag,
    MlflowUri,
    Rounds,
    Servers,
    TensorBoardFlag,
    fresh_folder,
    user_layer,
)
from hatdfed.cli.progress import watch_download, watch_runs
from hatdfed.cli.shown import Asked, shown_at_end
from hatdfed.cli.tables import difference_table, summary_table
from hatdfed.errors import ConfigError
from hatdfed.runs.records.folder import named_path
from hatdfed.setup.config import Config
from hatdfed.setup.layers import collect_notes, merge_layers, resolve
from hatdfed.setup.methods import METHODS

if TYPE_CHECKING:
    from hatdfed.runs.statistics import Comparison

Reference = Annotated[
    str | None, typer.Option("--reference", help="Method that the others are held against; the first by default.")
]
TargetAccuracy = Annotated[
    float | None,
    typer.Option(
        "--target-accuracy", help="Validation accuracy (%) to count joules to; 90 % of the best one by default."
    ),
]


def compare_command(
    config: ConfigFile = None,
    methods: Annotated[str, typer.Option("--methods", help="Names separated by commas, or `all`.")] = "all",
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Number of worlds: seeds 0, 1, …")] = 3,
    dataset: DatasetName = None,
    servers: Servers = None,
    rounds: Rounds = None,
    assignments: Assignments = None,
    reference: Reference = None,
    target_accuracy: TargetAccuracy = None,
    folder: Annotated[
        Path | None,
        typer.Option("--out", metavar="PATH", parser=named_path, help="Folder for all runs, new or gone on with."),
    ] = None,
    data_dir: DataDir = None,
    jobs: Jobs = None,
    fleet: FleetName = "auto",
    device: DeviceName = "auto",
    tensorboard: TensorBoardFlag = False,
    mlflow: MlflowFlag = False,
    mlflow_uri: MlflowUri = None,
    as_json: Json = False,
) -> None:
    """Compare methods on the same seeds and keep all runs in a folder."""
    require_torch()
    from hatdfed.setup.build.placement import Placement
    from hatdfed.sweeps.batches import default_processes
    from hatdfed.sweeps.compare import compare, refuse_other_folder

    if folder is not None:
        refuse_other_folder(folder)  # before data are fetched
    layer = user_layer(config, assignments, dataset=dataset, servers=servers, rounds=rounds)
    names = _names(methods)
    question = {"reference": reference, "target_accuracy": target_accuracy}
    first = _check(layer, names, question, data_dir)
    folder = folder or fresh_folder("compare", first.dataset)
    settings = {**layer, **question, "on_note": note, "fleet": fleet, "device": device, "data_dir": data_dir}
    publishers = Asked(tensorboard, mlflow, mlflow_uri).publishers(folder)
    workers = jobs or default_processes(Placement(fleet, device), len(names) * seeds * first.servers)
    with interruptible(f"The same command with --out {folder} goes on with what is missing."), watch_runs() as watch:
        on_run, on_rounds = shown_at_end(publishers, watch[0]), watch[1]
        comparison = compare(
            names, seeds=seeds, jobs=workers, out=folder, on_run=on_run, on_rounds=on_rounds, **settings
        )
    _report(comparison, first, folder, as_json=as_json)


def _report(comparison: Comparison, config: Config, folder: Path, *, as_json: bool) -> None:
    from hatdfed.report.comparison_files import results_document

    _write(comparison, folder)
    if as_json:
        typer.echo(json.dumps({**results_document(comparison), "run_folder": str(folder)}))
        return
    seeds = len(comparison.summary[0]["seeds"])
    over = f"mean ± sd over {seeds} seeds" if seeds > 1 else "one seed"
    heading = f"{config.dataset}, {config.servers} servers, {config.rounds} rounds, {over}"
    out.print(summary_table(comparison.summary, title=heading))
    against, target = comparison.reference, comparison.target_accuracy
    out.print(difference_table(comparison.summary, reference=against, target_accuracy=target))
    if seeds == 1:
        note("One seed says nothing about spread: there are no intervals. Use --seeds 3 or more.")
    out.print(f"Plots, tables and all runs: {folder}", soft_wrap=True)


def _names(methods: str) -> list[str]:
    names = list(METHODS) if methods == "all" else [name.strip() for name in methods.split(",") if name.strip()]
    if not names:
        raise ConfigError("--methods names no method. Give names separated by commas, or `all`.")
    return names


def _check(layer: dict[str, Any], names: list[str], question: dict[str, Any], data_dir: Path | None) -> Config:
    """Find out before the first run whether all of them can work; fetch the data once, before the workers want it."""
    from hatdfed.data.datasets import load_dataset
    from hatdfed.setup.build.program import make_actors
    from hatdfed.sweeps.compare import check_question

    for key, option in (("method", "--methods"), ("seed", "--seeds")):
        if key in layer:
            raise ConfigError(f"A comparison sets {key!r} for each run by itself. Use {option} instead.")
    configs = [resolve(merge_layers(layer, {"method": name})) for name in names]
    check_question(names, **question)
    for sentence in dict.fromkeys(sentence for config in configs for sentence in collect_notes(config)):
        note(sentence)
    first = configs[0]
    with watch_download() as progress:
        dataset = load_dataset(first.dataset, data_dir=data_dir, progress=progress, options=first.dataset_options)
    for config in configs:
        make_actors(config, dataset)
    return first


def _write(comparison: Comparison, folder: Path) -> None:
    from hatdfed.report.comparison_figures import write_comparison_figures
    from hatdfed.report.comparison_files import write_comparison_files
    from hatdfed.report.run_data import run_data
    from hatdfed.runs.statistics import leaks

    write_comparison_files(comparison, folder)
    # A picture ranks what it shows, and runs that saw the test set are not ranked.
    fair = {name: runs for name, runs in comparison.runs.items() if not leaks(runs)}
    if fair:
        write_comparison_figures({name: [run_data(r) for r in runs] for name, runs in fair.items()}, folder)
