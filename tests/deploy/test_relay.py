"""Edges that nobody can dial: their models go through a relay, which can read none of them."""

import asyncio
import contextlib
import json
import ssl

import pytest
from tests.deploy.deployment import QUICK, Deployment, settings

from hatdfed.deploy.identity.certificates import make_csr, make_key
from hatdfed.deploy.identity.files import IdentityFolder
from hatdfed.deploy.identity.identity_store import create_identity_store
from hatdfed.deploy.identity.names import edge_id, relay_id
from hatdfed.deploy.relay import relay as relay_module
from hatdfed.deploy.relay.relay import Relay
from hatdfed.deploy.relay.relay_client import RelayClient
from hatdfed.deploy.relay.wire import make_client_context
from hatdfed.deploy.transport.endpoints import Endpoints
from hatdfed.server.message import MAGIC


def make_identity(store, folder, node):
    key, found = make_key(), IdentityFolder(folder)
    found.save(key, store.authority.sign(make_csr(key), node), store.authority.pem)
    return found


@pytest.fixture
def overheard(monkeypatch):
    """Everything that the relay passes on."""
    found = bytearray()
    splice = relay_module.splice

    async def listen_in(one, other, count):
        for reader, _ in (one, other):
            read = reader.read

            async def note(count, read=read):
                data = await read(count)
                found.extend(data)
                return data

            reader.read = note
        return await splice(one, other, count)

    monkeypatch.setattr(relay_module, "splice", listen_in)
    return found


async def play_through_a_relay(folder, *, secure):
    async with contextlib.AsyncExitStack() as stack:
        deployment = Deployment(folder, settings("full", rounds=2), QUICK, secure=secure)
        store = deployment.identity_store
        relay = Relay(make_identity(store, folder / "relay", relay_id("relay-1")) if secure else None)
        port = await stack.enter_async_context(relay.serve("127.0.0.1", 0))
        deployment.quick = QUICK.model_copy(update={"relay": f"relay-1@127.0.0.1:{port}"})
        await stack.enter_async_context(deployment)
        await deployment.start_edges(3, listen="")
        await asyncio.wait_for(deployment.run, 30)
        records = deployment.process.folder.read()
        return records.records("links"), records.records("ledger"), relay.passed_bytes


@pytest.mark.parametrize("secure", [True, False], ids=["certificates", "plain text"])
def test_edges_that_nobody_can_dial_exchange_their_models(play, tmp_path, one_thread, overheard, secure):
    links, ledger, passed = play(play_through_a_relay(tmp_path, secure=secure))
    assert len(links) == 2 * 6
    assert all(link["delivered"] for link in links)
    assert len(overheard) >= passed > 12 * 50_000, "every model went through the relay"
    assert (MAGIC in overheard) is not secure
    sent = [row for row in ledger if row["cause"] == "link"]
    assert {row["hops"] for row in sent} == {2}
    assert all(row["bits"] > 2 * 8 * 50_000 for row in sent), "both hops are paid for"


async def knock(folder):
    ours, theirs = create_identity_store(folder / "ours"), create_identity_store(folder / "theirs")
    relay = Relay(make_identity(ours, folder / "relay", relay_id("relay-1")))
    found = {}
    async with relay.serve("127.0.0.1", 0) as port:

        async def say(line, identity=None, authority=None):
            context = None
            if identity is not None:
                context = make_client_context(identity)
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
                writer.write(line + b"\n")
                answer = await asyncio.wait_for(reader.readline(), 10)
                writer.close()
            except OSError as error:
                return type(error).__name__
            return answer.decode().strip()

        hello = json.dumps({"protocol": 1, "name": "edge-1"}).encode()
        member = make_identity(ours, folder / "edge-1", edge_id("edge-1"))
        found["member"] = await say(hello, member)
        found["other name"] = await say(hello.replace(b"edge-1", b"edge-2"), member)
        found["other deployment"] = await say(hello, make_identity(theirs, folder / "edge-3", edge_id("edge-1")))
        found["other role"] = await say(hello, make_identity(ours, folder / "edge-4", relay_id("edge-1")))
        found["plain text"] = await say(hello)
        found["no session"] = await say(b"HATDFED-RELAY " + b"0" * 64)
    return found


def test_a_relay_serves_members_only(play, tmp_path):
    found = play(knock(tmp_path))
    assert json.loads(found.pop("member")) == {"beat": True}
    assert not any("beat" in answer for answer in found.values())


async def come_and_go(folder):
    """A relay that is not there at first, and dies later."""
    relay, endpoints = Relay(None), Endpoints(None, edge_id("edge-1"))
    async with relay.serve("127.0.0.1", 0) as port:
        pass
    client = RelayClient(endpoints, relay_id("relay-1"), ("127.0.0.1", port))
    client.start()
    seen = [await client.wait_until_registered(0.2)]
    async with Relay(None).serve("127.0.0.1", port):
        seen.append(await client.wait_until_registered(5.0))
    async with asyncio.timeout(5):
        while client.is_registered:
            await asyncio.sleep(0.02)
    seen.append(client.is_registered)
    await client.close()
    return seen


def test_an_edge_registers_as_soon_as_the_relay_is_there_and_knows_when_it_is_gone(play, tmp_path):
    assert play(come_and_go(tmp_path)) == [False, True, False]
