"""hatdfed edge: one edge server of a deployment."""

from __future__ import annotations

import asyncio
import signal
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from hatdfed.cli.console import note, require_torch
from hatdfed.cli.coordinator import Insecure, InsecureAnywhere, LogJson
from hatdfed.cli.identity import edge_join, needs_deploy, split_address
from hatdfed.cli.options import DataDir
from hatdfed.errors import ConfigError

edge_app = typer.Typer(help="One edge server of a deployment: run it, or let it join.", invoke_without_command=True)
edge_app.command("join")(edge_join)


@edge_app.callback()
def edge_command(
    context: typer.Context,
    coordinator: Annotated[str | None, typer.Option("--coordinator", metavar="HOST:PORT")] = None,
    identity: Annotated[
        Path | None, typer.Option("--identity", metavar="FOLDER", help="Made by `hatdfed edge join`.")
    ] = None,
    store: Annotated[
        Path | None, typer.Option("--store", metavar="FOLDER", help="Where its models are kept; edge-NAME.")
    ] = None,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where other edges reach it; '' for nowhere.")
    ] = "127.0.0.1:0",
    advertise: Annotated[
        str, typer.Option("--advertise", metavar="HOST:PORT", help="What others dial, if not as listened.")
    ] = "",
    data: Annotated[
        str | None,
        typer.Option("--data", help="Own images: a folder by class, an .npz file, or package.module:function."),
    ] = None,
    work_share: Annotated[
        float, typer.Option("--work-share", help="Share of the passes that a slow machine does.")
    ] = 1.0,
    keep_models: Annotated[int, typer.Option("--keep-models", min=1, help="States kept on disk.")] = 2,
    keep_mb: Annotated[int, typer.Option("--keep-mb", min=1, help="Megabytes of states kept on disk.")] = 8192,
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="For training; all cores by default.")] = None,
    patience: Annotated[float, typer.Option("--patience", help="Seconds that a coordinator may be away.")] = 600.0,
    desk: Annotated[
        str | None, typer.Option("--desk", metavar="HOST:PORT", help="The front desk; the next lower port.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="With --insecure: who this is.")] = None,
    data_dir: DataDir = None,
    insecure: Insecure = False,
    insecure_anywhere: InsecureAnywhere = False,
    log_json: LogJson = None,
) -> None:
    """Take part in a run until the coordinator ends it."""
    if context.invoked_subcommand is not None:
        return
    if coordinator is None:
        raise ConfigError("An edge needs to know whom to serve: --coordinator HOST:PORT.")
    require_torch()
    with needs_deploy():
        from hatdfed.net.logs import log_to_stderr
        from hatdfed.node.edge import Edge, Place
        from hatdfed.node.outfit import simulated_outfit
        from hatdfed.node.store import EdgeStore
    import torch

    torch.set_num_threads(threads or torch.get_num_threads())
    log_to_stderr(as_json=log_json)
    host, port = split_address(coordinator)
    ends = _ends(identity, name, coordinator, insecure=insecure, forced=insecure_anywhere)
    asked = split_address(desk) if desk else (host, port - 1)
    place = Place(coordinator, listen, advertise, patience, None if insecure else asked)
    keeps = EdgeStore(store or Path(f"edge-{_name(ends)}"), keep_models, keep_mb << 20)
    outfit = partial(simulated_outfit, data_dir=data_dir, own_data=data, work_share=work_share)
    why = asyncio.run(_serve(partial(Edge, place, ends, keeps, outfit)))
    note(f"This edge is done: {why}.")


def _ends(identity: Path | None, name: str | None, coordinator: str, *, insecure: bool, forced: bool) -> Any:
    from hatdfed.net.ends import Ends, refuse_open_plain_text
    from hatdfed.net.identity.files import IdentityFolder
    from hatdfed.net.identity.names import edge

    if insecure:
        refuse_open_plain_text(coordinator, forced=forced)
        note("Everything is sent in plain text, and every name is believed (--insecure).")
        return Ends(None, edge(name or ""))
    if identity is None:
        raise ConfigError(
            "An edge needs an identity: --identity FOLDER, made by `hatdfed edge join`. To try things out on this "
            "machine without certificates, type --insecure --name NAME."
        )
    folder = IdentityFolder(identity)
    return Ends(folder, folder.load().node)


def _name(ends: Any) -> str:
    return str(ends.claims.name)


async def _serve(make_edge: Any) -> str:
    edge = make_edge()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, edge.leave_asked.set)
    why: str = await edge.serve()
    return why
