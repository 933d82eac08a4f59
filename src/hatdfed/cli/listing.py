"""hatdfed methods, datasets, networks, policies, settings: list what is available."""

from __future__ import annotations

import dataclasses
import inspect
import json
from typing import Annotated, Any, TypeVar

import typer
from rich.markup import escape
from rich.table import Table

from hatdfed.cli.console import out, require_torch
from hatdfed.cli.options import DataDir, Json
from hatdfed.core.policies import POLICIES
from hatdfed.data.datasets import DATASETS, DatasetKind
from hatdfed.errors import ConfigError
from hatdfed.registry import Registry
from hatdfed.setup.methods import METHODS
from hatdfed.setup.setting_list import list_settings, suggest_setting

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


def policies_command(as_json: Json = False) -> None:
    """List the policies, which draw the links of a round, with their own settings."""
    rows: list[dict[str, Any]] = []
    for name, policy in _load_all(POLICIES).items():
        if isinstance(policy, str):
            rows.append({"name": name, "error": policy})
        else:
            fields = {field.name: _plain(field.default) for field in dataclasses.fields(policy)}  # type: ignore[arg-type]
            rows.append({"name": name, "summary": _first_line(policy), "settings": fields})
    _print_rows(rows, "policy", as_json)


def networks_command(as_json: Json = False) -> None:
    """List the networks."""
    require_torch()
    from hatdfed.server.networks import NETWORKS

    found = _load_all(NETWORKS)
    rows = [
        {"name": name, "error": each} if isinstance(each, str) else {"name": name, "summary": _first_line(each)}
        for name, each in found.items()
    ]
    _print_rows(rows, "network", as_json)


def settings_command(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="One setting or section, e.g. learner.")] = None,
    as_json: Json = False,
) -> None:
    """List the settings with their defaults and meanings, or those of one section, or one."""
    entries = list_settings()
    if name is not None:
        chosen = [entry for entry in entries if entry.name == name or entry.name.startswith(f"{name}.")]
        if not chosen:
            raise ConfigError(f"There is no setting {name!r}. {suggest_setting(name)}")
        entries = chosen
    if as_json:
        typer.echo(json.dumps([entry._asdict() for entry in entries]))
        return
    table = Table("setting", "default", "meaning")
    for entry in entries:
        default = "" if entry.owners else json.dumps(entry.default)
        table.add_row(entry.name, default, escape(entry.meaning))
    out.print(table)


def _print_rows(rows: list[dict[str, Any]], what: str, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(rows))
        return
    with_settings = any("settings" in row for row in rows)
    table = Table(what, "what it is", *(["settings"] if with_settings else []))
    for row in rows:
        settings = ", ".join(f"{name}={value}" for name, value in row.get("settings", {}).items())
        cells = [row["name"], row.get("summary") or row.get("error", ""), *([settings] if with_settings else [])]
        table.add_row(*map(escape, cells))
    out.print(table)


def _first_line(thing: Any) -> str:
    """The first line of a docstring of its own: not a base class's, nor the one that a dataclass writes itself."""
    text = vars(thing).get("__doc__") if isinstance(thing, type) else inspect.isroutine(thing) and thing.__doc__
    if not text or text.startswith(f"{thing.__name__}("):
        return ""
    return inspect.cleandoc(text).partition("\n")[0]


def _plain(default: Any) -> Any:
    """A default as JSON has it; None where a setting has none."""
    return default if isinstance(default, bool | int | float | str) else None


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
