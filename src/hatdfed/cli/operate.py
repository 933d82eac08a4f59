"""hatdfed status, drain, undrain, stop: operate a running deployment."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from hatdfed.cli.console import note, out
from hatdfed.cli.coordinator import COORDINATOR_PORT, Insecure, InsecureAnywhere, silence_grpc
from hatdfed.cli.identity import require_deploy, split_address
from hatdfed.cli.options import Json
from hatdfed.errors import ConfigError, HatdfedError
from hatdfed.runs.display import format_energy
from hatdfed.runs.round_row import columns_in

Where = Annotated[str, typer.Option("--coordinator", metavar="HOST:PORT")]
Ca = Annotated[
    Path | None,
    typer.Option("--ca", envvar="HATDFED_CA", help="The coordinator's folder of certificates; ca, if it is there."),
]
ViewerIdentity = Annotated[
    Path | None,
    typer.Option("--identity", metavar="FOLDER", help="A viewer's identity, instead of --ca; `hatdfed viewer join`."),
]
_DEFAULT_CA = Path("ca")
_HERE = f"127.0.0.1:{COORDINATOR_PORT}"
_SECONDS = 10.0


def status_command(
    coordinator: Where = _HERE,
    ca: Ca = None,
    identity: ViewerIdentity = None,
    insecure: Insecure = False,
    insecure_anywhere: InsecureAnywhere = False,
    as_json: Json = False,
) -> None:
    """Show the state of a deployment."""
    status = _ask_coordinator(coordinator, ca, insecure, insecure_anywhere, _status, identity)
    if as_json:
        typer.echo(json.dumps(status))
    else:
        _show(status)


def drain_command(
    node: Annotated[str, typer.Argument(metavar="NODE", help="Name of the edge to remove.")],
    coordinator: Where = _HERE,
    ca: Ca = None,
    insecure: Insecure = False,
    insecure_anywhere: InsecureAnywhere = False,
) -> None:
    """Remove one edge; the run continues without it."""

    async def drain(stub: Any, pb: Any) -> Any:
        return json.loads((await stub.Drain(pb.NodeName(name=node), timeout=_SECONDS)).json)

    status = _ask_coordinator(coordinator, ca, insecure, insecure_anywhere, drain)
    out.print(f"{node} takes part no more.")
    active, quorum = sum(server["active"] for server in status["servers"]), status.get("quorum", 0)
    if active < quorum:
        note(
            f"The run waits: {active} servers are left, and a round needs {quorum}. Start further edges, take "
            f"{node} back with `hatdfed undrain {node}`, or restart the coordinator with a lower deploy.min_servers."
        )


def undrain_command(
    node: Annotated[str, typer.Argument(metavar="NODE", help="Name of the edge that was drained.")],
    coordinator: Where = _HERE,
    ca: Ca = None,
    insecure: Insecure = False,
    insecure_anywhere: InsecureAnywhere = False,
) -> None:
    """Let a drained edge take part again."""

    async def undrain(stub: Any, pb: Any) -> Any:
        return await stub.Undrain(pb.NodeName(name=node), timeout=_SECONDS)

    _ask_coordinator(coordinator, ca, insecure, insecure_anywhere, undrain)
    out.print(f"{node} may take part again; start its edge if it has ended.")


def stop_command(
    coordinator: Where = _HERE, ca: Ca = None, insecure: Insecure = False, insecure_anywhere: InsecureAnywhere = False
) -> None:
    """Stop the coordinator and all edges; starting the coordinator again continues the run."""

    async def stop(stub: Any, pb: Any) -> Any:
        return await stub.Stop(pb.Nothing(), timeout=_SECONDS)

    _ask_coordinator(coordinator, ca, insecure, insecure_anywhere, stop)
    out.print("The coordinator ends now, and with it the edges.")


async def _status(stub: Any, pb: Any) -> dict[str, Any]:
    answer = await stub.Status(pb.Nothing(), timeout=_SECONDS)
    status: dict[str, Any] = json.loads(answer.json)
    return status


def _ask_coordinator(
    coordinator: str,
    ca: Path | None,
    insecure: bool,
    forced: bool,
    ask: Callable[[Any, Any], Awaitable[Any]],
    viewer: Path | None = None,
) -> Any:
    silence_grpc()
    with require_deploy():
        from hatdfed.deploy.identity.files import IdentityFolder
        from hatdfed.deploy.identity.identity_store import open_identity_store
        from hatdfed.deploy.identity.renewal import renew_if_due
        from hatdfed.deploy.transport.endpoints import Endpoints, refuse_open_plain_text
    host, port = split_address(coordinator)
    if insecure:
        refuse_open_plain_text(coordinator, forced=forced)
        return asyncio.run(_call(Endpoints(None), coordinator, ask))
    if viewer is not None:
        own = IdentityFolder(viewer)
        asyncio.run(renew_if_due(host, port - 1, own))
        return asyncio.run(_call(Endpoints(own), coordinator, ask))
    folder = _DEFAULT_CA if ca is None and _DEFAULT_CA.is_dir() else ca
    if folder is None:
        raise ConfigError("This command needs the coordinator's certificates: --ca FOLDER, or --insecure.")
    # The coordinator renews its certificate itself: if this machine's clock is wrong, a command must not.
    return asyncio.run(_call(Endpoints(open_identity_store(folder).identity), coordinator, ask))


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
    if "quorum" in status:  # a coordinator of an older version does not say
        out.print(f"a round needs at least {status['quorum']} servers")
    if status["state"] == "done":
        out.print(f"finished: all {status['rounds']} rounds are completed")
    elif status["waits_for"]:
        until = "" if status["waits_seconds"] is None else f", for at most {status['waits_seconds']:g} s"
        out.print(f"waits for {status['waits_for']}{until}")
    if status["refused"]:
        out.print("refused: " + ", ".join(f"{count} {reason}" for reason, count in sorted(status["refused"].items())))
    table = Table("server", "edge", "here", "seen", "next round", "refused", "doing", box=None)
    for server in status["servers"]:
        seen = "–" if server["seen_seconds_ago"] is None else f"{server['seen_seconds_ago']:g} s ago"
        here = "drained" if server["drained"] else "yes" if server["active"] else "no"
        here = "quarantine" if server.get("quarantined") and here == "no" else here
        refused = sum(server.get("refused", {}).values())  # a coordinator of an older version does not say
        row = (server["name"], here, seen, str(server["round"] + 1), str(refused or "–"), server["doing"])
        table.add_row(f"server {server['index']}", *row)
    out.print(table)
