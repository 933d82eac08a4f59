"""hatdfed export: write a model to a file for other programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from safetensors import safe_open

from hatdfed.cli.console import note, out, require_torch
from hatdfed.cli.options import DataDir, Json
from hatdfed.deploy.edge.state_files import refuse_folder_without_models
from hatdfed.errors import RunFolderError
from hatdfed.runs.records.folder import RunFolder, named_path, refuse_file_of_run, refuse_missing_folder

if TYPE_CHECKING:
    from hatdfed.runs.trained_models import StoredModel


def export_command(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER", parser=named_path, help="An edge's --store, or the run folder of a simulation."
        ),
    ],
    to: Annotated[
        Path,
        typer.Option(
            "--out", metavar="FILE", parser=named_path, help="Ends in .safetensors, .pt (TorchScript) or .onnx."
        ),
    ],
    config: Annotated[
        Path | None,
        typer.Option("--config", help="For a store: the coordinator's run folder, or its config.yaml."),
    ] = None,
    server: Annotated[
        int | None,
        typer.Option("--server", min=0, help="For a simulation: the server whose model is exported, counted from 0."),
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Write a model to a file, and check that the file gives the same outputs."""
    require_torch()
    refuse_file_of_run(to)
    refuse_missing_folder(source)
    _refuse_run_without_models(RunFolder(source))
    refuse_folder_without_models(source)
    from hatdfed.deploy.edge.export import Exporter, add_privacy, read_run_settings, read_stored_model

    settings = read_run_settings(source, config)
    exporter = Exporter.from_config(settings, data_dir=data_dir)
    model = add_privacy(_add_round(read_stored_model(source, server), RunFolder(source)), source, settings)
    difference = exporter.write(model, to)
    if (played := int(model.source.get("rounds", settings.rounds))) < settings.rounds:
        note(f"The run is not over: this is the model of round {played} of {settings.rounds}.")
    if as_json:
        about = {**exporter.about, **model.source}
        typer.echo(json.dumps({"file": str(to), "tensors": len(exporter.learner.roles), "off_by": difference, **about}))
        return
    out.print(
        f"{to}: {settings.network} for {settings.dataset}, {exporter.learner.num_total:,} numbers. "
        f"Read back, it gives the model's outputs for {len(exporter.images)} samples (largest difference "
        f"{difference:.1g}).",
        soft_wrap=True,
    )
    out.print(exporter.about["inputs"], soft_wrap=True)


def _refuse_run_without_models(run: RunFolder) -> None:
    """Refuse a run without a checkpoint; comparisons keep none by default."""
    is_run = run.database.is_file() and (run.path / "config.yaml").is_file()
    if is_run and not run.checkpoint.is_file() and run.config().checkpoint_every == 0:
        raise RunFolderError(
            f"{run.path} contains no model: it was executed with checkpoint_every 0. "
            "Repeat it with --set checkpoint_every=10."
        )


def _add_round(model: StoredModel, run: RunFolder) -> StoredModel:
    """Add the number of rounds from a simulation's checkpoint; a model from a store has it already."""
    if "rounds" in model.source:
        return model
    with safe_open(run.checkpoint, framework="numpy") as file:
        state = json.loads((file.metadata() or {}).get("state", "{}"))
    return model._replace(source={**model.source, "rounds": str(state["t"])}) if "t" in state else model
