"""hatdfed traces: write typical traces of power, prices, rates and presence to files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hatdfed.cli.console import out
from hatdfed.cli.options import DataDir
from hatdfed.core.traces import Trace
from hatdfed.data.traces.daily import make_diurnal, make_office_hours
from hatdfed.data.traces.files import write_trace
from hatdfed.data.traces.solar import SITES, Panel, make_solar_by_formula, make_solar_of_site

traces_app = typer.Typer(
    help="Write a typical trace to a file (docs/traces.md).",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Target = Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="File to write, which must not exist.")]
Servers = Annotated[int, typer.Option("--servers", min=1, max=100_000, help="Columns: one for each server.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Which trace; the same seed gives the same file.")]


@traces_app.command("diurnal")
def diurnal_command(
    to: Target,
    servers: Servers = 1,
    seed: Seed = 0,
    low: Annotated[float, typer.Option("--low", help="Value 12 hours from the peak.")] = 0.0,
    high: Annotated[float, typer.Option("--high", help="Value at the peak.")] = 1.0,
    peak_hour: Annotated[float, typer.Option("--peak-hour", min=0, max=24, help="Hour of the peak.")] = 18.0,
    spread_hours: Annotated[
        float, typer.Option("--spread-hours", min=0, max=24, help="Standard deviation of the servers' peaks.")
    ] = 0.0,
    noise: Annotated[
        float, typer.Option("--noise", min=0, max=3, help="Standard deviation of a factor on every value (log).")
    ] = 0.0,
) -> None:
    """Write a day of values that rise and fall once: a rate, a price, carbon of the grid."""
    trace = make_diurnal(seed, servers, low=low, high=high, peak_hour=peak_hour, spread_hours=spread_hours, noise=noise)
    about = f"low {low:g}, high {high:g}, peak hour {peak_hour:g}, spread {spread_hours:g} h, noise {noise:g}"
    _write(to, trace, f"A wave a day: {about}, seed {seed}.")


@traces_app.command("office")
def office_command(
    to: Target,
    servers: Servers = 1,
    seed: Seed = 0,
    first_hour: Annotated[float, typer.Option("--from", help="Hour at which servers come.")] = 8.0,
    last_hour: Annotated[float, typer.Option("--to", help="Hour at which they leave.")] = 18.0,
    jitter_hours: Annotated[
        float, typer.Option("--jitter-hours", min=0, max=12, help="Standard deviation of both, day by day.")
    ] = 0.5,
    with_weekend: Annotated[bool, typer.Option("--weekend", help="On Saturdays and Sundays, too.")] = False,
    is_inverted: Annotated[bool, typer.Option("--outside", help="1 outside these hours, 0 within them.")] = False,
) -> None:
    """Write a week of presence: 1 during office hours, 0 otherwise."""
    trace = make_office_hours(
        seed,
        servers,
        first_hour=first_hour,
        last_hour=last_hour,
        jitter_hours=jitter_hours,
        with_weekend=with_weekend,
        is_inverted=is_inverted,
    )
    days = "all days" if with_weekend else "Monday to Friday"
    hours = f"{'outside ' if is_inverted else ''}{first_hour:g} to {last_hour:g} h, {days}, jitter {jitter_hours:g} h"
    _write(to, trace, f"Presence, from Monday on: {hours}, seed {seed}.")


@traces_app.command("solar")
def solar_command(
    to: Target,
    servers: Servers = 1,
    seed: Seed = 0,
    peak_watts: Annotated[float, typer.Option("--peak-watts", min=0, max=1e9, help="Rated power of a panel.")] = 20.0,
    performance: Annotated[
        float, typer.Option("--performance", min=0, max=1, help="Share that heat, dirt and conversion leave.")
    ] = 0.8,
    shade: Annotated[
        float, typer.Option("--shade", min=0, max=1, help="Servers lose up to this share, each its own.")
    ] = 0.3,
    first_day: Annotated[int, typer.Option("--first-day", min=1, max=365, help="Day of the year; 1: 1 January.")] = 80,
    days: Annotated[int, typer.Option("--days", min=1, max=365, help="Days; then the first comes again.")] = 7,
    site: Annotated[
        str | None,
        typer.Option("--site", help=f"Weather of a measured year in pvlib's data: {' or '.join(SITES)}."),
    ] = None,
    latitude: Annotated[
        float, typer.Option("--latitude", min=-90, max=90, help="Degrees north, for weather by formula.")
    ] = 45.0,
    data_dir: DataDir = None,
) -> None:
    """Write days of power of flat solar panels, with weather: of a measured year, or by formula."""
    panel = Panel(peak_watts, performance, shade)
    if site is None:
        trace = make_solar_by_formula(seed, servers, panel, latitude=latitude, first_day=first_day, days=days)
        weather = f"weather by formula at latitude {latitude:g}"
    else:
        trace = make_solar_of_site(seed, servers, panel, site=site, first_day=first_day, days=days, data_dir=data_dir)
        weather = f"weather of a typical year in {site} (TMY3, from pvlib)"
    about = f"{peak_watts:g} W, performance {performance:g}, shade up to {shade:g}, {days} days from day {first_day}"
    _write(to, trace, f"Solar power in watts: {about}, {weather}, seed {seed}.")


def _write(to: Path, trace: Trace, comment: str) -> None:
    """Write the file and say what it holds."""
    names = ["all"] if trace.num_columns == 1 else [f"server {i}" for i in range(trace.num_columns)]
    write_trace(to, trace, names, [comment, "Made by `hatdfed traces`; docs/traces.md describes the format."])
    span = 0.0 if trace.period is None else trace.period
    mean = float(trace.mean(0.0, span).mean())
    columns = f"{trace.num_columns} column{'s' if trace.num_columns > 1 else ''}"
    out.print(f"Wrote {to}: {len(trace.seconds)} rows, {columns}, mean {mean:.4g}.", soft_wrap=True)
