"""hatdfed methods, hatdfed datasets: list what is available."""

from __future__ import annotations

import json
from typing import TypeVar

import typer
from rich.table import Table

from hatdfed.cli.console import out
from hatdfed.cli.options import DataDir, Json
from hatdfed.data.datasets import DATASETS, DatasetKind
from hatdfed.errors import ConfigError
from hatdfed.registry import Registry
from hatdfed.setup.methods import METHODS

T = TypeVar("T")


def methods_command(as_json: Json = False) -> None:
    """List the methods."""
    found = _load_all(METHODS)
    if as_json:
        rows = [
            {"name": name, "error": method}
            if isinstance(method, str)
            else {"name": name, "summary": method.summary, "settings": dict(method.settings)}
            for name, method in found.items()
        ]
        typer.echo(json.dumps(rows))
        return
    table = Table("method", "what it is")
    for name, method in found.items():
        table.add_row(name, method if isinstance(method, str) else method.summary)
    out.print(table)


def datasets_command(data_dir: DataDir = None, as_json: Json = False) -> None:
    """List the data sets and where they would be read from."""
    found = _load_all(DATASETS)
    if as_json:
        rows = [
            {"name": name, "error": kind}
            if isinstance(kind, str)
            else {
                "name": name,
                "summary": kind.summary,
                "found": kind.locate(data_dir),
                "install": kind.install or None,
            }
            for name, kind in found.items()
        ]
        typer.echo(json.dumps(rows))
        return
    table = Table("data set", "what it is", "found")
    for name, kind in found.items():
        if isinstance(kind, str):
            table.add_row(name, kind, "")
        else:
            table.add_row(name, kind.summary, kind.locate(data_dir) or _describe_absence(kind))
    out.print(table)


def _describe_absence(kind: DatasetKind) -> str:
    return f"not here: {kind.install}" if kind.install else "not here: will be downloaded"


def _load_all(registry: Registry[T]) -> dict[str, T | str]:
    """Load everything in the registry; an error message takes the place of a plug-in that cannot be loaded."""
    found: dict[str, T | str] = {}
    for name in registry:
        try:
            found[name] = registry[name]
        except ConfigError as error:
            found[name] = str(error)
    return found
