"""hatdfed status, drain, stop: operate a running deployment."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from hatdfed.cli.console import format_energy, out
from hatdfed.cli.coordinator import COORDINATOR_PORT, Insecure, InsecureAnywhere, silence_grpc
from hatdfed.cli.identity import require_deploy, split_address
from hatdfed.cli.options import Json
from hatdfed.errors import ConfigError, HatdfedError
from hatdfed.runs.round_row import columns_in

Where = Annotated[str, typer.Option("--coordinator", metavar="HOST:PORT")]
Ca = Annotated[
    Path | None,
    typer.Option("--ca", envvar="HATDFED_CA", help="The coordinator's folder of certificates; ca, if it is there."),
]
_DEFAULT_CA = Path("ca")
_HERE = f"127.0.0.1:{COORDINATOR_PORT}"
_SECONDS = 10.0


def status_command(
    coordinator: Where = _HERE,
    ca: Ca = None,
    insecure: Insecure = False,
    insecure_anywhere: InsecureAnywhere = False,
    as_json: Json = False,
) -> None:
    """Show the state of a deployment."""
    status = _ask_coordinator(coordinator, ca, insecure, insecure_anywhere, _status)
    if as_json:
        typer.echo(json.dumps(status))
    else:
        _show(status)


def drain_command(
    node: Annotated[str, typer.Argument(metavar="NODE", help="The edge to let go.")],
    coordinator: Where = _HERE,
    ca: Ca = None,
    insecure: Insecure = False,
    insecure_anywhere: InsecureAnywhere = False,
) -> None:
    """Remove one edge; the run goes on without it."""

    async def drain(stub: Any, pb: Any) -> Any:
        return await stub.Drain(pb.NodeName(name=node), timeout=_SECONDS)

    _ask_coordinator(coordinator, ca, insecure, insecure_anywhere, drain)
    out.print(f"{node} takes part no more.")


def stop_command(
    coordinator: Where = _HERE, ca: Ca = None, insecure: Insecure = False, insecure_anywhere: InsecureAnywhere = False
) -> None:
    """Stop coordinator and edges; starting the coordinator again continues the run."""

    async def stop(stub: Any, pb: Any) -> Any:
        return await stub.Stop(pb.Nothing(), timeout=_SECONDS)

    _ask_coordinator(coordinator, ca, insecure, insecure_anywhere, stop)
    out.print("The coordinator ends now, and with it the edges.")


async def _status(stub: Any, pb: Any) -> dict[str, Any]:
    answer = await stub.Status(pb.Nothing(), timeout=_SECONDS)
    status: dict[str, Any] = json.loads(answer.json)
    return status


def _ask_coordinator(
    coordinator: str, ca: Path | None, insecure: bool, forced: bool, ask: Callable[[Any, Any], Awaitable[Any]]
) -> Any:
    silence_grpc()
    with require_deploy():
        from hatdfed.deploy.identity.identity_store import open_identity_store
        from hatdfed.deploy.transport.endpoints import Endpoints, refuse_open_plain_text
    split_address(coordinator)
    if insecure:
        refuse_open_plain_text(coordinator, forced=forced)
        return asyncio.run(_call(Endpoints(None), coordinator, ask))
    folder = _DEFAULT_CA if ca is None and _DEFAULT_CA.is_dir() else ca
    if folder is None:
        raise ConfigError("This command needs the coordinator's certificates: --ca FOLDER, or --insecure.")
    return asyncio.run(_call(Endpoints(open_identity_store(folder).refresh()), coordinator, ask))


async def _call(endpoints: Any, coordinator: str, ask: Callable[[Any, Any], Awaitable[Any]]) -> Any:
    import grpc

    from hatdfed.deploy.identity.names import COORDINATOR
    from hatdfed.deploy.protocol import hatdfed_pb2 as pb
    from hatdfed.deploy.protocol.hatdfed_pb2_grpc import OperationStub

    async with endpoints.open_channel(coordinator, COORDINATOR) as channel:
        try:
            return await ask(OperationStub(channel), pb)
        except grpc.aio.AioRpcError as error:
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise HatdfedError(
                    f"The coordinator at {coordinator} does not answer ({_cause(error.details())}). "
                    "Check that it runs, its address, and that --ca is its folder."
                ) from None
            raise HatdfedError(f"The coordinator refuses: {error.details()}") from None


def _cause(details: str | None) -> str:
    """Shorten gRPC's error message to its cause.

    >>> _cause("failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Connection refused")
    'Connection refused'
    """
    if "CERTIFICATE_VERIFY_FAILED" in (details or ""):
        return "its certificate is of another authority"
    return (details or "").rstrip(" ].").rpartition(": ")[2] or "no reason given"


def _show(status: dict[str, Any]) -> None:
    total = sum(status["joules"].values())
    accuracy = "–" if status["accuracy_percent"] is None else f"{status['accuracy_percent']:.1f} %"
    out.print(
        f"run {status['run']}  {status['state']}  round {status['round']} of {status['rounds']}  "
        f"accuracy {accuracy} (validation)  {status['links']} links  {format_energy(total)}"
    )
    figures = status.get("figures", {})  # a coordinator of an older version has none
    out.print(
        "  ".join(f"{metric.label} {metric.text(figures.get(name))}" for name, metric in columns_in("own").items())
    )
    if status["waits_for"]:
        until = "" if status["waits_seconds"] is None else f", for at most {status['waits_seconds']:g} s"
        out.print(f"waits for {status['waits_for']}{until}")
    if status["refused"]:
        out.print("refused: " + ", ".join(f"{count} {reason}" for reason, count in sorted(status["refused"].items())))
    table = Table("server", "name", "here", "seen", "next round", "doing", box=None)
    for server in status["servers"]:
        seen = "–" if server["seen_seconds_ago"] is None else f"{server['seen_seconds_ago']:g} s ago"
        here = "drained" if server["drained"] else "yes" if server["active"] else "no"
        table.add_row(str(server["index"]), server["name"], here, seen, str(server["round"]), server["doing"])
    out.print(table)
