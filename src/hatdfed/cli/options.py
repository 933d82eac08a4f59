"""Options that several commands share, and how they become one layer of settings."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from hatdfed.setup.layers import merge_layers
from hatdfed.setup.plain_yaml import parse_assignment, read_yaml

ConfigFile = Annotated[Path | None, typer.Argument(metavar="[CONFIG.yaml]", help="Settings to start from.")]
DatasetName = Annotated[
    str | None,
    typer.Option("--dataset", help="Data set, as `hatdfed datasets` lists them, an .npz file or a folder of images."),
]
Servers = Annotated[int | None, typer.Option("--servers", help="Number of edge servers, N.")]
Rounds = Annotated[int | None, typer.Option("--rounds", help="Number of rounds, K.")]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any setting, e.g. --set policy.learning_rate=0.02."),
]
DataDir = Annotated[Path | None, typer.Option("--data-dir", help="Folder of data sets; also set by HATDFED_DATA.")]
Jobs = Annotated[int | None, typer.Option("--jobs", min=1, help="Processes; one a core by default, a few on a GPU.")]
FleetName = Annotated[
    str,
    typer.Option("--fleet", help="How servers are simulated: auto, stacked (fast), mailbox (reference) or sharded."),
]
DeviceName = Annotated[str, typer.Option("--device", help="Where: auto, cpu or cuda.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]
TensorBoardFlag = Annotated[
    bool, typer.Option("--tensorboard", help="Also write events for TensorBoard, in a folder beside the results.")
]
MlflowFlag = Annotated[
    bool, typer.Option("--mlflow", help="Also keep runs for MLflow, in mlflow.sqlite beside the results.")
]
MlflowUri = Annotated[
    str | None, typer.Option("--mlflow-uri", help="MLflow in another store: sqlite:///FILE or a server's address.")
]


def read_user_layer(config: Path | None, assignments: list[str] | None, **flags: Any) -> dict[str, Any]:
    """Merge the settings of the file, of --set and of the flags; later ones win."""
    given = {name: value for name, value in flags.items() if value is not None}
    return merge_layers(
        read_yaml(config) if config else {}, *(parse_assignment(text) for text in assignments or ()), given
    )


def new_run_folder(*parts: str) -> Path:
    """Return a path under runs/ that does not exist yet."""
    stem = "-".join([datetime.now().strftime("%Y%m%d-%H%M%S"), *parts])
    path, number = Path("runs") / stem, 2
    while path.exists():
        path, number = Path("runs") / f"{stem}-{number}", number + 1
    return path
