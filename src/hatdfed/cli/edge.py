"""hatdfed edge: one edge server of a deployment."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import signal
import socket
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from hatdfed.cli.console import require_torch
from hatdfed.cli.coordinator import (
    PLAIN_TEXT,
    Insecure,
    InsecureAnywhere,
    LogFile,
    LogJson,
    LogMegabytes,
    silence_grpc,
    split_listen,
)
from hatdfed.cli.identity import edge_join, renew_command, require_deploy, split_address
from hatdfed.cli.options import DataDir
from hatdfed.errors import ConfigError, require_one_of
from hatdfed.meters.base import ESTIMATE, EXTERNAL, SOURCES
from hatdfed.meters.choose import Metering, MeterOptions, refuse_other_device
from hatdfed.runs.process_memory import collect_often, keep_few_kernels, return_freed_memory

edge_app = typer.Typer(
    help="One edge server of a deployment: run it, or let it join.", invoke_without_command=True, add_completion=False
)
edge_app.command("join")(edge_join)
edge_app.command("renew")(renew_command)
_log = logging.getLogger("hatdfed.cli")
_GOODBYE_SECONDS = 5.0
_THREADS = 4  # that check, pack and keep models; training has its own


@edge_app.callback()
def edge_command(
    context: typer.Context,
    coordinator: Annotated[str | None, typer.Option("--coordinator", metavar="HOST:PORT")] = None,
    identity: Annotated[
        Path | None, typer.Option("--identity", metavar="FOLDER", help="Made by `hatdfed edge join`.")
    ] = None,
    store: Annotated[
        Path | None, typer.Option("--store", metavar="FOLDER", help="Where its models are kept; by default store-NAME.")
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            metavar="HOST:PORT",
            help="Where other edges reach it; '' for nowhere. By default this machine's address towards the "
            "coordinator, any port.",
        ),
    ] = None,
    advertise: Annotated[
        str, typer.Option("--advertise", metavar="HOST:PORT", help="Address for other edges, if not that of --listen.")
    ] = "",
    data: Annotated[
        str | None,
        typer.Option("--data", help="Own images: a folder by class, an .npz file, or package.module:function."),
    ] = None,
    work_share: Annotated[
        float, typer.Option("--work-share", help="Share of the local passes that a slow machine trains.")
    ] = 1.0,
    keep_models: Annotated[int, typer.Option("--keep-models", min=1, help="States kept on disk.")] = 2,
    keep_mb: Annotated[int, typer.Option("--keep-mb", min=1, help="Megabytes of states kept on disk.")] = 8192,
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="For training; all cores by default.")] = None,
    relay: Annotated[
        str, typer.Option("--relay", metavar="HOST:PORT", help="The relay, if this edge reaches it elsewhere.")
    ] = "",
    patience: Annotated[
        float, typer.Option("--patience", min=0.0, help="Seconds to wait for an unreachable coordinator.")
    ] = 600.0,
    desk: Annotated[
        str | None,
        typer.Option("--desk", metavar="HOST:PORT", help="The join server; by default one port below --coordinator."),
    ] = None,
    metrics: Annotated[
        str | None, typer.Option("--metrics", metavar="HOST:PORT", help="Serve Prometheus here.")
    ] = None,
    meter: Annotated[
        str | None,
        typer.Option(
            "--meter",
            help="Measure energy by the first that works of these, such as rapl,hwmon.",
        ),
    ] = None,
    external: Annotated[
        str, typer.Option("--external", help="External meter: a command or an http address that gives watts.")
    ] = "",
    name: Annotated[str | None, typer.Option("--name", help="With --insecure: name of this edge.")] = None,
    data_dir: DataDir = None,
    insecure: Insecure = False,
    insecure_anywhere: InsecureAnywhere = False,
    log_json: LogJson = None,
    log_file: LogFile = None,
    log_mb: LogMegabytes = 10,
) -> None:
    """Take part in a run until the coordinator ends it."""
    if context.invoked_subcommand is not None:
        return
    if coordinator is None:
        raise ConfigError("An edge needs the address of its coordinator: --coordinator HOST:PORT.")
    if not 0 < work_share <= 1:
        raise ConfigError(f"--work-share is {work_share}, but must be above 0 and at most 1; 1 is all of the work.")
    require_torch()
    silence_grpc()
    with require_deploy():
        from hatdfed.deploy.identity.tls_rehearsal import rehearse_tls
        from hatdfed.deploy.logs import set_up_logs
        from hatdfed.deploy.transport.endpoints import raise_file_limit
    set_up_logs(log_file, megabytes=log_mb, as_json=log_json)
    host, port = split_address(coordinator)
    listen, advertise = _resolve_listen(listen, advertise, host, port)
    endpoints = _make_endpoints(identity, name, coordinator, listen, insecure=insecure, forced=insecure_anywhere)
    join_address = split_address(desk) if desk else (host, port - 1)
    if relay:
        split_address(relay)
    metrics_address = None if metrics is None else split_listen(metrics, "--metrics")
    metering = _read_metering(meter, external)
    from hatdfed.deploy.edge.edge import Edge, EdgeOptions  # only now: wrong options are told before torch is imported
    from hatdfed.deploy.edge.setup import make_edge_setup
    from hatdfed.deploy.edge.store import EdgeStore

    _prepare_process(threads)
    raise_file_limit()
    options = EdgeOptions(coordinator, listen, advertise, patience, relay, join_address, metrics_address)
    states = EdgeStore(store or Path(f"store-{endpoints.node.name}"), keep_models, keep_mb << 20)
    make_setup = partial(
        make_edge_setup,
        data_dir=data_dir,
        own_data=data,
        work_share=work_share,
        metering=metering,
    )
    if endpoints.identity is not None:
        rehearse_tls(endpoints.identity)
    collect_often()
    why = asyncio.run(_serve(partial(Edge, options, endpoints, states, make_setup)))
    _log.info("This edge is done: %s.", why)


def _prepare_process(threads: int | None) -> None:
    import torch

    return_freed_memory()
    keep_few_kernels()
    torch.set_num_threads(threads or torch.get_num_threads())


def _read_metering(order: str | None, external: str) -> Metering | None:
    """How energy is measured, if that was asked for; whether it can be is seen when the edge joins a run."""
    if order is None and not external:
        return None
    names = tuple(name.strip() for name in (order or EXTERNAL).split(",") if name.strip())
    for name in names:
        require_one_of("--meter", name, SOURCES)
    if ESTIMATE in names:
        raise ConfigError("--meter names estimate, but an estimate is no measurement. Leave it out.")
    refuse_other_device(names, "cpu")
    return Metering(names, MeterOptions(external=external))


def _resolve_listen(listen: str | None, advertise: str, host: str, port: int) -> tuple[str, str]:
    """Decide where this edge listens and which address it advertises; nobody can connect to 0.0.0.0."""
    if listen is None:
        return f"{_bracket(_find_own_address(host, port))}:0", advertise
    if not listen or advertise:
        return listen, advertise
    own, own_port = split_listen(listen, "--listen")
    try:
        is_any = ipaddress.ip_address(own).is_unspecified
    except ValueError:
        is_any = False
    if not is_any:
        return listen, advertise
    if own_port == 0:
        raise ConfigError(f"--listen is {listen}, but others must know what to dial. Name a port or an address.")
    return listen, f"{_bracket(_find_own_address(host, port))}:{own_port}"


def _find_own_address(host: str, port: int) -> str:
    """Find this machine's address towards the coordinator, without sending anything."""
    why = ""
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM):
            with socket.socket(family, kind, protocol) as probe:
                try:
                    probe.connect(address)
                except OSError as error:  # a name may have addresses of a family that this machine does not support
                    why = str(error.strerror)
                    continue
                return str(probe.getsockname()[0])
    except OSError as error:
        why = str(error.strerror)
    raise ConfigError(
        f"{host} cannot be reached from here ({why}). Check the name and the network, or say with --listen HOST:PORT "
        "where other edges reach this one."
    )


def _bracket(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _make_endpoints(
    identity: Path | None, name: str | None, coordinator: str, listen: str, *, insecure: bool, forced: bool
) -> Any:
    from hatdfed.deploy.identity.files import IdentityFolder
    from hatdfed.deploy.identity.names import edge_id
    from hatdfed.deploy.transport.endpoints import Endpoints, refuse_open_plain_text

    if insecure:
        if name is None:
            raise ConfigError("Without certificates an edge needs a name: --insecure --name edge-1.")
        for address in filter(None, (coordinator, listen)):
            refuse_open_plain_text(address, forced=forced)
        _log.warning(PLAIN_TEXT)
        return Endpoints(None, edge_id(name))
    if identity is None:
        raise ConfigError(
            "An edge needs an identity: --identity FOLDER, made by `hatdfed edge join`. To try things out on this "
            "machine without certificates, type --insecure --name NAME."
        )
    folder = IdentityFolder(identity)
    return Endpoints(folder, folder.read().node)  # one that has expired is renewed when the edge starts


async def _serve(make_edge: Any) -> str:
    from hatdfed.deploy.threads import make_pool

    edge = make_edge()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(make_pool(_THREADS, "work"))
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, edge.leave_requested.set)
    serving, asked = asyncio.ensure_future(edge.serve()), asyncio.ensure_future(edge.leave_requested.wait())
    await asyncio.wait({serving, asked}, return_when=asyncio.FIRST_COMPLETED)
    if asked.done():
        # An edge that takes part in a run leaves by itself; one that waits for its coordinator would keep waiting.
        await asyncio.wait({serving}, timeout=_GOODBYE_SECONDS)
        if not serving.done():
            serving.cancel()
            await asyncio.wait({serving})
            return "asked to leave"
    asked.cancel()
    why: str = await serving
    return why
