"""hatdfed ca, token, viewer, edge join and edge renew: manage who may take part in a deployment."""

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

ca_app = typer.Typer(
    help="The deployment's certificate authority: create it, deny or allow edges.",
    no_args_is_help=True,
    add_completion=False,
)
token_app = typer.Typer(
    help="Permissions to join, each for one node and one use.", no_args_is_help=True, add_completion=False
)
viewer_app = typer.Typer(
    help="Identities that may read the status of a run, and nothing else.", no_args_is_help=True, add_completion=False
)

CaFolder = Annotated[Path, typer.Option("--ca", envvar="HATDFED_CA", help="Folder made by `hatdfed ca init`.")]
NodeName = Annotated[str, typer.Argument(metavar="NODE", help="Name of an edge or a viewer, e.g. edge-7.")]
JoinServerAddress = Annotated[
    str, typer.Option("--coordinator", metavar="HOST:PORT", help="The coordinator's join server.")
]
CaPin = Annotated[str, typer.Option("--ca-pin", help="The authority's pin, sha256:….")]
OwnFolder = Annotated[
    Path, typer.Option("--identity", metavar="FOLDER", help="Folder for the key and the certificate of this node.")
]
Token = Annotated[
    str | None,
    typer.Option("--token", envvar="HATDFED_TOKEN", show_envvar=True, help="The join token; - reads it from stdin."),
]
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
    """Create the authority and the coordinator's own identity."""
    with require_deploy():
        from hatdfed.deploy.identity.identity_store import create_identity_store

    store = create_identity_store(folder)
    out.print(f"The authority is in {folder}; whoever has its ca-key.pem can let anybody in.", soft_wrap=True)
    out.print(f"pin  {store.authority.pin}", soft_wrap=True)
    out.print(f"Let an edge in with `hatdfed token create --ca {folder} --node edge-1`.", soft_wrap=True)


@ca_app.command("renew")
def ca_renew(
    ca: CaFolder = _DEFAULT_CA,
    force: Annotated[
        bool, typer.Option("--force", help="Even if it is not due, or if the clock says that it is long over.")
    ] = False,
) -> None:
    """Renew the coordinator's own certificate; a coordinator does so by itself when it starts and while it runs."""
    store = _open(ca)
    from hatdfed.deploy.identity.certificates import format_time

    out.print(f"The coordinator's certificate expires {format_time(store.refresh(force=force).expires)}.")


@ca_app.command("deny")
def ca_deny(node: NodeName, ca: CaFolder = _DEFAULT_CA) -> None:
    """Deny an edge or a viewer access, effective immediately."""
    _open(ca).deny_list.add(node)
    out.print(f"{node} is locked out.")


@ca_app.command("allow")
def ca_allow(node: NodeName, ca: CaFolder = _DEFAULT_CA) -> None:
    """Allow an edge or a viewer that was denied access."""
    store = _open(ca)
    if node not in store.deny_list:
        note(f"{node} was not locked out.")
    store.deny_list.remove(node)
    out.print(f"{node} is let in.")


@ca_app.command("relay")
def ca_relay(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the relay, e.g. relay-1.")],
    folder: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Folder for its key and certificate.")],
    days: Annotated[int, typer.Option("--days", min=1, max=825, help="How long the certificate is valid.")] = 90,
    ca: CaFolder = _DEFAULT_CA,
) -> None:
    """Create the identity of a relay, or renew it in the same folder; a running relay takes the new one over."""
    store = _open(ca)
    from hatdfed.deploy.identity.certificates import format_time, make_csr, make_key
    from hatdfed.deploy.identity.files import IdentityFolder
    from hatdfed.deploy.identity.names import relay_id

    key, node = make_key(), relay_id(name)
    signed = store.authority.sign(make_csr(key), node, timedelta(days=days))
    made = IdentityFolder(folder).save(key, signed, store.authority.pem)
    out.print(f"The identity of {node} is in {folder}; it expires {format_time(made.expires)}.", soft_wrap=True)
    out.print(f"Move the folder to the relay's machine and start it: hatdfed relay --identity {folder}", soft_wrap=True)


@token_app.command("create")
def token_create(
    node: Annotated[str, typer.Option("--node", metavar="NAME", help="Name of the edge or viewer that may join.")],
    ttl: Annotated[str, typer.Option("--ttl", help="How long it may be used: 30m, 1h, 2d.")] = "1h",
    ca: CaFolder = _DEFAULT_CA,
    coordinator: Annotated[
        str | None, typer.Option("--coordinator", metavar="HOST:PORT", help="The join server, as the edge reaches it.")
    ] = None,
    viewer: Annotated[
        bool, typer.Option("--viewer", help="For a viewer, who may read the status of the run and nothing else.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Create a join token; it is shown only once."""
    store = _open(ca)
    from hatdfed.deploy.identity.join import JOIN_PORT
    from hatdfed.deploy.identity.names import EDGE_ROLE, VIEWER_ROLE

    where = coordinator or f"{socket.gethostname()}:{JOIN_PORT}"
    split_address(where)
    life = parse_ttl(ttl)
    role = VIEWER_ROLE if viewer else EDGE_ROLE
    token, pin = store.tokens.create(node, life, role=role), store.authority.pin
    # By the environment, so that the token is not in the list of processes.
    line = f"HATDFED_TOKEN={token} hatdfed {role} join --coordinator {where} --ca-pin {pin} --identity identity-{node}"
    if as_json:
        expires = (datetime.now(UTC) + life).isoformat(timespec="seconds")
        made = {"node": node, "role": role, "token": token, "pin": pin, "expires": expires, "command": line}
        typer.echo(json.dumps(made))
        return
    typer.echo(f"token  {token}\npin    {pin}\n\nOn {node}, within {ttl}:\n\n{line}")


@token_app.command("list")
def token_list(ca: CaFolder = _DEFAULT_CA, as_json: Json = False) -> None:
    """List recent tokens by name and state; the tokens themselves are not stored."""
    from rich.table import Table

    store, now = _open(ca), datetime.now(UTC)
    rows = [
        {
            "node": info.node,
            "role": info.role,
            "state": info.state(now),
            "created": _text(info.created),
            "expires": _text(info.expires),
        }
        for info in store.tokens.list()
    ]
    if as_json:
        typer.echo(json.dumps(rows))
        return
    table = Table("node", "role", "state", "created", "expires", box=None)
    for row in rows:
        table.add_row(*row.values())
    out.print(table)


def edge_join(coordinator: JoinServerAddress, ca_pin: CaPin, identity: OwnFolder, token: Token = None) -> None:
    """Join a deployment as an edge: create a key here and have it signed."""
    _join(coordinator, ca_pin, identity, token, "edge")


@viewer_app.command("join")
def viewer_join(coordinator: JoinServerAddress, ca_pin: CaPin, identity: OwnFolder, token: Token = None) -> None:
    """Join a deployment as a viewer: create a key here and have it signed."""
    _join(coordinator, ca_pin, identity, token, "viewer")


def _join(coordinator: str, ca_pin: str, identity: Path, token: str | None, role: str) -> None:
    with require_deploy():
        from hatdfed.deploy.identity.certificates import format_time
        from hatdfed.deploy.identity.files import IdentityFolder
        from hatdfed.deploy.identity.join import join
    host, port = split_address(coordinator)
    joined = asyncio.run(join(host, port, _token(token), ca_pin, IdentityFolder(identity), role))
    out.print(
        f"This is {joined.node} now. Its identity is in {identity}; the certificate expires "
        f"{format_time(joined.expires)}.",
        soft_wrap=True,
    )


@viewer_app.command("renew")
def renew_command(coordinator: JoinServerAddress, identity: OwnFolder) -> None:
    """Renew the certificate, also one that has expired; edges and viewers do so by themselves."""
    with require_deploy():
        from hatdfed.deploy.identity.certificates import format_time
        from hatdfed.deploy.identity.files import IdentityFolder
        from hatdfed.deploy.identity.renewal import renew_by_proof
    host, port = split_address(coordinator)
    renewed = asyncio.run(renew_by_proof(host, port, IdentityFolder(identity)))
    out.print(f"The certificate of {renewed.node} is renewed until {format_time(renewed.expires)}.", soft_wrap=True)


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
