"""How often a model may be sent to one receiver in a round: what a budget of joules reckons with."""

import asyncio
from types import SimpleNamespace

import pytest

from hatdfed.deploy.coordinator.durable import DurableCoordinator
from hatdfed.deploy.coordinator.orders import Manifest
from hatdfed.deploy.edge.round_mailbox import RoundMailbox
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.deploy.transport.frames import MAX_SENDS
from hatdfed.errors import WireError
from hatdfed.setup.layers import resolve


@pytest.fixture
def mailbox(monkeypatch):
    monkeypatch.setattr("hatdfed.deploy.edge.round_mailbox.pack_offer_parts", lambda *_, **__: [b"x" * 1000])
    monkeypatch.setattr("hatdfed.deploy.edge.round_mailbox.payload_bits", lambda payload: 32.0 * 250)
    offer = SimpleNamespace(payload=None)
    learner = SimpleNamespace(num_params=1000)
    found = RoundMailbox("run", "float32", 0, SimpleNamespace(learner=learner))
    found.whole = offer
    return found


async def send(mailbox, times, part=1.0):
    await mailbox.begin(pb.RoundOrder(round=3, seconds=5.0))
    await mailbox.offer(mailbox.whole)
    for _ in range(times):
        outgoing = await mailbox.make_message(1, 3, mailbox.until)
        outgoing.sent.share += part * outgoing.share
    return mailbox.sent[1].share


def test_a_model_that_went_out_twice_is_not_sent_again(mailbox):
    assert asyncio.run(send(mailbox, MAX_SENDS)) == pytest.approx(MAX_SENDS * 0.25)
    with pytest.raises(WireError, match="too often"):
        asyncio.run(send(mailbox, MAX_SENDS + 1))


def test_nor_one_that_broke_off_so_often_that_another_would_be_too_much(mailbox):
    assert asyncio.run(send(mailbox, 2, part=0.5)) == pytest.approx(0.25)
    with pytest.raises(WireError, match="too often"):
        asyncio.run(send(mailbox, 4, part=0.6))


def test_the_coordinator_of_a_deployment_reckons_with_that():
    config = resolve({"servers": 4, "schedule": {"budget_joules": 100.0}})
    manifest = Manifest(num_params=10, bits_per_sample=8, layout="", message_share=0.5)
    coordinator = DurableCoordinator(config, manifest, None, None).for_servers(4)
    assert (coordinator.policy.attempts, coordinator.policy.message_share) == (MAX_SENDS, 0.5)
    assert coordinator.message_share == 0.5
