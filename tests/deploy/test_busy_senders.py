"""Members that send and fetch more than they should: nobody else is delayed, and what is reported stays possible."""

import asyncio
from types import SimpleNamespace

import pytest
from tests.deploy.deployment import settings

from hatdfed.data.datasets import load_dataset
from hatdfed.deploy.edge.peer_service import PeerService
from hatdfed.deploy.edge.round_mailbox import RoundMailbox
from hatdfed.deploy.edge.transfers import Incoming
from hatdfed.deploy.identity.names import edge_id
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.deploy.transport.endpoints import Caller
from hatdfed.deploy.transport.frames import MAX_SENDS, IncomingMessage, describe_message, split_into_frames
from hatdfed.errors import WireError
from hatdfed.server.exchange import Limits, MessageContext, pack_offer_parts
from hatdfed.server.program import Offer
from hatdfed.setup.build.program import make_program

HOSTILE, HONEST = 1, 2
NAMES = {HOSTILE: "edge-1", HONEST: "edge-2"}


class Callers:
    """Everybody is who the context says."""

    def identify(self, context, *roles):
        return Caller(edge_id(context.name), None)

    def check(self, caller):
        """Nobody is locked out."""

    def checked(self, stream, caller):
        return stream


class Context:
    def __init__(self, name):
        self.name, self.read = name, 0

    async def write(self, frame):
        self.read += len(frame.chunk)
        await asyncio.sleep(0)

    async def abort(self, code, sentence):
        raise WireError(code.name, sentence)


class Edge:
    """Server 0 in the middle of round 3, with two neighbours."""

    def __init__(self):
        config = settings("full", codec="float32", network="linear")
        program = make_program(config, load_dataset(config.dataset, options=config.dataset_options))
        self.model = program.start(0).params
        limits = Limits(program.learner.num_params, 1e6)
        self.mailbox = RoundMailbox("run", "float32", 0, program, limits, Incoming(5.0))
        self.service = PeerService(Callers(), self.mailbox, 5.0, lambda: [bytes(1000)])

    async def begin(self):
        both = [pb.Neighbour(index=index, name=name) for index, name in NAMES.items()]
        await self.mailbox.begin(pb.RoundOrder(round=3, seconds=60.0, senders=both, receivers=both))
        await self.mailbox.offer(Offer({"model": self.model}, 10, 1.0))

    def pack(self, sender, first=0.0):
        model = self.model.clone()
        model[0] = first
        context = MessageContext("run", "float32")
        return describe_message(pack_offer_parts(Offer({"model": model}, 10, 1.0), context, t=3, sender=sender))

    async def push(self, sender, packed, *, offset=0):
        header = packed.make_header("run", 3, sender, offset=offset)
        return await self.service.Push(stream(split_into_frames(header, packed.parts)), Context(NAMES[sender]))

    async def pull(self, receiver, t=3):
        try:
            await self.service.Pull(pb.Wanted(run="run", round=t, confirms=True), Context(NAMES[receiver]))
        except WireError as error:
            return str(error)
        return ""


async def stream(frames):
    for frame in frames:
        yield frame
        await asyncio.sleep(0)


@pytest.fixture
def edge():
    return Edge()


@pytest.fixture
def slow_checks(monkeypatch):
    """Checks that last until the gate is opened, and their senders."""
    found = SimpleNamespace(senders=[], gate=asyncio.Event())
    check = RoundMailbox.check

    async def slow(mailbox, data, t, sender):
        found.senders.append(sender)
        await found.gate.wait()
        return await check(mailbox, data, t, sender)

    monkeypatch.setattr(RoundMailbox, "check", slow)
    return found


def test_a_receiver_that_fetches_many_times_at_once_gets_no_more_than_its_share(edge):
    async def fetch_often():
        await edge.begin()
        sentences = await asyncio.gather(*(edge.pull(HOSTILE) for _ in range(8)))
        return sentences, edge.mailbox.sent[HOSTILE].sent.share

    sentences, share = asyncio.run(fetch_often())
    assert share <= MAX_SENDS * (1 + 1e-9), "what a coordinator believes"
    assert sum("too often" in sentence for sentence in sentences) >= 8 - MAX_SENDS


def test_one_sender_has_one_message_in_memory_whatever_it_sends(edge, slow_checks):
    async def flood():
        await edge.begin()
        first = asyncio.ensure_future(edge.push(HOSTILE, edge.pack(HOSTILE)))
        while not slow_checks.senders:
            await asyncio.sleep(0)
        others = [await edge.push(HOSTILE, edge.pack(HOSTILE, number)) for number in range(1, 6)]
        return others, len(edge.mailbox.incoming._messages), first

    async def whole():
        others, messages, first = await flood()
        honest = asyncio.ensure_future(edge.push(HONEST, edge.pack(HONEST)))
        await asyncio.sleep(0.01)
        slow_checks.gate.set()
        return others, messages, (await honest).accepted, await first

    others, messages, honest, first = asyncio.run(whole())
    assert {answer.reason for answer in others} == {"duplicate"}
    assert (messages, honest) == (1, True)
    assert slow_checks.senders == [HOSTILE, HONEST], "one check each"
    assert first.reason == "replaced"
    assert set(edge.mailbox.received) == {HOSTILE, HONEST}, "a check goes on without its connection"


def test_a_connection_that_is_replaced_waits_for_the_check_of_the_same_message(edge, slow_checks):
    async def reconnect():
        await edge.begin()
        packed = edge.pack(HOSTILE)
        first = asyncio.ensure_future(edge.push(HOSTILE, packed))
        while not slow_checks.senders:
            await asyncio.sleep(0)
        second = asyncio.ensure_future(edge.push(HOSTILE, packed, offset=packed.size))
        await asyncio.sleep(0.01)
        slow_checks.gate.set()
        return await first, await second

    first, second = asyncio.run(reconnect())
    assert (first.reason, second.accepted) == ("replaced", True)
    assert slow_checks.senders == [HOSTILE]


def test_a_sender_of_bad_models_has_so_many_attempts_and_no_more(edge):
    async def try_often():
        await edge.begin()
        bad = edge.pack(HOSTILE, float("nan"))
        return [(await edge.push(HOSTILE, bad)).reason for _ in range(20)]

    reasons = asyncio.run(try_often())
    assert reasons == ["not-finite"] * 16 + ["spent"] * 4


def test_nothing_is_checked_after_the_round_has_ended(edge, slow_checks):
    async def close():
        await edge.begin()
        hostile = asyncio.ensure_future(edge.push(HOSTILE, edge.pack(HOSTILE)))
        honest = asyncio.ensure_future(edge.push(HONEST, edge.pack(HONEST)))
        while not slow_checks.senders:
            await asyncio.sleep(0)
        await edge.mailbox.close()
        slow_checks.gate.set()
        return {(await each).reason for each in (hostile, honest)}

    assert asyncio.run(close()) == {"late"}
    assert len(slow_checks.senders) == 1


@pytest.mark.parametrize(
    "header",
    [{"part_bytes": 1, "part_digests": bytes(32_000)}, {"part_digests": bytes(10**6)}],
    ids=["many small parts", "digests of nothing"],
)
def test_a_header_that_is_long_is_refused_before_it_waits_for_its_round(edge, header):
    async def push():
        await edge.begin()
        frame = pb.Frame(parcel=pb.Parcel(run="run", round=4, sender=1, size=1000, **header))
        return await asyncio.wait_for(edge.service.Push(stream([frame]), Context("edge-1")), 1.0)

    assert asyncio.run(push()).reason == "bad-header"


def test_a_sender_has_one_push_that_waits_for_its_round(edge):
    async def wait():
        await edge.begin()
        parcel = pb.Parcel(run="run", round=4, sender=1, size=1000)
        waiting = [
            asyncio.ensure_future(edge.service.Push(stream([pb.Frame(parcel=parcel)]), Context("edge-1")))
            for _ in range(5)
        ]
        await asyncio.sleep(0.02)
        still = sum(not each.done() for each in waiting)
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        return still

    assert asyncio.run(wait()) == 1


def test_fetching_a_round_frees_no_place_among_those_who_copy_the_current_model(edge, monkeypatch):
    gate = asyncio.Event()

    async def copy():
        await edge.begin()
        write = Context.write

        async def held(self, frame):
            await gate.wait()
            await write(self, frame)

        monkeypatch.setattr(Context, "write", held)
        first = asyncio.ensure_future(edge.pull(HOSTILE, t=-1))
        await asyncio.sleep(0.05)
        fetching = asyncio.ensure_future(edge.pull(HOSTILE))
        fetching.cancel()
        await asyncio.gather(fetching, return_exceptions=True)
        again = await edge.pull(HOSTILE, t=-1)
        gate.set()
        return again, await first

    again, first = asyncio.run(copy())
    assert "has to wait" in again
    assert first == ""


def test_a_message_is_only_removed_by_its_own_check():
    incoming = Incoming(5.0)
    old, new = (IncomingMessage(pb.Parcel(size=10), 100) for _ in range(2))
    incoming._messages[1] = new
    incoming.take(1, old)
    assert incoming.find(1) is new
