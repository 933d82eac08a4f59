"""hatdfed coordinator: execute a run on real machines."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from hatdfed.cli.console import out
from hatdfed.cli.identity import require_deploy
from hatdfed.cli.options import Assignments, Json, read_user_layer
from hatdfed.cli.tables import format_run_title, make_summary_table
from hatdfed.errors import ConfigError
from hatdfed.runs.process_memory import collect_often, return_freed_memory
from hatdfed.runs.records.folder import RunFolder
from hatdfed.setup.config import Config
from hatdfed.setup.notes import collect_notes
from hatdfed.setup.run_identity import same_run

LogJson = Annotated[
    bool | None, typer.Option("--log-json/--log-text", help="Log as JSON lines; by default unless at a terminal.")
]
LogFile = Annotated[
    Path | None,
    typer.Option("--log-file", metavar="FILE", help="Log here, not to standard error; the file is rotated."),
]
LogMegabytes = Annotated[
    int, typer.Option("--log-mb", min=1, help="With --log-file: size of a file; five older ones are kept.")
]
Insecure = Annotated[bool, typer.Option("--insecure", help="Plain text, no certificates; on this machine only.")]
InsecureAnywhere = Annotated[
    bool, typer.Option("--insecure-anywhere", help="With --insecure: plain text through any network.")
]
COORDINATOR_PORT = 7444
PLAIN_TEXT = "INSECURE: everything is sent in plain text, and no name is verified. Use certificates for real work."
_log = logging.getLogger("hatdfed.cli")
_THREADS = 3  # for the main loop, its own certificate and those of edges


def coordinator_command(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.yaml", help="Settings of the run, with a section deploy.")],
    state: Annotated[
        Path, typer.Option("--state", metavar="FOLDER", help="Journal and records; a restart goes on from it.")
    ],
    ca: Annotated[
        Path | None, typer.Option("--ca", envvar="HATDFED_CA", help="Folder made by `hatdfed ca init`.")
    ] = None,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where edges connect; 0.0.0.0:7444 for all networks.")
    ] = f"127.0.0.1:{COORDINATOR_PORT}",
    desk: Annotated[
        str | None,
        typer.Option("--desk", metavar="HOST:PORT", help="Where new edges join; by default one port below --listen."),
    ] = None,
    metrics: Annotated[
        str | None, typer.Option("--metrics", metavar="HOST:PORT", help="Serve Prometheus here.")
    ] = None,
    assignments: Assignments = None,
    insecure: Insecure = False,
    insecure_anywhere: InsecureAnywhere = False,
    log_json: LogJson = None,
    log_file: LogFile = None,
    log_mb: LogMegabytes = 10,
    as_json: Json = False,
) -> None:
    """Wait for edges, execute the run with them, and save it; a restarted coordinator continues it."""
    silence_grpc()
    with require_deploy():
        from hatdfed.deploy.coordinator.process import CoordinatorOptions, CoordinatorProcess, mark_transient_errors
        from hatdfed.deploy.coordinator.settings import split_layer
        from hatdfed.deploy.coordinator.state_folder import resolve_for_state
        from hatdfed.deploy.identity.identity_store import open_identity_store
        from hatdfed.deploy.identity.tls_rehearsal import rehearse_tls
        from hatdfed.deploy.logs import set_up_logs
        from hatdfed.deploy.transport.endpoints import Endpoints, raise_file_limit, refuse_open_plain_text
    raise_file_limit()
    return_freed_memory()
    layer, settings = split_layer(read_user_layer(config, assignments))
    set_up_logs(log_file, megabytes=log_mb, as_json=log_json)
    resolved = resolve_for_state(state, layer)
    if resolved.candidates is not None:
        raise ConfigError(
            f"candidates is {resolved.candidates}, but on real machines every link is considered. "
            "Leave candidates out; it is for simulations of thousands of servers."
        )
    if resolved.time.deadline_seconds is not None:
        raise ConfigError(
            f"time.deadline_seconds is {resolved.time.deadline_seconds:g}, but it is about simulated time. On real "
            "machines a round ends after deploy.round_seconds."
        )
    if resolved.has_parameter_server:
        raise ConfigError(
            "policy.name is parameter-server (method fedavg), but a deployment has no parameter server: edges exchange "
            "models with each other. Use it in simulations, and another method here."
        )
    for key in ("upload_trace", "uplink_trace"):
        if getattr(resolved.time, key) is not None:
            raise ConfigError(f"time.{key} is set, but real machines have the rates that they have. Leave it out.")
    if resolved.time.asynchronous:
        raise ConfigError(
            "time.asynchronous is set, but it is about simulated time: real machines play synchronous rounds. Set it "
            "to false."
        )
    for sentence in collect_notes(resolved):
        _log.info("%s", sentence)
    if (known := _results(state, resolved)) is not None:
        _log.info("This run has all its rounds already. Set more rounds to go on, or choose another --state.")
        _show(known, resolved, as_json=as_json)
        return
    host, port = split_listen(listen, "--listen")
    if insecure:
        refuse_open_plain_text(listen, forced=insecure_anywhere)
        _log.warning(PLAIN_TEXT)
        options = CoordinatorOptions(state, listen, Endpoints(None), metrics=_pair(metrics))
    else:
        if ca is None:
            raise ConfigError(
                "A coordinator needs certificates. Make them with `hatdfed ca init FOLDER` and give --ca FOLDER, or "
                "type --insecure to try things out on this machine."
            )
        store = open_identity_store(
            ca, timedelta(hours=settings.certificate_hours), timedelta(days=settings.renewal_grace_days)
        )
        join_address = split_listen(desk, "--desk") if desk else (host, max(port - 1, 0))
        endpoints = Endpoints(identity := store.refresh())
        rehearse_tls(identity)
        options = CoordinatorOptions(state, listen, endpoints, store, join_address, _pair(metrics))
    with mark_transient_errors():
        process = CoordinatorProcess(resolved, settings, options)
    collect_often()
    summary = asyncio.run(_serve(process))
    _show(summary, resolved, as_json=as_json)


async def _serve(process: Any) -> dict[str, Any] | None:
    from hatdfed.deploy.threads import make_pool

    loop = asyncio.get_running_loop()
    loop.set_default_executor(make_pool(_THREADS, "work"))
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, process.hub.stop_requested.set)
    summary: dict[str, Any] | None = await process.serve()
    return summary


def _results(state: Path, config: Config) -> dict[str, Any] | None:
    """Read the results of a complete run with these settings, which needs no edges any more."""
    results = RunFolder(state).read_results()
    settings = None if results is None else results.get("config")
    return results if isinstance(settings, dict) and same_run(settings, config) else None


def _show(summary: dict[str, Any] | None, config: Config, *, as_json: bool) -> None:
    if summary is None:
        _log.info("Stopped. The same command goes on with the run.")
    elif as_json:
        typer.echo(json.dumps(summary))
    else:
        out.print(make_summary_table([summary], title=format_run_title(config)))
        out.print(f"Run folder: {summary['run_folder']}", soft_wrap=True)


def silence_grpc() -> None:
    """Silence gRPC's own log lines: the same errors are reported in one sentence."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def split_listen(text: str, option: str) -> tuple[str, int]:
    """Split HOST:PORT to listen at; port 0 is any free port."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"{option} is {text!r}, but must be HOST:PORT, as in 0.0.0.0:{COORDINATOR_PORT}.")
    return host.strip("[]"), int(port)


def _pair(text: str | None) -> tuple[str, int] | None:
    return None if text is None else split_listen(text, "--metrics")
