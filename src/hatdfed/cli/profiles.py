"""hatdfed profiles: the machines that servers can be, and where their figures come from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from hatdfed.cli.console import out
from hatdfed.cli.options import Json
from hatdfed.errors import ConfigError, did_you_mean
from hatdfed.setup.layers import read_profile
from hatdfed.setup.machine_profiles import Figure, MachineProfile, shipped_profiles

Name = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="One profile, or a YAML file with one, with its sources.")
]
_FIGURES = {
    "idle_watts": "idle W",
    "training_watts": "training W",
    "training_gflops": "training GFLOP/s",
    "sample_seconds": "s a sample and pass",
    "upload_mbit_per_second": "upload Mbit/s",
    "uplink_mbit_per_second": "uplink Mbit/s",
    "latency_seconds": "latency s",
}


def profiles_command(name: Name = None, as_json: Json = False) -> None:
    """List the profiles of machines, or show one of them with the sources of its figures."""
    profiles = list(shipped_profiles().values()) if name is None else [_find(name)]
    if as_json:
        typer.echo(json.dumps([_describe(profile) for profile in profiles]))
    else:
        out.print(_make_table(profiles) if name is None else _make_sources(profiles[0]))


def _find(name: str) -> MachineProfile:
    if Path(name).suffix in (".yaml", ".yml"):
        return read_profile(Path(name))
    if name not in shipped_profiles():
        raise ConfigError(f"There is no profile {name!r}. {did_you_mean(name, shipped_profiles())}")
    return shipped_profiles()[name]


def _describe(profile: MachineProfile) -> dict[str, Any]:
    return profile.model_dump(mode="json") | {"joules_per_gflop": _find_joules(profile)}


def _find_joules(profile: MachineProfile) -> float | None:
    """What a thousand million operations of training take."""
    speed = profile.training_gflops
    return None if speed is None else profile.training_watts.value / speed.value


def _make_table(profiles: list[MachineProfile]) -> Table:
    keys = [key for key in _FIGURES if key != "sample_seconds"]
    table = Table("profile", "machine", *(_FIGURES[key] for key in keys), "training J/GFLOP")
    table.columns[0].no_wrap = True
    for profile in profiles:
        cells = [_format(getattr(profile, key)) for key in keys]
        joules, machine = _find_joules(profile), profile.machine.partition(" (")[0]
        table.add_row(profile.name, machine, *cells, "–" if joules is None else f"{joules:.3g}")
    return table


def _make_sources(profile: MachineProfile) -> Table:
    table = Table("figure", "value", "how", "source", title=escape(f"{profile.name}: {profile.machine}"))
    for key, heading in _FIGURES.items():
        figure: Figure | None = getattr(profile, key)
        if figure is not None:
            table.add_row(heading, _format(figure), figure.how, escape(figure.source))
    return table


def _format(figure: Figure | None) -> str:
    return "–" if figure is None else f"{figure.value:g}"
