"""hatdfed run: one run, watched."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hatdfed.cli.console import how_to_resume, interruptible, note, out, require_torch
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
    fresh_folder,
    user_layer,
)
from hatdfed.cli.progress import watch_download, watch_rounds
from hatdfed.cli.shown import Asked, shown_live
from hatdfed.cli.tables import run_title, summary_table
from hatdfed.errors import ConfigError
from hatdfed.runs.records.folder import named_path
from hatdfed.setup.layers import collect_notes, resolve

if TYPE_CHECKING:
    from hatdfed.data.datasets.base import Progress
    from hatdfed.runs.recorder import OnRound, RunResult


def run_command(
    config: ConfigFile = None,
    method: Annotated[str | None, typer.Option("--method", help="Method; `hatdfed methods` lists them.")] = None,
    dataset: DatasetName = None,
    servers: Servers = None,
    rounds: Rounds = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Which world.")] = None,
    assignments: Assignments = None,
    folder: Annotated[
        Path | None,
        typer.Option("--out", metavar="PATH", parser=named_path, help="Folder for this run; runs/… by default."),
    ] = None,
    resume_from: Annotated[
        Path | None,
        typer.Option("--resume", metavar="PATH", parser=named_path, help="Go on with the run in this folder."),
    ] = None,
    data_dir: DataDir = None,
    fleet: FleetName = "auto",
    device: DeviceName = "auto",
    shards: Annotated[
        int | None, typer.Option("--shards", min=1, help="With --fleet sharded: processes that share the servers.")
    ] = None,
    address: Annotated[
        str | None, typer.Option("--address", help="Of the Ray cluster with the shards, host:port; this machine else.")
    ] = None,
    tensorboard: TensorBoardFlag = False,
    mlflow: MlflowFlag = False,
    mlflow_uri: MlflowUri = None,
    as_json: Json = False,
) -> None:
    """Play one run and keep it in a folder."""
    require_torch()
    if folder is not None and resume_from is not None:
        raise ConfigError(f"--resume goes on in {resume_from}, so there is nothing for --out. Leave one of them out.")
    flags = {"method": method, "dataset": dataset, "servers": servers, "rounds": rounds, "seed": seed}
    layer = user_layer(config, assignments, **flags)
    how = {"data_dir": data_dir, "fleet": fleet, "device": device, "shards": shards, "address": address}
    asked = Asked(tensorboard, mlflow, mlflow_uri)
    result = _start(layer, folder, how, asked) if resume_from is None else _go_on(resume_from, layer, how, asked)
    _draw(result)
    if as_json:
        typer.echo(json.dumps({**result.summary, "config": result.config.model_dump(mode="json")}))
    else:
        out.print(summary_table([result.summary], title=run_title(result.config)))
        out.print(f"Run folder: {result.folder}", soft_wrap=True)
    _tell_what_happened(result)


def _tell_what_happened(result: RunResult) -> None:
    """Notes that could not be told at the start, as of models that were refused because they held no numbers."""
    for sentence in result.summary["notes"]:
        if sentence not in collect_notes(result.config):
            note(sentence)


def _start(layer: dict[str, Any], folder: Path | None, how: dict[str, Any], asked: Asked) -> RunResult:
    from hatdfed.runs.play import run

    config = resolve(layer)
    for sentence in collect_notes(config):
        note(sentence)
    folder = folder or fresh_folder(config.method, config.dataset, f"seed{config.seed}")
    with _watched(folder, asked) as (progress, on_round):
        return run(config, out=folder, on_round=on_round, progress=progress, **how)


def _go_on(folder: Path, layer: dict[str, Any], how: dict[str, Any], asked: Asked) -> RunResult:
    from hatdfed.runs.play import resume

    with _watched(folder, asked) as (progress, on_round):
        return resume(folder, layer, on_round=on_round, progress=progress, **how)


@contextmanager
def _watched(folder: Path, asked: Asked) -> Iterator[tuple[Progress, OnRound]]:
    """Downloads and rounds on the terminal, and wherever else was asked for."""
    publishers = asked.publishers(folder, live=True)  # what is missing is said before the first round
    with interruptible(lambda: how_to_resume(folder)):
        with (
            watch_download() as progress,
            watch_rounds(folder) as on_round,
            shown_live(asked, folder, on_round) as shown,
        ):
            yield progress, shown
        for publish in publishers:
            publish(folder.resolve().name, folder)


def _draw(result: RunResult) -> None:
    from hatdfed.report.run_data import run_data
    from hatdfed.report.run_figures import write_run_figures

    if result.folder is not None:
        write_run_figures(run_data(result), result.folder)
