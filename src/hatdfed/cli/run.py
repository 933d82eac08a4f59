"""hatdfed run: execute one run and show its progress."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hatdfed.cli.console import format_resume_hint, interruptible, note, out, require_torch
from hatdfed.cli.options import (
    Assignments,
    ConfigFile,
    DataDir,
    DatasetName,
    DeviceName,
    FleetName,
    Json,
    MlflowFlag,
    MlflowUri,
    Rounds,
    Servers,
    TensorBoardFlag,
    new_run_folder,
    read_user_layer,
)
from hatdfed.cli.progress import watch_download, watch_rounds
from hatdfed.cli.sinks import SinkOptions, publish_rounds
from hatdfed.cli.tables import format_run_title, make_summary_table
from hatdfed.errors import ConfigError, require_one_of
from hatdfed.runs.duration import format_seconds
from hatdfed.runs.records.folder import RunFolder, named_path
from hatdfed.setup.component_names import DEVICES, FLEETS
from hatdfed.setup.layers import refuse_unknown_names, resolve
from hatdfed.setup.notes import collect_notes

if TYPE_CHECKING:
    from hatdfed.data.datasets.base import Progress
    from hatdfed.runs.recorder import OnRound
    from hatdfed.runs.result import RunResult


def run_command(
    config: ConfigFile = None,
    method: Annotated[str | None, typer.Option("--method", help="Method; `hatdfed methods` lists them.")] = None,
    dataset: DatasetName = None,
    servers: Servers = None,
    rounds: Rounds = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Fixes data, devices, prices and initial models.")] = None,
    assignments: Assignments = None,
    folder: Annotated[
        Path | None,
        typer.Option("--out", metavar="PATH", parser=named_path, help="Folder for this run; runs/… by default."),
    ] = None,
    resume_from: Annotated[
        Path | None,
        typer.Option("--resume", metavar="PATH", parser=named_path, help="Continue the run in this folder."),
    ] = None,
    data_dir: DataDir = None,
    fleet: FleetName = "auto",
    device: DeviceName = "auto",
    shards: Annotated[
        int | None, typer.Option("--shards", min=1, help="With --fleet sharded: processes that share the servers.")
    ] = None,
    address: Annotated[
        str | None, typer.Option("--address", help="Ray cluster for the shards, host:port; by default this machine.")
    ] = None,
    tensorboard: TensorBoardFlag = False,
    mlflow: MlflowFlag = False,
    mlflow_uri: MlflowUri = None,
    as_json: Json = False,
) -> None:
    """Execute one run and save it in a folder."""
    require_torch()
    if folder is not None and resume_from is not None:
        raise ConfigError(f"--resume goes on in {resume_from}, so there is nothing for --out. Leave one of them out.")
    flags = {"method": method, "dataset": dataset, "servers": servers, "rounds": rounds, "seed": seed}
    layer = read_user_layer(config, assignments, **flags)
    require_one_of("--fleet", fleet, FLEETS)
    require_one_of("--device", device, DEVICES)
    how = {"data_dir": data_dir, "fleet": fleet, "device": device, "shards": shards, "address": address}
    options = SinkOptions(tensorboard, mlflow, mlflow_uri)
    result = _start(layer, folder, how, options) if resume_from is None else _resume(resume_from, layer, how, options)
    _draw(result)
    if as_json:
        typer.echo(json.dumps({**result.summary, "config": result.config.model_dump(mode="json")}))
    else:
        out.print(make_summary_table([result.summary], title=format_run_title(result.config)))
        if (seconds := result.summary["simulated_seconds"]) is not None:
            out.print(f"Simulated time: {format_seconds(seconds)}", soft_wrap=True)
        out.print(f"Run folder: {result.folder}", soft_wrap=True)
    _print_closing_notes(result)


def _print_closing_notes(result: RunResult) -> None:
    """Print notes that were not known at the start, such as models that were refused because they held NaN."""
    for sentence in result.summary["notes"]:
        if sentence not in collect_notes(result.config):
            note(sentence)


def _start(layer: dict[str, Any], folder: Path | None, how: dict[str, Any], options: SinkOptions) -> RunResult:
    refuse_unknown_names(layer)  # before torch is imported: a wrong name is told at once
    config = resolve(layer)
    from hatdfed.runs.calls import run

    for sentence in collect_notes(config):
        note(sentence)
    folder = folder or new_run_folder(config.method, config.dataset, f"seed{config.seed}")
    with _watch(folder, options) as (progress, on_round):
        return run(config, out=folder, on_round=on_round, progress=progress, show_progress=False, **how)


def _resume(folder: Path, layer: dict[str, Any], how: dict[str, Any], options: SinkOptions) -> RunResult:
    RunFolder.open(folder)  # before torch is imported: a wrong path is told at once
    from hatdfed.runs.calls import resume

    with _watch(folder, options) as (progress, on_round):
        return resume(folder, layer, on_round=on_round, progress=progress, show_progress=False, **how)


@contextmanager
def _watch(folder: Path, options: SinkOptions) -> Iterator[tuple[Progress, OnRound]]:
    """Show downloads and rounds on the terminal and publish them to the tools that the user chose."""
    publishers = options.publishers(folder, live=True)  # a missing package is reported before the first round
    with interruptible(lambda: format_resume_hint(folder)):
        with (
            watch_download() as progress,
            watch_rounds(folder) as on_round,
            publish_rounds(options, folder, on_round) as shown,
        ):
            yield progress, shown
        for publish in publishers:
            publish(folder.resolve().name, folder)


def _draw(result: RunResult) -> None:
    from hatdfed.report.run_data import run_data
    from hatdfed.report.run_figures import write_run_figures

    if result.folder is not None:
        write_run_figures(run_data(result), result.folder)
