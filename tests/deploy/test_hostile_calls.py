"""What the calls of one member can cost the coordinator and all others."""

import asyncio
import random
import threading
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import grpc
import numpy as np
import pytest
from tests.schedules.virtual_loop import VirtualLoop

from hatdfed.core.energy.energy_model import draw_prices
from hatdfed.core.links import LinkTable
from hatdfed.core.policies.base import certain
from hatdfed.core.round import SKETCH_SIZE, Presence, RoundPlan
from hatdfed.deploy.coordinator.edge_hub import EdgeHub
from hatdfed.deploy.coordinator.journal import Journal
from hatdfed.deploy.coordinator.quorum import QuorumWait
from hatdfed.deploy.coordinator.services import AccessControl, CoordinationService, RenewalLimit
from hatdfed.deploy.coordinator.settings import DeploySettings
from hatdfed.deploy.edge.order_handler import OrderHandler
from hatdfed.deploy.identity.certificates import make_csr, make_key
from hatdfed.deploy.identity.identity_store import create_identity_store
from hatdfed.deploy.identity.join_server import JoinServer
from hatdfed.deploy.identity.names import COORDINATOR, edge_id
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.deploy.protocol.hatdfed_pb2_grpc import (
    CoordinationServicer,
    CoordinationStub,
    PeerServicer,
    PeerStub,
    add_CoordinationServicer_to_server,
    add_PeerServicer_to_server,
)
from hatdfed.deploy.transport.endpoints import COORDINATOR_BYTES, PEER_BYTES, Caller, Endpoints
from hatdfed.deploy.transport.frames import PART_BYTES
from hatdfed.setup.layers import resolve
from hatdfed.version import __version__

MODEL = {"num_params": 10, "bits_per_sample": 8, "layout": "ab", "message_share": 1.0, "accuracy": 0.5}
PRICES = {
    "num_devices": 1,
    "samples_per_device": 1,
    "bits_per_sample": 8,
    "model_bits": 320,
    "weak_joules_per_sample": 1,
    "strong_joules_per_sample": 2,
    "device_kbit_per_joule": 1,
    "link_kbit_per_joule": (1, 2),
}


class Unread:
    """Very many entries that nobody should look at."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __iter__(self):
        raise AssertionError("the entries are read")


@pytest.fixture
def make_hub(tmp_path):
    """Makes hubs for three servers."""
    journals = []

    def make(**settings):
        journals.append(Journal(tmp_path / f"journal-{len(journals)}.sqlite"))
        return EdgeHub(journals[-1], DeploySettings(**settings), 3, epoch=1, next_round=0)

    yield make
    for journal in journals:
        journal.close()


def join(hub, name, address="", **prepared):
    """Join, Watch and Ready of one edge; returns the member and its orders."""
    member = hub.admit(name, address, name)
    orders = hub.open_orders(member)
    assert hub.mark_ready(member, pb.Prepared(epoch=1, **MODEL, **prepared)) is None
    return member, orders


def read(orders):
    """All orders in a queue."""
    return [orders.get_nowait() for _ in range(orders.qsize())]


@asynccontextmanager
async def round_of_all(hub):
    """A round with all links; yields its task."""
    links = LinkTable.all_of(3)
    plan = RoundPlan(
        0, certain(links, np.ones(len(links), dtype=bool)), Presence(np.ones(3, bool), np.ones(len(links), bool))
    )
    playing = asyncio.ensure_future(hub.play(plan, draw_prices(0, 3, **PRICES)))
    await asyncio.sleep(0)
    try:
        yield playing
    finally:
        while not playing.done():  # `wait_for` of Python 3.11 can swallow the first
            playing.cancel()
            await asyncio.sleep(0)


def report(server, **fields):
    """A report that is in order."""
    return pb.Outcome(epoch=1, accuracy=0.5, num_samples=1, slots=[pb.Slot(server=server, importance=1.0)], **fields)


class RefusedError(Exception):
    """How a call of this test ends that the coordinator refuses."""


class Call:
    """The context of a call in plain text."""

    def __init__(self, name):
        self.name = name

    def invocation_metadata(self):
        return (("user-agent", f"hatdfed-node/edge/{self.name}"),)

    async def abort(self, code, sentence):
        raise RefusedError(code, sentence)


def serve(hub, identity_store=None):
    return CoordinationService(
        hub, AccessControl(Endpoints(None), None, hub.count_refusal), "run", resolve({"servers": 3}), identity_store
    )


@pytest.mark.parametrize("field", ["slots", "sent", "refused"])
def test_a_report_that_is_too_long_is_refused_unread(play, make_hub, field):
    async def scene():
        hub = make_hub()
        for name in ("a", "b", "c"):
            join(hub, name)
        async with round_of_all(hub):
            numbers = {"round": 0, "accuracy": 0.5, "num_samples": 1, "devices_online": 1}
            empty = {"slots": [], "sent": [], "refused": {}, "refusals": [], "sketch": []}
            return hub.open_round.take(0, SimpleNamespace(**{**numbers, **empty, field: Unread(2_000_000)})).reason

    assert play(scene()) == "bad-report"


def test_more_answers_about_peers_than_there_are_members_are_refused_unread(make_hub):
    hub = make_hub()
    member, _ = join(hub, "a")
    for field in ("yes", "no", "lost"):
        found = SimpleNamespace(**{"round": 0, "yes": [], "no": [], "lost": [], field: Unread(2_000_000)})
        assert "more servers than there are" in hub.note_reachable(member, found)
    assert hub.refused_calls == {"too-long": 3}


def test_after_a_bad_report_no_further_one_of_the_round_is_read(play, make_hub):
    async def scene():
        hub = make_hub()
        (a, _), (b, to_b), _ = (join(hub, name) for name in ("a", "b", "c"))
        async with round_of_all(hub):
            read(to_b)
            answers = [hub.take_report(a, report(0, devices_online=-1)).reason for _ in range(3)]
            orders = read(to_b)
            good = [hub.take_report(b, report(1)) for _ in range(2)]
            return answers, orders, [(answer.accepted, answer.reason) for answer in good]

    answers, orders, good = play(scene())
    assert answers == ["bad-report", "duplicate", "duplicate"]
    assert [order.WhichOneof("what") for order in orders] == ["missing"], "its neighbours are told once"
    assert good == [(True, ""), (False, "duplicate")], "a report that is sent again after a lost answer does no harm"


def test_the_longest_report_of_a_thousand_servers_fits(make_hub):
    peers, scores = range(1000), {"loss": 0.1, "similarity": 0.1}
    longest = pb.Outcome(
        epoch=2**31,
        round=2**30,
        slots=[pb.Slot(server=peer, importance=0.1, scores=scores) for peer in peers],
        sent=[pb.Sent(receiver=peer, share=0.1, delivered=True, again=0.1) for peer in peers],
        refusals=[pb.Refusal(name="x" * 63, reason="not-a-neighbour", count=2**31) for _ in peers for _ in range(2)],
        sketch=[0.1] * SKETCH_SIZE,
    )
    assert COORDINATOR_BYTES / 4 < longest.ByteSize() < COORDINATOR_BYTES


class Listener(CoordinationServicer):
    async def Report(self, request, context):
        return pb.Received(accepted=True)


@pytest.mark.parametrize(
    ("size", "compression", "code"),
    [
        (100, grpc.Compression.Gzip, grpc.StatusCode.UNIMPLEMENTED),
        (100, grpc.Compression.Deflate, grpc.StatusCode.UNIMPLEMENTED),
        (COORDINATOR_BYTES + 1, None, grpc.StatusCode.RESOURCE_EXHAUSTED),
    ],
)
def test_compressed_and_very_long_messages_are_refused(play, size, compression, code):
    async def scene():
        own = Endpoints(None)
        server = own.make_server(message_bytes=COORDINATOR_BYTES)
        add_CoordinationServicer_to_server(Listener(), server)
        port = own.listen(server, "127.0.0.1:0")
        await server.start()
        async with Endpoints(None, edge_id("edge-0")).open_channel(f"127.0.0.1:{port}", COORDINATOR) as channel:
            call = CoordinationStub(channel).Report
            assert (await call(pb.Outcome())).accepted
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(pb.Outcome(sketch=[0.0] * (size // 4)), compression=compression)
        await server.stop(0)
        return caught.value.code()

    assert play(scene()) == code


async def charged_hops(hub, *, is_relayed):
    """The hops of what "b" has sent to "a", which lost its address and came back as relayed meanwhile."""
    join(hub, "a", "10.0.0.1:1", relayed=is_relayed)
    b, _ = join(hub, "b", relayed=is_relayed)
    c, _ = join(hub, "c", "10.0.0.3:1")
    async with round_of_all(hub) as playing:
        a, _ = join(hub, "a", relayed=True)
        assert hub.take_report(b, report(1, sent=[pb.Sent(receiver=0, share=1.0, delivered=True)])).accepted
        assert hub.take_report(a, report(0)).accepted
        assert hub.take_report(c, report(2)).accepted
        energy = (await playing).energy
    return [entry.hops for entry in energy if (entry.sender, entry.receiver) == (1, 0) and entry.joules]


@pytest.mark.parametrize("relay", [None, "relay-1@localhost:1"])
def test_a_member_that_joins_again_cannot_make_others_pay_for_a_relay(play, make_hub, relay):
    hub = make_hub(relay=relay)
    assert play(charged_hops(hub, is_relayed=relay is not None)) == [1]
    assert hub.membership.find("a").is_relayed is (relay is not None)


CALLS = {
    "Ready": pb.Prepared(epoch=1, **MODEL),
    "Reached": pb.Reachable(epoch=1),
    "Beat": pb.Pulse(epoch=1),
    "Report": pb.Outcome(epoch=1),
    "Final": pb.FinalFigures(epoch=1),
}


def test_a_drained_member_may_finish_its_round_and_is_refused_afterwards(play, make_hub):
    async def scene():
        hub = make_hub()
        service = serve(hub)
        member, *_ = (join(hub, name)[0] for name in ("a", "b", "c"))
        async with round_of_all(hub):
            hub.drain(member)
            await service.Beat(CALLS["Beat"], Call("a"))
            assert (await service.Report(report(0), Call("a"))).accepted
        for method, request in CALLS.items():
            with pytest.raises(RefusedError, match="drained"):
                await getattr(service, method)(request, Call("a"))
        with pytest.raises(RefusedError, match="drained"):
            await anext(service.Watch(pb.Watching(epoch=1), Call("a")))
        return hub.refused_calls

    assert play(scene()) == {"drained": 6}


def test_final_figures_count_only_if_they_were_asked_for(play, make_hub):
    hub = make_hub()
    (a, _), (b, orders), (c, _) = (join(hub, name) for name in ("a", "b", "c"))
    assert "not asked" in hub.take_final(a, pb.FinalFigures())
    play(hub.finish(0.0))
    hub.drain(a)
    hub.close_orders(b, orders)
    assert [bool(hub.take_final(member, pb.FinalFigures())) for member in (a, b, c)] == [True, True, False]
    assert list(hub.final) == [c.index]


async def answer_probes(hub, member, orders):
    """As an edge does: a peer that it cannot reach takes a while."""
    while True:
        order = await orders.get()
        peers = [peer.index for peer in order.probe.peers]
        hub.note_reachable(member, pb.Reachable(epoch=1, yes=[index for index in peers if index]))
        await asyncio.sleep(1.0 if 0 in peers else 0.0)
        hub.note_reachable(member, pb.Reachable(epoch=1, no=[index for index in peers if not index]))


async def leave_and_return(hub, orders):
    """Lose the connection and return late, at another address each time, while heartbeats go on."""
    for number in range(1, 1000):
        hub.close_orders(hub.membership.find("attacker"), orders)
        await asyncio.sleep(18.0)
        _, orders = join(hub, "attacker", f"10.0.0.{number}:1")
        await asyncio.sleep(0.5)


async def keep_alive(hub):
    while True:
        for member in hub.membership.members:
            hub.mark_seen(member)
        await asyncio.sleep(1.0)


def test_a_member_that_returns_again_and_again_delays_a_round_only_once(make_hub, monkeypatch):
    loop = VirtualLoop(random.Random(0))  # noqa: S311 (the same schedule each time)
    monkeypatch.setattr("time.monotonic", loop.time)

    async def scene():
        hub = make_hub(round_seconds=600.0, away_seconds=20.0, idle_seconds=10.0)
        _, orders = join(hub, "attacker", "10.0.0.0:1")
        tasks = [asyncio.ensure_future(keep_alive(hub))]
        tasks += [asyncio.ensure_future(answer_probes(hub, *join(hub, name, "10.0.1.1:1"))) for name in ("b", "c")]
        quorum = QuorumWait(hub)
        await quorum.wait()
        began = loop.time()
        tasks.append(asyncio.ensure_future(leave_and_return(hub, orders)))
        await asyncio.sleep(0)
        presence = await quorum.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return loop.time() - began, presence.active.sum()

    seconds, active = loop.run_until_complete(scene())
    loop.close()
    assert seconds < 31.0
    assert active >= 2


def test_a_member_cannot_make_others_dial_many_addresses(play, make_hub, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])

    async def scene():
        hub = make_hub()
        service = serve(hub)
        _, orders = join(hub, "honest", "10.0.0.1:1")
        reasons = []
        for number in range(10):
            try:
                await service.Join(pb.Hello(protocol=1, version=__version__, address=f"10.0.1.{number}:1"), Call("a"))
            except RefusedError as error:
                reasons.append(error.args)
            hub.mark_ready(hub.membership.find("a"), CALLS["Ready"])
        return hub, service, orders, reasons

    hub, service, orders, reasons = play(scene())
    assert len(read(orders)) == 2, "for its first address and for one other"
    assert (
        reasons == [(grpc.StatusCode.ALREADY_EXISTS, "a has just changed its address; it may do so again in 5.0 s")] * 8
    )
    assert hub.refused_calls == {"moved-too-soon": 8}
    now[0] += 5.0
    play(service.Join(pb.Hello(protocol=1, version=__version__, address="10.0.2.1:1"), Call("a")))
    assert hub.membership.find("a").address == "10.0.2.1:1"


class SlowPeers:
    """Peers of which one answers when it is told to."""

    def __init__(self):
        self.may_answer = asyncio.Event()
        self.probed = []

    async def probe(self, peers):
        self.probed.append([peer.address for peer in peers])
        await self.may_answer.wait()
        return [peer.index for peer in peers], []


def test_an_edge_probes_in_one_task_and_the_newest_address_of_a_peer(play):
    async def scene():
        peers, answers = SlowPeers(), []

        async def call(method, request):
            answers.append(list(request.yes))

        handler = OrderHandler(None, None, None, peers, SimpleNamespace(epoch=1, call=call), None)
        for number in range(100):
            probe = pb.ProbeOrder(
                peers=[pb.Neighbour(index=1, address=f"there:{number}"), pb.Neighbour(index=number + 2)]
            )
            await handler.handle(pb.Order(epoch=1, probe=probe))
            await asyncio.sleep(0)
        before = len(peers.probed)
        peers.may_answer.set()
        await handler._probing
        return before, peers.probed, answers

    before, probed, answers = play(scene())
    assert before == 1
    assert [address for batch in probed for address in batch if address] == ["there:0", "there:99"]
    assert sorted(index for answer in answers for index in answer) == sorted([1, *range(1, 102)]), "all are answered"


def test_a_certificate_is_renewed_when_it_is_due_and_not_all_the_time(play, make_hub, tmp_path):
    async def scene():
        hub, store = make_hub(), create_identity_store(tmp_path / "ca")
        service, request = serve(hub, store), pb.SigningRequest(csr=make_csr(make_key()))
        join(hub, "a")
        assert (await service.Renew(request, Call("a"))).certificate
        for _ in range(3):
            with pytest.raises(RefusedError, match="has just renewed"):
                await service.Renew(request, Call("a"))
        assert (await service.Renew(request, Call("b"))).certificate
        return hub.refused_calls

    assert play(scene()) == {"renewed-too-soon": 3}


def test_a_renewal_whose_answer_was_lost_is_repeated_after_a_pause():
    limit, due = RenewalLimit(timedelta(days=30)), datetime(2026, 1, 21, tzinfo=UTC)
    caller = Caller(edge_id("a"), due + timedelta(days=10), due)
    assert "not due for renewal before 2026-01-21" in limit.find_refusal(caller, due - timedelta(seconds=1))
    assert limit.find_refusal(caller, due) is None
    assert "may do so again" in limit.find_refusal(caller, due + timedelta(seconds=59))
    assert limit.find_refusal(caller, due + timedelta(seconds=60)) is None
    assert limit.find_refusal(caller, due) is None, "the clock was set back"


def test_joining_does_not_wait_for_other_work_in_threads(play, tmp_path):
    async def scene():
        store, done = create_identity_store(tmp_path / "ca"), threading.Event()
        token = store.tokens.create("edge-1", timedelta(hours=1))
        busy = [asyncio.ensure_future(asyncio.to_thread(done.wait)) for _ in range(64)]
        try:
            async with JoinServer(store, host="127.0.0.1", port=0) as server:
                answer = server._run_off_loop(store.enroll, token, make_csr(make_key()))
                return (await asyncio.wait_for(answer, 1.5)).node
        finally:
            done.set()
            await asyncio.gather(*busy)

    assert play(scene()) == edge_id("edge-1")


class OneModel(PeerServicer):
    """Sends frames of one length, and takes those of others."""

    def __init__(self, size):
        self.size, self.open = size, 0

    async def Push(self, stream, context):
        self.open += 1
        async for _ in stream:
            pass
        return pb.Received(accepted=True)

    async def Pull(self, request, context):
        yield pb.Frame(chunk=bytes(self.size))


@asynccontextmanager
async def peer_with_frames_of(size):
    own, servicer = Endpoints(None), OneModel(size)
    server = own.make_server()
    add_PeerServicer_to_server(servicer, server)
    port = own.listen(server, "127.0.0.1:0")
    await server.start()
    async with Endpoints(None, edge_id("a")).open_channel(f"127.0.0.1:{port}", edge_id("b")) as channel:
        yield PeerStub(channel), servicer
    await server.stop(0)


def test_chunks_and_the_header_of_a_large_model_fit_between_edges_and_longer_frames_do_not(play):
    parts = 36 * 1024 - 64
    header = pb.Parcel(run="x" * 64, size=parts * PART_BYTES, digest=bytes(32), part_digests=bytes(32 * parts))
    good = [pb.Frame(parcel=header), pb.Frame(chunk=bytes(1024 * 1024))]

    async def scene():
        async with peer_with_frames_of(1024 * 1024) as (stub, _):
            assert (await stub.Push(iter(good))).accepted
            assert [len(frame.chunk) async for frame in stub.Pull(pb.Wanted())] == [1024 * 1024]
            with pytest.raises(grpc.aio.AioRpcError, match="RESOURCE_EXHAUSTED"):
                await stub.Push(iter([pb.Frame(chunk=bytes(PEER_BYTES + 1))]))
        async with peer_with_frames_of(PEER_BYTES + 1) as (stub, _):
            with pytest.raises(grpc.aio.AioRpcError, match="RESOURCE_EXHAUSTED"):
                await anext(aiter(stub.Pull(pb.Wanted())))

    play(scene())


def test_a_connection_has_few_calls_at_a_time(play):
    async def never():
        yield pb.Frame(chunk=b"x")
        await asyncio.Event().wait()

    async def scene():
        async with peer_with_frames_of(1) as (stub, servicer):
            assert (await stub.Push(iter([]))).accepted  # connected: the caller knows the limit
            calls = [stub.Push(never()) for _ in range(40)]
            while servicer.open < 17:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            for call in calls:
                call.cancel()
            return servicer.open - 1

    assert play(scene()) == 16
