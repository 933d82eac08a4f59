"""hatdfed ca, hatdfed token, hatdfed edge join: manage who may take part in a deployment."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hatdfed.cli.console import note, out
from hatdfed.cli.options import Json
from hatdfed.errors import ConfigError, IdentityError, MissingDependencyError

if TYPE_CHECKING:
    from hatdfed.deploy.identity.identity_store import IdentityStore

ca_app = typer.Typer(help="The deployment's authority: make it, lock nodes out.", no_args_is_help=True)
token_app = typer.Typer(help="Permissions to join, each for one edge and one use.", no_args_is_help=True)

CaFolder = Annotated[Path, typer.Option("--ca", envvar="HATDFED_CA", help="Folder made by `hatdfed ca init`.")]
NodeName = Annotated[str, typer.Argument(metavar="NODE", help="Name of an edge, e.g. edge-7.")]
_DEFAULT_CA = Path("ca")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


@contextmanager
def require_deploy() -> Iterator[None]:
    """Turn a missing package of deployments into an error that says what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("cryptography", "grpc", "google"):
            raise
        raise MissingDependencyError(
            f"This command needs the package {error.name}: pip install 'hatdfed[deploy]'."
        ) from None


@ca_app.command("init")
def ca_init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to keep it; it must be new.")],
) -> None:
    """Make the authority and the coordinator's own identity."""
    with require_deploy():
        from hatdfed.deploy.identity.identity_store import create_identity_store

    store = create_identity_store(folder)
    out.print(f"The authority is in {folder}; whoever has its ca-key.pem can let anybody in.", soft_wrap=True)
    out.print(f"pin  {store.authority.pin}", soft_wrap=True)
    out.print(f"Let an edge in with `hatdfed token create --ca {folder} --node edge-1`.", soft_wrap=True)


@ca_app.command("deny")
def ca_deny(node: NodeName, ca: CaFolder = _DEFAULT_CA) -> None:
    """Lock an edge out, at once."""
    _open(ca).deny_list.add(node)
    out.print(f"{node} is locked out.")


@ca_app.command("allow")
def ca_allow(node: NodeName, ca: CaFolder = _DEFAULT_CA) -> None:
    """Let an edge that was locked out in again."""
    store = _open(ca)
    if node not in store.deny_list:
        note(f"{node} was not locked out.")
    store.deny_list.remove(node)
    out.print(f"{node} is let in.")


@token_app.command("create")
def token_create(
    node: Annotated[str, typer.Option("--node", metavar="NAME", help="Name of the edge that may join.")],
    ttl: Annotated[str, typer.Option("--ttl", help="How long it may be used: 30m, 1h, 2d.")] = "1h",
    ca: CaFolder = _DEFAULT_CA,
    coordinator: Annotated[
        str | None, typer.Option("--coordinator", metavar="HOST:PORT", help="The join server, as the edge reaches it.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a join token; it is shown this once."""
    store = _open(ca)
    from hatdfed.deploy.identity.join import JOIN_PORT

    where = coordinator or f"{socket.gethostname()}:{JOIN_PORT}"
    split_address(where)
    life = parse_ttl(ttl)
    token, pin = store.tokens.create(node, life), store.authority.pin
    # By the environment, so that the token is not in the list of processes.
    line = f"HATDFED_TOKEN={token} hatdfed edge join --coordinator {where} --ca-pin {pin} --identity identity-{node}"
    if as_json:
        expires = (datetime.now(UTC) + life).isoformat(timespec="seconds")
        typer.echo(json.dumps({"node": node, "token": token, "pin": pin, "expires": expires, "command": line}))
        return
    typer.echo(f"token  {token}\npin    {pin}\n\nOn {node}, within {ttl}:\n\n{line}")


@token_app.command("list")
def token_list(ca: CaFolder = _DEFAULT_CA, as_json: Json = False) -> None:
    """List the tokens of the last days; the tokens themselves are not kept."""
    from rich.table import Table

    store, now = _open(ca), datetime.now(UTC)
    rows = [
        {"node": info.node, "state": info.state(now), "created": _text(info.created), "expires": _text(info.expires)}
        for info in store.tokens.list()
    ]
    if as_json:
        typer.echo(json.dumps(rows))
        return
    table = Table("node", "state", "created", "expires", box=None)
    for row in rows:
        table.add_row(*row.values())
    out.print(table)


def edge_join(
    coordinator: Annotated[
        str, typer.Option("--coordinator", metavar="HOST:PORT", help="The coordinator's join server.")
    ],
    ca_pin: Annotated[str, typer.Option("--ca-pin", help="The authority's pin, sha256:….")],
    identity: Annotated[Path, typer.Option("--identity", metavar="FOLDER", help="Where this edge's key will lie.")],
    token: Annotated[
        str | None,
        typer.Option(
            "--token", envvar="HATDFED_TOKEN", show_envvar=True, help="The join token; - reads it from stdin."
        ),
    ] = None,
) -> None:
    """Become an edge of a deployment: make a key here and have it signed."""
    with require_deploy():
        from hatdfed.deploy.identity.certificates import format_time
        from hatdfed.deploy.identity.files import IdentityFolder
        from hatdfed.deploy.identity.join import join
    host, port = split_address(coordinator)
    joined = asyncio.run(join(host, port, _token(token), ca_pin, IdentityFolder(identity)))
    out.print(
        f"This is {joined.node} now. Its identity is in {identity}; the certificate expires "
        f"{format_time(joined.expires)}.",
        soft_wrap=True,
    )


def parse_ttl(text: str) -> timedelta:
    """Parse a duration such as 90s, 30m, 1h or 2d.

    >>> parse_ttl("90m")
    datetime.timedelta(seconds=5400)
    """
    match = re.fullmatch(r"([0-9]{1,7})([smhd])", text.strip())
    if match is None:
        raise ConfigError(f"--ttl is {text!r:.40}, but must be a whole number and s, m, h or d, as in 30m or 1h.")
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


def split_address(text: str) -> tuple[str, int]:
    """Split HOST:PORT; an IPv6 address is in brackets.

    >>> split_address("[::1]:7443")
    ('::1', 7443)
    """
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([A-Za-z0-9._-]+)):([0-9]{1,5})", text)
    if match is None or not 0 < int(match[3]) < 65536:
        raise ConfigError(f"--coordinator is {text!r:.80}, but must be HOST:PORT, as in coordinator.example:7443.")
    return match[1] or match[2], int(match[3])


def _token(given: str | None) -> str:
    token = sys.stdin.readline() if given == "-" else given
    if token is None or not token.strip():
        raise IdentityError(
            "no-token", "There is no join token. Give it with --token, in HATDFED_TOKEN, or on stdin with --token -."
        )
    return token.strip()


def _open(folder: Path) -> IdentityStore:
    with require_deploy():
        from hatdfed.deploy.identity.identity_store import open_identity_store
    return open_identity_store(folder)


def _text(when: datetime) -> str:
    return when.isoformat(sep=" ", timespec="seconds")
