"""Strangers who open many connections and leave them idle: nobody else notices, and nothing runs out."""

import asyncio
import resource
import socket
import threading

import pytest
from tests.deploy.deployment import QUICK, Deployment, settings
from tests.deploy.strangers import HOST, Drip, authority_at

from hatdfed.deploy.coordinator.process import CoordinatorOptions, CoordinatorProcess
from hatdfed.deploy.identity.identity_store import IdentityStore, create_identity_store
from hatdfed.deploy.identity.join import ask_join_server, make_verified_context
from hatdfed.deploy.identity.join_server import JoinServer
from hatdfed.deploy.identity.names import COORDINATOR
from hatdfed.deploy.monitoring.metrics import COORDINATOR_METRICS, FiguresCollector
from hatdfed.deploy.monitoring.server import serve_metrics
from hatdfed.deploy.transport import endpoints
from hatdfed.deploy.transport.endpoints import Endpoints
from hatdfed.errors import ConfigError, IdentityError


@pytest.fixture
def identity_store(tmp_path):
    return create_identity_store(tmp_path / "ca")


def handshake_within(monkeypatch, milliseconds):
    """The same settings with less patience."""
    name = "grpc.server_handshake_timeout_ms"
    assert dict(endpoints._SERVER)[name] <= 10_000
    rest = [option for option in endpoints._SERVER if option[0] != name]
    monkeypatch.setattr(endpoints, "_SERVER", [*rest, (name, milliseconds)])


@pytest.fixture(autouse=True)
def little_grace(monkeypatch):
    monkeypatch.setattr("hatdfed.deploy.transport.connection_limit._GRACE_SECONDS", 0.2)


@pytest.mark.parametrize(("secure", "first"), [(True, b"\x16\x03\x01"), (False, b"PRI * HTTP/2")], ids=["tls", "plain"])
def test_a_handshake_that_does_not_end_is_given_up(play, identity_store, monkeypatch, secure, first):
    handshake_within(monkeypatch, 500)

    async def scene():
        own = Endpoints(identity_store.identity if secure else None)
        server = own.make_server()
        port = own.listen(server, f"{HOST}:0")
        await server.start()
        async with Drip(port, 20, bytes_of=first) as drip, own.open_channel(f"{HOST}:{port}", COORDINATOR) as channel:
            await drip.gone()
            await asyncio.wait_for(channel.channel_ready(), 5)
        await server.stop(0)

    play(scene())


def test_strangers_cannot_use_up_the_files_of_a_process(play, identity_store, monkeypatch):
    monkeypatch.setattr(endpoints.resource, "getrlimit", lambda which: (100, 100))

    async def scene():
        own = Endpoints(identity_store.identity)
        server = own.make_server()
        port = own.listen(server, f"{HOST}:0")
        await server.start()
        async with Drip(port, 40) as drip:
            await drip.gone(left=16)
            left = drip.alive
        await server.stop(0)
        return left

    assert play(scene()) == 16


@pytest.mark.parametrize(
    ("limits", "expected"),
    [((1024, 4096), (4096, 4096)), ((1024, resource.RLIM_INFINITY), (65536, resource.RLIM_INFINITY)), ((64, 64), None)],
)
def test_the_limit_of_open_files_is_raised_as_far_as_it_goes(monkeypatch, limits, expected):
    wanted = []
    monkeypatch.setattr(endpoints.resource, "getrlimit", lambda which: limits)
    monkeypatch.setattr(endpoints.resource, "setrlimit", lambda which, pair: wanted.append(pair))
    endpoints.raise_file_limit()
    assert wanted == ([] if expected is None else [expected])


def test_idle_callers_at_the_join_server_keep_nobody_from_joining(play, identity_store, caplog):
    async def scene():
        async with JoinServer(identity_store, host=HOST, port=0) as join_server, Drip(join_server.port, 64) as drip:
            for _ in range(3):
                async with asyncio.timeout(2):
                    assert (await authority_at(join_server.port, identity_store))["ca"]
            await drip.gone(left=32)
            return join_server.refusals["crowded"]

    assert play(scene()) >= 32
    lines = [record.getMessage() for record in caplog.records if record.name == "hatdfed.deploy.identity.join_server"]
    assert len(lines) == 1, "one line for all of them"
    assert "that asked for nothing: 1, the last from 127.0.0.1 [crowded]" in lines[0]


def test_many_in_earnest_at_once_are_all_served(play, identity_store, monkeypatch):
    async def scene():
        async with JoinServer(identity_store, host=HOST, port=0, max_connections=4) as join_server:
            await asyncio.gather(*(authority_at(join_server.port, identity_store) for _ in range(40)))
            return join_server.refusals

    monkeypatch.setattr("hatdfed.deploy.transport.connection_limit._GRACE_SECONDS", 5.0)
    assert not play(scene())


def test_the_address_that_has_most_places_gives_way(play, identity_store):
    async def scene():
        async with JoinServer(identity_store, host=HOST, port=0, max_connections=4) as join_server:
            reader, patient = await asyncio.open_connection(HOST, join_server.port, local_addr=("127.0.0.2", 0))
            async with Drip(join_server.port, 30) as drip:
                await drip.gone(left=3)
                patient_is_there = not reader.at_eof()
            patient.transport.abort()
            return patient_is_there

    assert play(scene())


def test_a_caller_whose_token_is_being_used_is_not_pushed_out(play, identity_store, monkeypatch):
    begun, go_on = threading.Event(), threading.Event()

    def slow(*_):
        begun.set()
        go_on.wait(10)
        raise IdentityError("the-end", "It was not pushed out.")

    monkeypatch.setattr(IdentityStore, "enroll", slow)
    request = {"ask": "enroll", "token": "t", "csr": "x"}

    async def scene():
        async with JoinServer(identity_store, host=HOST, port=0, max_connections=2) as join_server:
            asking = asyncio.ensure_future(
                ask_join_server(HOST, join_server.port, make_verified_context(identity_store.authority.pem), request)
            )
            await asyncio.to_thread(begun.wait)
            async with Drip(join_server.port, 5) as drip:
                await drip.gone(left=1)
                go_on.set()
                return await asking

    assert play(scene())["word"] == "the-end"


async def crowded_coordinator(folder):
    async with Deployment(folder, settings(), join_address=(HOST, 0)) as deployment:
        async with Drip(deployment.join_address[1], 40) as drip:
            await drip.gone(left=32)
        return deployment.status["refused"]


def test_what_the_join_server_refused_is_in_the_status(play, tmp_path):
    assert play(crowded_coordinator(tmp_path))["desk-crowded"] == 8


def serve_refusals():
    figures = {"hatdfed_round": 1, "hatdfed_refused_total": {("desk-crowded",): 5}}
    return serve_metrics(HOST, 0, FiguresCollector(COORDINATOR_METRICS, lambda: figures))


async def asked(port, line=b"GET /metrics HTTP/1.1"):
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(line + b"\r\nHost: x\r\n\r\n")
    try:
        return (await asyncio.wait_for(reader.read(), 2)).decode()
    finally:
        writer.transport.abort()


def test_idle_callers_at_the_metrics_keep_nobody_from_reading_them(play):
    async def scene():
        async with serve_refusals() as port, Drip(port, 60, bytes_of=b"GET /") as drip:
            found = await asked(port)
            await drip.gone(left=16)
            return found

    found = play(scene())
    head, _, body = found.partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 200 OK\r\n")
    assert f"Content-Length: {len(body)}" in head
    assert 'hatdfed_refused_total{reason="desk-crowded"} 5.0' in body


def test_an_idle_caller_at_the_metrics_is_disconnected(play, monkeypatch):
    monkeypatch.setattr("hatdfed.deploy.monitoring.server._SECONDS", 0.3)

    async def scene():
        async with serve_refusals() as port, Drip(port, 3, bytes_of=b"GET /") as drip:
            await drip.gone(seconds=3)

    play(scene())


@pytest.mark.parametrize(
    ("line", "status"),
    [(b"POST /metrics HTTP/1.1", "405"), (b"GET /other HTTP/1.1", "404"), (b"\xff", "405"), (b"GET", "404")],
)
def test_what_is_no_question_for_metrics_is_answered_in_one_line(play, caplog, line, status):
    async def scene():
        async with serve_refusals() as port:
            return await asked(port, line)

    assert play(scene()).startswith(f"HTTP/1.1 {status} ")
    assert not caplog.records


def test_a_port_for_metrics_that_is_taken_is_named(play, tmp_path):
    with socket.create_server((HOST, 0)) as taken:
        where = (HOST, taken.getsockname()[1])
        options = CoordinatorOptions(tmp_path / "run", f"{HOST}:0", Endpoints(None), metrics=where)
        with pytest.raises(ConfigError, match=f"Metrics cannot be served at {HOST}:{where[1]}"):
            play(CoordinatorProcess(settings(), QUICK, options).serve())
