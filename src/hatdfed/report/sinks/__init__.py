"""Publishing runs to TensorBoard and MLflow. Off by default, and without telemetry."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

Publisher = Callable[[str, Path], None]  # publishes a finished run, given its name and its folder


def make_publishers(folder: Path, *, tensorboard: bool = False, mlflow: str | None = None) -> list[Publisher]:
    """Make publishers for runs in `folder`; `mlflow` is the address of a store, or "" for one in the folder."""
    found: list[Publisher] = []
    if tensorboard:
        from hatdfed.report.sinks.tensorboard import TensorBoardFolder

        found.append(TensorBoardFolder(folder / "tensorboard"))
    if mlflow is not None:
        from hatdfed.report.sinks.mlflow import MlflowStore, store_address

        found.append(MlflowStore(store_address(mlflow, folder), experiment=folder.resolve().name, artifacts=folder))
    return found
