"""Hostile members and strangers at a relay, and a hostile relay."""

import asyncio
import contextlib
import json
import socket

import pytest

from hatdfed.deploy.identity.deny import DenyList
from hatdfed.deploy.identity.names import edge_id, relay_id
from hatdfed.deploy.relay import relay as relay_module
from hatdfed.deploy.relay import relay_client, wire
from hatdfed.deploy.relay.relay import Relay
from hatdfed.deploy.relay.relay_client import RelayClient
from hatdfed.deploy.transport.endpoints import Endpoints

HOST = "127.0.0.1"
SOON = 1.0  # seconds


class Connections:
    """A relay in plain text, and connections to it, all of which are closed at the end."""

    def __init__(self, denied=()):
        self.relay = Relay(None, denied)
        self.opened = []

    async def __aenter__(self):
        self.serving = self.relay.serve(HOST, 0)
        self.port = await self.serving.__aenter__()
        return self

    async def __aexit__(self, *error):
        for _, writer in self.opened:
            writer.transport.abort()
        await self.serving.__aexit__(*error)

    async def connect(self, line):
        streams = await asyncio.open_connection(HOST, self.port)
        self.opened.append(streams)
        streams[1].write(line + b"\n")
        return streams

    async def register(self, name):
        """Wait at the relay; returns the control connection."""
        streams = await self.connect(json.dumps({"protocol": 1, "name": name}).encode())
        assert await receive(streams) == {"beat": True}
        return streams

    async def open_session(self, name):
        return await self.connect(wire.SESSION_START + name.encode())


async def receive(streams):
    return json.loads(await asyncio.wait_for(streams[0].readline(), SOON))


async def call(streams, callee):
    """Ask for a session; returns the relay's answer."""
    streams[1].write(json.dumps({"ask": "call", "to": callee, "id": 1}).encode() + b"\n")
    while "id" not in (message := await receive(streams)):
        pass
    return message


def test_control_connections_of_one_member_keep_nobody_out(play, monkeypatch):
    monkeypatch.setattr(relay_module, "_MAX_CONNECTIONS", 8)

    async def attack():
        async with Connections() as there:
            held = [await there.register("attacker") for _ in range(8)]
            await there.register("honest")
            assert await call(held[-1], "nobody")
            return there.relay.waiting, [await asyncio.wait_for(reader.read(), SOON) for reader, _ in held[:-1]]

    waiting, rest = play(attack())
    assert waiting == ["attacker", "honest"]
    assert rest == [b""] * 7, "the newest connection replaces those before it"


@pytest.mark.parametrize("limit", ["_MAX_SESSIONS", "_MAX_SESSIONS_TO_ONE", "_RESERVED"])
def test_sessions_of_one_member_leave_connections_to_others(play, monkeypatch, limit):
    monkeypatch.setattr(relay_module, "_MAX_CONNECTIONS", 16)
    monkeypatch.setattr(relay_module, "_RESERVED", 4, raising=False)
    monkeypatch.setattr(relay_module, limit, 11 if limit == "_RESERVED" else 2, raising=False)

    async def attack():
        async with Connections() as there:
            attacker, answers = await there.register("attacker"), []
            for _ in range(8):
                answers.append(await call(attacker, "attacker"))
                for _ in range(2 if "session" in answers[-1] else 0):
                    await there.open_session(answers[-1]["session"])
            await there.register("honest")
            return ["session" in answer for answer in answers]

    assert play(attack()) == [True] * 2 + [False] * 6


def test_a_session_that_passes_nothing_ends(play, monkeypatch):
    monkeypatch.setattr(wire, "_IDLE_SECONDS", 0.05, raising=False)

    async def idle():
        async with Connections() as there:
            member = await there.register("member")
            session = (await call(member, "member"))["session"]
            one, other = [await there.open_session(session) for _ in range(2)]
            one[1].write(b"something")
            return await asyncio.wait_for(other[0].read(), SOON), await asyncio.wait_for(one[0].read(), SOON)

    assert play(idle()) == (b"something", b"")


def test_a_denied_member_cannot_use_a_relay_from_the_next_sign_of_life_on(play, tmp_path):
    deny_list = DenyList(tmp_path / "denied.txt")

    async def deny():
        async with Connections(deny_list) as there:
            member = await there.register("member")
            assert await call(member, "member")
            deny_list.add("member")
            member[1].write(b'{"beat": true}\n')
            rest = await asyncio.wait_for(member[0].read(), SOON)
            again = await there.connect(b'{"protocol": 1, "name": "member"}')
            return rest, await asyncio.wait_for(again[0].read(), SOON), there.relay.waiting

    assert play(deny()) == (b"", b"", [])


def test_a_stranger_whose_line_does_not_end_causes_no_traceback(play, caplog):
    async def attack():
        async with Connections() as there:
            reader, _ = await there.connect(b"H" * 200_000)
            with contextlib.suppress(ConnectionError):
                await asyncio.wait_for(reader.read(), SOON)

    play(attack())
    assert not caplog.records


async def fill(streams, there, name):
    """Leave answers unread until the relay cannot send any more to this edge."""
    streams[1].transport.pause_reading()
    writer = there.relay._waiting[name].writer
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    streams[1].get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    lines = (json.dumps({"ask": "call", "to": "nobody", "id": "x" * 900}).encode() + b"\n") * 64
    async with asyncio.timeout(SOON):
        while writer.transport.get_write_buffer_size() <= 64 * 1024:
            if not streams[1].transport.get_write_buffer_size():
                streams[1].write(lines)
            await asyncio.sleep(0)


def test_an_edge_that_does_not_read_blocks_nobody_who_calls_it(play, monkeypatch):
    monkeypatch.setattr(wire, "_MAX_UNREAD_BYTES", 1024, raising=False)  # the system may still take some of the rest

    async def attack():
        async with Connections() as there:
            attacker, honest = await there.register("attacker"), await there.register("honest")
            await there.register("good")
            await fill(attacker, there, "attacker")
            return await call(honest, "attacker"), await call(honest, "good"), there.relay.waiting

    refused, answered, waiting = play(attack())
    assert refused == {"id": 1, "error": "it does not wait at the relay"}
    assert "session" in answered
    assert waiting == ["good", "honest"]


def test_an_edge_that_does_not_read_its_own_answers_is_disconnected(play, monkeypatch):
    monkeypatch.setattr(wire, "SILENT_SECONDS", 0.1)

    async def attack():
        async with Connections() as there:
            await fill(await there.register("attacker"), there, "attacker")
            async with asyncio.timeout(SOON):
                while there.relay.waiting:
                    await asyncio.sleep(0.01)

    play(attack())


async def make_pair():
    """A connection whose ends are both here."""
    return [await asyncio.open_connection(sock=end) for end in socket.socketpair()]


def test_a_side_that_does_not_read_cannot_keep_the_connection_of_a_session_that_has_ended(play, monkeypatch):
    monkeypatch.setattr(wire, "_FLUSH_SECONDS", 0.05, raising=False)

    async def end():
        (sender, near), (silent, far) = await make_pair(), await make_pair()
        silent[1].transport.pause_reading()
        splicing = asyncio.ensure_future(wire.splice(near, far))
        sender[1].write(bytes(4 << 20))
        while not far[1].transport.get_write_buffer_size():
            await asyncio.sleep(0)
        silent[1].write_eof()
        await asyncio.wait_for(splicing, SOON)
        await asyncio.sleep(0)
        is_open = far[1].get_extra_info("socket").fileno() != -1
        for _, writer in (sender, silent, far):
            writer.transport.abort()
        return is_open

    assert not play(end())


@contextlib.asynccontextmanager
async def meet(hostile):
    """An edge whose relay serves connections by `hostile`."""
    opened = []

    async def serve(reader, writer):
        opened.append(writer)
        await hostile(reader, writer)

    server = await asyncio.start_server(serve, HOST, 0)
    endpoints, address = Endpoints(None, edge_id("edge-1")), server.sockets[0].getsockname()
    client = RelayClient(endpoints, relay_id("relay-1"), address, frozenset({"edge-9"}))
    path = client.listen_address.removeprefix("unix:")
    own = await asyncio.start_unix_server(lambda _, writer: opened.append(writer), path)
    try:
        yield client
    finally:
        await client.close()
        own.close()
        server.close()
        for writer in opened:
            writer.transport.abort()
        await asyncio.sleep(0.01)  # until handlers have noticed


@pytest.mark.parametrize(
    "line",
    [
        b'{"id": []}',
        b'{"id": {}, "session": "x"}',
        b'{"call": "x", "from": []}',
        b'{"call": [], "from": "x"}',
        b'{"call": "\\ud800", "from": "\\ud800"}',
        b"[]",
        b"x" * 5000,
    ],
)
def test_an_edge_stays_with_a_relay_that_sends_nonsense(play, monkeypatch, line):
    monkeypatch.setattr(relay_client.random, "random", lambda: -0.25)  # it connects again at once
    connected = asyncio.Queue()

    async def confuse(reader, writer):
        if not (first := await reader.readline()).startswith(wire.SESSION_START):
            connected.put_nowait(first)
            writer.write(b'{"beat": true}\n' + line + b"\n")
        writer.close()

    async def stay():
        async with meet(confuse) as client:
            client.start()
            for _ in range(3):
                assert b"edge-1" in await asyncio.wait_for(connected.get(), SOON)

    play(stay())


def test_a_relay_cannot_start_calls_without_bound(play, monkeypatch):
    monkeypatch.setattr(relay_client, "_MAX_ANSWERING", 4, raising=False)
    sessions = []

    async def announce(reader, writer):
        first = await reader.readline()
        if first.startswith(wire.SESSION_START):
            sessions.append(writer)
            return
        writer.write(b'{"beat": true}\n' + b'{"call": "x", "from": "edge-2"}\n' * 40)

    async def answer():
        async with meet(announce) as client:
            client.start()
            await client.wait_until_registered(SOON)
            async with asyncio.timeout(SOON):
                while len(sessions) < 4:
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)
            return len(sessions), len(client._tasks)

    assert play(answer()) == (4, 5)
