"""hatdfed methods, hatdfed datasets: what there is."""

from __future__ import annotations

import json

import typer
from rich.table import Table

from hatdfed.cli.console import out
from hatdfed.cli.options import DataDir, Json
from hatdfed.learning.datasets import DATASETS
from hatdfed.methods import METHODS


def methods_command(as_json: Json = False) -> None:
    """List the methods."""
    if as_json:
        rows = [
            {"name": method.name, "summary": method.summary, "settings": dict(method.settings)}
            for method in METHODS.values()
        ]
        typer.echo(json.dumps(rows))
        return
    table = Table("method", "what it is")
    for method in METHODS.values():
        table.add_row(method.name, method.summary)
    out.print(table)


def datasets_command(data_dir: DataDir = None, as_json: Json = False) -> None:
    """List the data sets and where they would be read from."""
    places = {name: kind.locate(data_dir) for name, kind in DATASETS.items()}
    if as_json:
        rows = [{"name": kind.name, "summary": kind.summary, "found": places[kind.name]} for kind in DATASETS.values()]
        typer.echo(json.dumps(rows))
        return
    table = Table("data set", "what it is", "found")
    for kind in DATASETS.values():
        table.add_row(kind.name, kind.summary, places[kind.name] or "not here: will be downloaded")
    out.print(table)
