"""Runs in other people's tools: TensorBoard and MLflow. Off unless asked for; nothing phones home."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

Publisher = Callable[[str, Path], None]  # shows a finished run: its name, and its folder


def publishers(folder: Path, *, tensorboard: bool = False, mlflow: str | None = None) -> list[Publisher]:
    """Those that were asked for, for runs kept in `folder`; `mlflow` is the address of a store, or "" for one there."""
    found: list[Publisher] = []
    if tensorboard:
        from hatdfed.report.sinks.tensorboard import TensorBoardFolder

        found.append(TensorBoardFolder(folder / "tensorboard"))
    if mlflow is not None:
        from hatdfed.report.sinks.mlflow import MlflowStore, store_address

        found.append(MlflowStore(store_address(mlflow, folder), experiment=folder.resolve().name, artifacts=folder))
    return found
