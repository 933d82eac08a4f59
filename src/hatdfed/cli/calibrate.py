"""hatdfed calibrate: measure what this machine takes for training, and write it as a profile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml
from rich.table import Table

from hatdfed.cli.console import err, interruptible, note, out, require_torch
from hatdfed.cli.options import DataDir, Json
from hatdfed.data.datasets import load_dataset
from hatdfed.errors import ConfigError, EnergyMeterError
from hatdfed.meters.base import SOURCES, Meter
from hatdfed.meters.choose import MeterOptions, choose_meter, find_order, measure_idle, refuse_other_device
from hatdfed.meters.throughput import measure_throughput, serve_throughput, split_address
from hatdfed.runs.records.checkpoint import write_atomically
from hatdfed.runs.records.folder import named_path
from hatdfed.setup.layers import resolve
from hatdfed.setup.machine_profiles import MachineProfile

if TYPE_CHECKING:
    from hatdfed.runs.calibration import Calibration, Cost

_KINDS = {"training": "sample and pass", "probe": "model", "merge": "received model"}

Sources = Annotated[
    str | None,
    typer.Option(
        "--meter",
        help=f"Meters to try in this order, separated by commas: {', '.join(SOURCES)}. By default rapl,hwmon, with "
        "--device cuda nvml,hwmon.",
    ),
]
Watts = Annotated[
    float | None,
    typer.Option("--watts", min=0.001, help="Power while training, for a machine on which nothing can be measured."),
]
IdleWatts = Annotated[float | None, typer.Option("--idle-watts", min=0.001, help="The same of the idle machine.")]


def calibrate_command(
    to: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", parser=named_path, help="The profile; profile.yaml by default."),
    ] = None,
    name: Annotated[str, typer.Option("--name", help="Name of the profile.")] = "this-machine",
    network: Annotated[str | None, typer.Option("--network", help="Network that is trained.")] = None,
    dataset: Annotated[str, typer.Option("--dataset", help="Data set, for the shape of samples.")] = "digits",
    batch_size: Annotated[int | None, typer.Option("--batch-size", min=1, help="Samples in a batch.")] = None,
    samples: Annotated[
        int | None,
        typer.Option("--samples", min=1, help="Samples in a round; by default as in a run, and a batch at least."),
    ] = None,
    repeats: Annotated[int, typer.Option("--repeats", min=2, help="Windows that are measured at least.")] = 5,
    seconds: Annotated[float, typer.Option("--seconds", min=0.01, help="Length of a window.")] = 5.0,
    limit: Annotated[
        float,
        typer.Option(
            "--limit",
            min=0.0,
            help="Seconds for each kind of work in which further windows are measured, until means are known to 3 %.",
        ),
    ] = 60.0,
    idle_seconds: Annotated[float, typer.Option("--idle-seconds", min=0.01, help="Time to measure idle power.")] = 10.0,
    meters: Sources = None,
    external: Annotated[
        str, typer.Option("--external", help="External meter: a command or an http address that gives watts.")
    ] = "",
    watts: Watts = None,
    idle_watts: IdleWatts = None,
    device: Annotated[str, typer.Option("--device", help="cpu or cuda.")] = "cpu",
    peer: Annotated[
        str | None, typer.Option("--peer", metavar="HOST:PORT", help="Also measure the rate to this address.")
    ] = None,
    serve: Annotated[
        str | None,
        typer.Option("--serve", metavar="HOST:PORT", help="Only take in what --peer of another machine sends."),
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Measure seconds and joules of training on this machine, and write a profile that runs can use."""
    if serve is not None:
        _serve(serve)
        return
    require_torch()
    path = to or Path("profile.yaml")
    if path.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"{path} is not a YAML file. Name one with --out, such as profile.yaml.")
    layer = {"dataset": dataset, "network": network, "batch_size": batch_size}
    config = resolve({key: value for key, value in layer.items() if value is not None})
    config = config.model_copy(update={"samples_per_round": samples or max(config.samples_per_round, batch_size or 1)})
    if peer is not None:
        split_address(peer)  # before the work, not after it
    meter = _find_meter(meters, external, watts, device)
    from hatdfed.runs.calibration import calibrate, make_profile

    data = load_dataset(config.dataset, data_dir=data_dir, options=config.dataset_options)
    with interruptible("Nothing was written."), err.status("Measuring …") as status:
        idle = None
        if meter is not None:
            status.update(f"Measuring the idle machine for {idle_seconds:g} s …")
            idle = measure_idle(meter, idle_seconds)
            meter = meter.with_idle(idle.gross_watts)
        status.update("Measuring training, evaluation and merging …")
        found = calibrate(config, data, meter, idle, repeats=repeats, seconds=seconds, limit=limit, device=device)
        rate = None if peer is None else measure_throughput(peer)
    rounds = f"rounds of {config.samples_per_round} samples in batches of {config.batch_size}"
    about = f"{config.network} on {config.dataset}, {rounds}, {device}"
    profile = make_profile(name, about, found.training, found.idle, watts=watts, idle_watts=idle_watts, rate=rate)
    write_atomically(path, yaml.safe_dump(_describe(profile), sort_keys=False, allow_unicode=True).encode())
    _tell_what_is_uncertain(found)
    if as_json:
        typer.echo(json.dumps({"profile": _describe(profile), "readings": _list_readings(found), "file": str(path)}))
        return
    out.print(_make_table(found, about))
    out.print(f"Profile: {path}. Use it with --set machines.profiles=[{path}]", soft_wrap=True, markup=False)


def _serve(address: str) -> None:
    with interruptible("Stopped."):
        serve_throughput(address, lambda port: note(f"Takes in data on port {port}. Stop with Ctrl-C."))


def _find_meter(order: str | None, external: str, watts: float | None, device: str) -> Meter | None:
    named = find_order(device) if order is None else order.split(",")
    names = tuple(name.strip() for name in named if name.strip())
    refuse_other_device(names, device)
    choice = choose_meter(names, MeterOptions(external=external))
    for source, reason in choice.refused.items():
        note(f"{source}: {reason}")
    if choice.meter is None and watts is None:
        raise EnergyMeterError(
            "No energy can be measured here. Name the power of this machine while it trains with --watts, or a meter "
            "with --meter external --external COMMAND."
        )
    return choice.meter if watts is None else None


def _describe(profile: MachineProfile) -> dict[str, Any]:
    return profile.model_dump(mode="json", exclude_none=True)


def _list_readings(found: Calibration) -> dict[str, Any]:
    """All windows as they were measured."""
    listed: dict[str, Any] = {"idle": None if found.idle is None else found.idle._asdict()}
    for kind in _KINDS:
        windows = getattr(found, kind).windows
        listed[kind] = [each._asdict() | {"reading": each.reading and each.reading._asdict()} for each in windows]
    return listed


def _make_table(found: Calibration, about: str) -> Table:
    table = Table("work", "seconds each", "joules each", title=f"{about}: mean [95 % interval]")
    for kind, unit in _KINDS.items():
        cost: Cost = getattr(found, kind)
        table.add_row(
            f"{kind}, a {unit}", _format(cost.seconds), "not measured" if cost.joules is None else _format(cost.joules)
        )
    if found.idle is not None:
        table.add_row("idle", "", f"{found.idle.gross_watts:.3g} W by {found.idle.source}")
    return table


def _tell_what_is_uncertain(found: Calibration) -> None:
    from hatdfed.runs.calibration import PRECISION

    for kind in _KINDS:
        cost: Cost = getattr(found, kind)
        if cost.uncertainty > PRECISION:
            note(f"The mean of {kind} is uncertain by {cost.uncertainty:.1%}. Measure longer, with --limit.")


def _format(interval: Any) -> str:
    low, high = interval.low, interval.high
    return f"{interval.mean:.3g}" if low is None else f"{interval.mean:.3g} [{max(0.0, low):.3g}, {high:.3g}]"
