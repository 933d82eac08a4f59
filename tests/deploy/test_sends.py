"""How often a model may be sent to one receiver in a round: what a budget of joules reckons with."""

import asyncio
from types import SimpleNamespace

import pytest

from hatdfed.deploy.coordinator.durable import DurableCoordinator
from hatdfed.deploy.coordinator.membership import Manifest
from hatdfed.deploy.edge.peer_service import PeerService
from hatdfed.deploy.edge.round_mailbox import RoundMailbox
from hatdfed.deploy.edge.transfers import Incoming
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.deploy.transport.frames import MAX_SENDS
from hatdfed.errors import WireError
from hatdfed.server.exchange import Limits
from hatdfed.setup.layers import resolve


@pytest.fixture
def mailbox(monkeypatch):
    monkeypatch.setattr("hatdfed.deploy.edge.round_mailbox.pack_offer_parts", lambda *_, **__: [b"x" * 1000])
    monkeypatch.setattr("hatdfed.deploy.edge.round_mailbox.payload_bits", lambda payload: 32.0 * 250)
    offer = SimpleNamespace(payload=None)
    learner = SimpleNamespace(num_params=1000)
    limits = Limits(learner.num_params, 1e9)
    found = RoundMailbox("run", "float32", 0, SimpleNamespace(learner=learner), limits, Incoming(5.0))
    found.whole = offer
    return found


async def send(mailbox, *attempts):
    """Each attempt sends the bytes from the first number to the second; what is reported after all of them."""
    await mailbox.begin(pb.RoundOrder(round=3, seconds=5.0))
    await mailbox.offer(mailbox.whole)
    for first, last in attempts:
        outgoing = await mailbox.make_message(1, 3, mailbox.until)
        place = first
        for frame in outgoing.make_frames(first):
            place += len(frame.chunk)
            if place >= last:
                break
    return mailbox.sent[1].sent


def test_a_model_that_went_out_twice_is_not_sent_again(mailbox):
    sent = asyncio.run(send(mailbox, (0, 1001), (0, 1001)))
    assert (sent.share, sent.again) == (pytest.approx(MAX_SENDS * 0.25), pytest.approx(0.25))
    with pytest.raises(WireError, match="too often"):
        asyncio.run(send(mailbox, *[(0, 1001)] * (MAX_SENDS + 1)))


def test_one_that_breaks_off_and_goes_on_is_sent_as_often_as_it_takes(mailbox):
    sent = asyncio.run(send(mailbox, *((place, 1001) for place in (0, 900, 900, 900, 950))))
    assert sent.share == pytest.approx(0.25 * 1.35)
    assert sent.again == pytest.approx(0.25 * 0.35)


def test_the_coordinator_of_a_deployment_reckons_with_that():
    config = resolve({"servers": 4, "schedule": {"budget_joules": 100.0}})
    manifest = Manifest(num_params=10, bits_per_sample=8, layout="", message_share=0.5)
    coordinator = DurableCoordinator(config, manifest, None, None).for_servers(4)
    assert (coordinator.policy.attempts, coordinator.policy.message_share) == (MAX_SENDS, 0.5)
    assert coordinator.message_share == 0.5


def test_two_transfers_to_one_receiver_at_the_same_time_are_both_counted(mailbox):
    """A retry may begin before the transfer that failed has ended."""

    async def overlap():
        await mailbox.begin(pb.RoundOrder(round=3, seconds=5.0))
        await mailbox.offer(mailbox.whole)
        first, second = [await mailbox.make_message(1, 3, mailbox.until) for _ in range(2)]
        frames = first.make_frames(0), second.make_frames(0)
        for pair in zip(*frames, strict=True):
            assert len(pair) == 2
        return mailbox.sent[1].sent.share

    assert asyncio.run(overlap()) == pytest.approx(2 * 0.25)


class _Reader:
    """A call whose round ends after the first chunk."""

    def __init__(self, mailbox):
        self.mailbox, self.read = mailbox, 0

    async def write(self, frame):
        self.read += len(frame.chunk)
        if frame.chunk:
            await self.mailbox.close()


def test_nothing_is_sent_after_a_round_has_ended_since_it_would_be_in_no_report(mailbox, monkeypatch):
    parts = [b"x" * 500, b"y" * 500]
    monkeypatch.setattr("hatdfed.deploy.edge.round_mailbox.pack_offer_parts", lambda *_, **__: parts)
    callers = SimpleNamespace(check=lambda caller: None)
    service = PeerService(callers, mailbox, 1.0, list)
    reader = _Reader(mailbox)

    async def fetch():
        await mailbox.begin(pb.RoundOrder(round=3, seconds=5.0))
        await mailbox.offer(mailbox.whole)
        outgoing = await mailbox.make_message(1, 3, mailbox.until)
        with pytest.raises(WireError, match="ended"):
            await service._write_frames(outgoing, 0, None, reader)
        return reader.read, outgoing.sent.share

    assert asyncio.run(fetch()) == pytest.approx((500, 0.125))
