"""hatdfed bench: how fast this machine is, in server-rounds a second."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from hatdfed.cli.console import err, out, require_torch
from hatdfed.cli.options import DeviceName, Json
from hatdfed.errors import ConfigError, require_one_of

if TYPE_CHECKING:
    from hatdfed_bench.report import Report

_SERVERS = {"cpu": (5, 20, 50), "cuda": (5, 20, 50, 350, 1000)}
_FLEETS = ("loop", "mailbox", "stacked", "lifted", "looped")
_TIMED = _FLEETS[:3]


def bench_command(
    workload: Annotated[
        str, typer.Option("--workload", help="fashion-mnist, cifar-10 or a network, such as vit-tiny.")
    ] = "fashion-mnist",
    servers: Annotated[str | None, typer.Option("--servers", help="Fleet sizes, separated by commas.")] = None,
    runs: Annotated[int, typer.Option("--runs", min=1, help="Runs side by side in the stacked fleet.")] = 1,
    fleets: Annotated[str, typer.Option("--fleets", help="Which are timed, separated by commas.")] = ",".join(_TIMED),
    turns: Annotated[int, typer.Option("--turns", min=1, help="Timed rounds of each.")] = 3,
    device: DeviceName = "auto",
    file: Annotated[Path | None, typer.Option("--out", help="Keep the figures in this JSON file, too.")] = None,
    as_json: Json = False,
) -> None:
    """Time rounds of the fleets against a hand-written loop and the machine's own limit."""
    require_torch()
    from hatdfed.setup.build.placement import Placement, device_of
    from hatdfed_bench.report import make_report
    from hatdfed_bench.workload import WORKLOADS

    require_one_of("--workload", workload, WORKLOADS)
    chosen = tuple(name.strip() for name in fleets.split(",") if name.strip())
    for name in chosen:
        require_one_of("--fleets", name, _FLEETS)
    where = device_of(Placement(device=device))
    sizes = _SERVERS[where] if servers is None else _sizes(servers)

    def tell(text: str) -> None:
        err.print(text, soft_wrap=True)

    report = make_report(WORKLOADS[workload], where, sizes, fleets=chosen, runs=runs, turns=turns, tell=tell)
    document = json.dumps(report.as_json(), indent=2)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(document + "\n", encoding="utf-8")
    if as_json:
        typer.echo(document)
    else:
        _print(report)


def _sizes(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError:
        sizes = ()
    if not sizes or min(sizes) < 2:
        raise ConfigError(f"--servers is {text!r}, but must be numbers of servers, 2 or more, separated by commas.")
    return sizes


def _print(report: Report) -> None:
    machine: dict[str, Any] = report.machine
    out.print(f"{machine['name']}: {report.gemm_gflops:,.0f} GFLOP/s in a plain float32 product.", soft_wrap=True)
    table = Table(title="One round")
    for heading in (
        "servers",
        "fleet",
        "s a round",
        "server-rounds/s",
        "× loop",
        "GFLOP/s",
        "of the product",
        "peak MB",
    ):
        table.add_column(heading, justify="left" if heading == "fleet" else "right")
    for row in report.workloads:
        count = f"{row.runs} × {row.servers}" if row.runs > 1 else str(row.servers)
        ratio = "–" if row.speedup_over_loop is None else f"{row.speedup_over_loop:.2f}"
        numbers = (f"{row.seconds_per_round:.3g}", f"{row.server_rounds_per_second:,.1f}", ratio)
        rates = (f"{row.achieved_gflops:,.0f}", f"{100 * row.share_of_gemm:.0f} %", f"{row.peak_memory_mb:,.0f}")
        table.add_row(count, row.fleet, *numbers, *rates)
    out.print(table)
    costs = Table(title="The coordinator alone, one core")
    for heading in ("servers", "links", "ms a round"):
        costs.add_column(heading, justify="right")
    for cost in report.coordinator:
        size = int(cost["servers"])
        costs.add_row(str(size), f"{size * (size - 1):,}", f"{cost['milliseconds']:.2f}")
    out.print(costs)
