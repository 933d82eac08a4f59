"""The commands as an operator types them; `edge join` reaches a join server in a thread."""

import asyncio
import json
import re
import subprocess
import sys
import threading

import pytest
import typer
from typer.testing import CliRunner

from hatdfed.cli.identity import ca_app, edge_join, parse_ttl, split_address, token_app
from hatdfed.deploy.identity.files import IdentityFolder
from hatdfed.deploy.identity.identity_store import open_identity_store
from hatdfed.deploy.identity.join_server import JoinServer
from hatdfed.errors import ConfigError, HatdfedError


@pytest.fixture
def hatdfed():
    app = typer.Typer()
    app.add_typer(ca_app, name="ca")
    app.add_typer(token_app, name="token")
    edge = typer.Typer()
    edge.command("join")(edge_join)
    edge.command("start")(lambda: None)
    app.add_typer(edge, name="edge")

    def call(*arguments, **rest):
        done = CliRunner().invoke(app, [str(argument) for argument in arguments], **rest)
        if done.exception and isinstance(done.exception, HatdfedError):
            raise done.exception
        assert done.exit_code == 0, done.output
        return done.stdout

    return call


@pytest.fixture
def ca(tmp_path, hatdfed):
    folder = tmp_path / "ca"
    hatdfed("ca", "init", folder)
    return folder


@pytest.fixture
def join_port(ca):
    """The port of a join server that runs in a thread of its own."""
    started, ports = threading.Event(), []

    async def serve():
        nonlocal stop
        stop = asyncio.Event()
        async with JoinServer(open_identity_store(ca), host="127.0.0.1", port=0) as join_server:
            ports.append(join_server.port)
            loops.append(asyncio.get_running_loop())
            started.set()
            await stop.wait()

    stop, loops = None, []
    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert started.wait(5)
    yield ports[0]
    loops[0].call_soon_threadsafe(stop.set)
    thread.join(5)


def test_ca_init_makes_authority_and_coordinator(hatdfed, tmp_path):
    printed = hatdfed("ca", "init", tmp_path / "ca")
    identity_store = open_identity_store(tmp_path / "ca")
    assert identity_store.authority.pin in printed
    assert str(identity_store.identity.load().node) == "coordinator coordinator"
    with pytest.raises(HatdfedError, match="never overwritten"):
        hatdfed("ca", "init", tmp_path / "ca")


def test_the_printed_line_joins_an_edge(hatdfed, ca, join_port, tmp_path, monkeypatch):
    address = f"127.0.0.1:{join_port}"
    made = json.loads(hatdfed("token", "create", "--node", "edge-7", "--ca", ca, "--coordinator", address, "--json"))
    assignment, program, *words = made["command"].split()
    assert program == "hatdfed"
    name, _, token = assignment.partition("=")
    assert token == made["token"]
    monkeypatch.setenv(name, token)
    monkeypatch.chdir(tmp_path)
    assert "edge edge-7" in hatdfed(*words)
    assert IdentityFolder(tmp_path / "identity-edge-7").load().node.name == "edge-7"


def test_a_token_may_come_by_standard_input(hatdfed, ca, join_port, tmp_path):
    identity_store = open_identity_store(ca)
    text = hatdfed("token", "create", "--node", "edge-7", "--ca", ca)
    token = re.search(r"^token  (\S+)$", text, re.MULTILINE)[1]
    pin = identity_store.authority.pin
    where = ("--coordinator", f"127.0.0.1:{join_port}", "--ca-pin", pin, "--identity", tmp_path / "new")
    hatdfed("edge", "join", *where, "--token", "-", input=f"{token}\n")
    assert IdentityFolder(tmp_path / "new").load().node.name == "edge-7"
    with pytest.raises(HatdfedError, match="There is no join token"):
        hatdfed("edge", "join", *where, "--token", "-", input="\n")


def test_tokens_are_listed(hatdfed, ca):
    hatdfed("token", "create", "--node", "edge-7", "--ttl", "30m", "--ca", ca)
    assert [row["state"] for row in json.loads(hatdfed("token", "list", "--ca", ca, "--json"))] == ["open"]
    assert "edge-7" in hatdfed("token", "list", "--ca", ca)


def test_a_node_is_denied_and_allowed(hatdfed, ca):
    assert "locked out" in hatdfed("ca", "deny", "edge-7", "--ca", ca)
    assert "edge-7" in open_identity_store(ca).deny_list
    assert "let in" in hatdfed("ca", "allow", "edge-7", "--ca", ca)
    assert "edge-7" not in open_identity_store(ca).deny_list


def test_a_folder_without_an_authority_is_a_sentence(hatdfed, tmp_path):
    with pytest.raises(HatdfedError, match="hatdfed ca init"):
        hatdfed("token", "create", "--node", "edge-7", "--ca", tmp_path)


@pytest.mark.parametrize("text", ["", "1", "h", "1.5h", "-1h", "1w", "1h30m"])
def test_a_time_that_is_none_is_refused(text):
    with pytest.raises(ConfigError, match="as in 30m or 1h"):
        parse_ttl(text)


@pytest.mark.parametrize("text", ["", "host", "host:", ":7443", "host:0", "host:99999", "a b:1", "host:1;rm", "::1:5"])
def test_an_address_that_is_none_is_refused(text):
    with pytest.raises(ConfigError, match="HOST:PORT"):
        split_address(text)


def test_identities_and_endpoints_load_no_torch_and_the_commands_no_cryptography():
    both = (
        "import hatdfed.deploy.identity.join_server, hatdfed.deploy.identity.join, hatdfed.deploy.transport.endpoints"
    )
    check = "import sys; assert not {'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", f"{both}; {check}"], check=True)
    light = "assert not {'torch', 'cryptography', 'grpc'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", f"import sys, hatdfed.cli.identity; {light}"], check=True)
