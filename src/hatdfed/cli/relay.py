"""hatdfed relay: pass bytes on between edges of which neither can dial the other."""

from __future__ import annotations

import asyncio
import logging
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from hatdfed.cli.coordinator import PLAIN_TEXT, Insecure, InsecureAnywhere, LogJson, split_listen
from hatdfed.cli.identity import require_deploy
from hatdfed.errors import ConfigError

RELAY_PORT = 7446
_log = logging.getLogger("hatdfed.cli")


def relay_command(
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where edges connect.")
    ] = f"0.0.0.0:{RELAY_PORT}",
    identity: Annotated[
        Path | None, typer.Option("--identity", metavar="FOLDER", help="Made by `hatdfed ca relay`.")
    ] = None,
    denied: Annotated[
        Path | None,
        typer.Option("--denied", metavar="FILE", help="The coordinator's deny list, or a copy; read when it changes."),
    ] = None,
    metrics: Annotated[
        str | None, typer.Option("--metrics", metavar="HOST:PORT", help="Serve Prometheus here.")
    ] = None,
    insecure: Insecure = False,
    insecure_anywhere: InsecureAnywhere = False,
    log_json: LogJson = None,
) -> None:
    """Connect edges that cannot dial each other; it sees only what they have encrypted for each other."""
    with require_deploy():
        from hatdfed.deploy.identity.deny import DenyList
        from hatdfed.deploy.identity.files import IdentityFolder
        from hatdfed.deploy.identity.names import relay_id
        from hatdfed.deploy.logs import set_up_logs
        from hatdfed.deploy.relay.metrics import serve_relay_metrics
        from hatdfed.deploy.relay.relay import Relay
        from hatdfed.deploy.transport.endpoints import Endpoints, raise_file_limit, refuse_open_plain_text
    host, port = split_listen(listen, "--listen")
    where = None if metrics is None else split_listen(metrics, "--metrics")
    if insecure:
        refuse_open_plain_text(listen, forced=insecure_anywhere)
    elif identity is None:
        raise ConfigError("A relay needs an identity: --identity FOLDER, made by `hatdfed ca relay`, or --insecure.")
    raise_file_limit()
    set_up_logs(as_json=log_json)
    if insecure:
        _log.warning(PLAIN_TEXT)
    if denied is not None and not denied.exists():
        _log.warning("There is no file %s yet: nobody is denied until there is.", denied)
    folder = None if insecure or identity is None else IdentityFolder(identity)
    endpoints = Endpoints(folder, relay_id("relay") if folder is None else folder.read().node)
    relay = Relay(folder, () if denied is None else DenyList(denied))
    serving_metrics = None if where is None else serve_relay_metrics(relay, endpoints, where)
    asyncio.run(_serve(relay.serve(host, port), serving_metrics))


async def _serve(serving_edges: Any, serving_metrics: Any) -> None:
    stopped, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    async with AsyncExitStack() as stack:
        _log.info("The relay listens at port %d.", await stack.enter_async_context(serving_edges))
        if serving_metrics is not None:
            _log.info("Metrics are at port %d.", await stack.enter_async_context(serving_metrics))
        await stopped.wait()
