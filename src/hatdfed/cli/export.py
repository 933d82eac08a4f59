"""hatdfed export: a model as a file that other programs read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from hatdfed.cli.console import out, require_torch
from hatdfed.cli.options import DataDir, Json


def export_command(
    source: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="An edge's --store, or the run folder of a simulation.")
    ],
    to: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="Ends in .safetensors, .pt (TorchScript) or .onnx.")
    ],
    config: Annotated[
        Path | None,
        typer.Option("--config", help="For a store: the coordinator's run folder, or its config.yaml."),
    ] = None,
    server: Annotated[
        int | None, typer.Option("--server", min=0, help="For a simulation: whose model, counted from 0.")
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Write a model to a file, and see that the file gives the same answers."""
    require_torch()
    from hatdfed.node.export import Exporter, settings_of, stored_model

    settings = settings_of(source, config)
    exporter = Exporter.of(settings, data_dir=data_dir)
    model = stored_model(source, server)
    difference = exporter.write(model, to)
    if as_json:
        about = {**exporter.about, **model.source}
        typer.echo(
            json.dumps({"file": str(to), "tensors": len(exporter.learner.layout), "off_by": difference, **about})
        )
        return
    out.print(
        f"{to}: {settings.network} for {settings.dataset}, {exporter.learner.num_params} numbers. "
        f"Its answers to {len(exporter.images)} images are those of the model (off by {difference:.1g}).",
        soft_wrap=True,
    )
    out.print(
        f"Images go in as pixels / 255, minus {exporter.about['mean']}, divided by {exporter.about['std']}.",
        soft_wrap=True,
    )
