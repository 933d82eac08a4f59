"""Connections that are open already: who is denied or whose certificate expires can do nothing more over them."""

import asyncio
import logging
import time
from datetime import UTC, datetime, timedelta

import grpc
import pytest
from tests.deploy.deployment import QUICK, Deployment, settings
from tests.deploy.test_refusals import Slow

from hatdfed.deploy.coordinator.services import PROTOCOL
from hatdfed.deploy.edge.peer_service import PeerService
from hatdfed.deploy.edge.peers import Peers
from hatdfed.deploy.edge.setup import pack_model
from hatdfed.deploy.identity.certificates import make_csr, make_key
from hatdfed.deploy.identity.deny import DeniedPeers, compute_digest
from hatdfed.deploy.identity.files import IdentityFolder
from hatdfed.deploy.identity.names import COORDINATOR, EDGE_ROLE, NodeId, edge_id
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.deploy.protocol.hatdfed_pb2_grpc import CoordinationStub, PeerStub
from hatdfed.deploy.transport.callers import CallerCheck
from hatdfed.deploy.transport.endpoints import Caller, Endpoints
from hatdfed.errors import IdentityError

DENIED, EXPIRED = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED
HOUR = timedelta(hours=1)
LIFETIME = timedelta(seconds=4)  # of a certificate that expires: a busy machine must connect within it


def member(deployment, name, lifetime=HOUR):
    """The endpoints of a member that does what it likes."""
    key, folder = make_key(), IdentityFolder(deployment.folder / name)
    authority = deployment.identity_store.authority
    folder.save(key, authority.sign(make_csr(key), edge_id(name), lifetime), authority.pem)
    return Endpoints(folder, edge_id(name))


async def code_of(call):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code()


async def expired_at_the_coordinator(folder):
    async with Deployment(folder, settings()) as deployment:
        short = member(deployment, "edge-9", LIFETIME)
        async with short.open_channel(f"127.0.0.1:{deployment.port}", COORDINATOR) as channel:
            stub = CoordinationStub(channel)
            welcome = await stub.Join(pb.Hello(protocol=PROTOCOL))
            watch = stub.Watch(pb.Watching(epoch=welcome.epoch))
            await watch.initial_metadata()
            ended = await code_of(asyncio.wait_for(anext(aiter(watch)), 2 * LIFETIME.total_seconds()))
            renewed = await code_of(stub.Renew(pb.SigningRequest(csr=make_csr(make_key()))))
            beat = await code_of(stub.Beat(pb.Pulse(epoch=welcome.epoch)))
            return ended, renewed, beat


def test_an_expired_member_neither_reads_orders_nor_renews_over_an_open_connection(play, tmp_path):
    assert play(expired_at_the_coordinator(tmp_path)) == (EXPIRED, EXPIRED, EXPIRED)


async def denied_at_the_coordinator(folder):
    async with Deployment(folder, settings()) as deployment:
        address = f"127.0.0.1:{deployment.port}"
        async with member(deployment, "edge-9").open_channel(address, COORDINATOR) as channel:
            stub = CoordinationStub(channel)
            welcome = await stub.Join(pb.Hello(protocol=PROTOCOL))
            watch = stub.Watch(pb.Watching(epoch=welcome.epoch))
            await watch.initial_metadata()
            deployment.identity_store.deny_list.add("edge-9")
            ended = await code_of(asyncio.wait_for(anext(aiter(watch)), 5))
            renewed = await code_of(stub.Renew(pb.SigningRequest(csr=make_csr(make_key()))))
            (server,) = deployment.status["servers"]
            return ended, renewed, server["active"], server["doing"]


def test_a_denied_member_that_only_listens_loses_its_stream_of_orders_at_once(play, tmp_path):
    found = play(denied_at_the_coordinator(tmp_path))
    assert found == (DENIED, DENIED, False, "edge-9 is on the deny-list.")


async def denied_at_a_peer(folder):
    """A denied member asks a peer for its model, over a connection that it has had all along."""
    async with Deployment(folder, settings(rounds=500)) as deployment:
        await deployment.start_edges(3, make_setup=Slow())
        await deployment.until(lambda: deployment.status["round"] > 0)
        target = deployment.status["servers"][0]
        wanted = pb.Wanted(run=deployment.status["run"], round=-1)
        outsider = member(deployment, "edge-9")
        async with outsider.open_channel(target["address"], NodeId(EDGE_ROLE, target["name"])) as channel:
            stub = PeerStub(channel)
            before = len([frame async for frame in stub.Pull(wanted)])
            deployment.identity_store.deny_list.add("edge-9")
            denied = deployment.edges[target["name"]]._denied
            began = time.monotonic()
            await deployment.until(lambda: "edge-9" in denied, 5)
            told = time.monotonic() - began
            pulled = await code_of(anext(aiter(stub.Pull(wanted))))
            pushed = await stub.Push([pb.Frame(parcel=pb.Parcel(run=wanted.run, size=1))])
            probed = await code_of(stub.Probe(pb.Nothing()))
        deployment.identity_store.deny_list.remove("edge-9")
        await deployment.until(lambda: "edge-9" not in denied, 5)
        return before, told, pulled, pushed.reason, probed


def test_peers_know_the_deny_list_within_seconds_and_give_nothing_more(play, tmp_path, one_thread):
    before, told, pulled, pushed, probed = play(denied_at_a_peer(tmp_path))
    assert before > 1
    assert told < 5 * QUICK.beat_seconds
    assert (pulled, pushed, probed) == (grpc.StatusCode.FAILED_PRECONDITION, "denied", DENIED)


async def expired_at_a_peer(folder):
    async with Deployment(folder, settings(rounds=500)) as deployment:
        await deployment.start_edges(3, make_setup=Slow())
        await deployment.until(lambda: deployment.status["round"] > 0)
        target = deployment.status["servers"][0]
        wanted = pb.Wanted(run=deployment.status["run"], round=-1)
        outsider = member(deployment, "edge-9", LIFETIME)
        async with outsider.open_channel(target["address"], NodeId(EDGE_ROLE, target["name"])) as channel:
            await PeerStub(channel).Probe(pb.Nothing())
            await asyncio.sleep(LIFETIME.total_seconds() + 0.5)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await anext(aiter(PeerStub(channel).Pull(wanted)))
            return caught.value.details()


def test_an_expired_member_pulls_nothing_from_a_peer_over_an_open_connection(play, tmp_path, one_thread):
    assert "edge-9 expired at" in play(expired_at_a_peer(tmp_path))


# Long streams.


class Always:
    """Endpoints that take everybody for the same caller."""

    def __init__(self, expires=None):
        self._caller = Caller(edge_id("edge-9"), expires)

    def identify_caller(self, context):
        return self._caller


def test_a_stream_ends_for_a_caller_that_is_denied_or_expires_meanwhile(play):
    async def passed(check, stop):
        async def frames():
            yield 1
            await stop()
            yield 2

        stream = check.checked(frames(), check.identify(None, EDGE_ROLE))
        assert await anext(stream) == 1
        with pytest.raises(IdentityError) as caught:
            await anext(stream)
        return caught.value.reason

    denied = DeniedPeers()

    async def deny():
        denied.update(pb.DenyList(digest="x", names=["edge-9"]))

    soon = datetime.now(UTC) + timedelta(seconds=0.2)
    assert play(passed(CallerCheck(Always(soon)), lambda: asyncio.sleep(0.3))) == "expired"
    assert play(passed(CallerCheck(Always(), denied), deny)) == "denied"


class EndedError(Exception):
    pass


class Context:
    """A receiver that is denied after its first frame."""

    def __init__(self, denied):
        self.denied, self.written = denied, 0

    async def write(self, frame):
        self.written += 1
        self.denied.update(pb.DenyList(digest="x", names=["edge-9"]))

    async def abort(self, code, sentence):
        raise EndedError(sentence)


async def denied_in_the_middle(folder):
    denied = DeniedPeers()
    async with Deployment(folder, settings(), secure=False) as deployment:
        (edge,) = await deployment.start_edges(1)
        mailbox, runner = edge._handler.mailbox, edge._handler.runner
        check, context = CallerCheck(Always(), denied), Context(denied)
        service = PeerService(check, mailbox, 1.0, lambda: pack_model(runner.server, mailbox))
        with pytest.raises(EndedError, match="deny-list"):
            await service.Pull(pb.Wanted(run=mailbox.run, round=-1), context)
        return context.written, mailbox.refused["denied"]


def test_a_transfer_in_progress_ends_when_the_receiver_is_denied(play, tmp_path, one_thread):
    assert play(denied_in_the_middle(tmp_path)) == (1, 1)


def test_nothing_more_is_sent_to_a_peer_that_is_denied(play):
    denied = DeniedPeers()
    peers = Peers(Endpoints(None), None, 1.0, denied)
    frames = peers._unless_denied("edge-9", (pb.Frame() for _ in range(3)))
    next(frames)
    denied.update(pb.DenyList(digest="x", names=["edge-9"]))
    assert list(frames) == []
    with pytest.raises(IdentityError, match="deny-list"):
        peers._stub(pb.Neighbour(name="edge-9", address="127.0.0.1:1"))


def test_lists_that_differ_have_different_digests():
    assert compute_digest([]) == DeniedPeers().digest == ""
    assert compute_digest(["b", "a"]) == compute_digest(["a", "b"]) != compute_digest(["a"])


# The age of connections.


async def aged(folder, rounds):
    async with Deployment(folder, settings("full", rounds=rounds), connection_seconds=0.8) as deployment:
        await deployment.start_edges(3, make_setup=Slow())
        edge = deployment.edges["edge-0"]
        await deployment.until(lambda: edge._link._channel is not None)
        channels = set()
        while not deployment.run.done():
            channels.add(edge._link._channel)
            await asyncio.sleep(0.05)
        summary = await deployment.run
        return summary, channels, deployment.process.folder.read().records("links")


def test_connections_are_replaced_when_they_are_old_and_nothing_is_lost(play, tmp_path, one_thread, caplog):
    caplog.set_level(logging.INFO)
    summary, channels, links = play(aged(tmp_path, 6))
    assert len(channels) > 2
    assert summary["notes"] == []
    assert len(links) == 6 * 6
    assert all(row["delivered"] for row in links)
    assert caplog.text.count(" is ready as server ") == 3, "nobody joined again"
    assert "the coordinator is away" not in caplog.text
