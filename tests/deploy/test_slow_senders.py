"""A member that sends its model drop by drop, over as many streams as it likes: nobody waits for it."""

import asyncio
import time

import grpc
from tests.deploy.deployment import Deployment, settings
from tests.deploy.hostile import HostileMember

from hatdfed.deploy.coordinator.settings import DeploySettings
from hatdfed.deploy.identity.names import EDGE_ROLE, NodeId
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.deploy.protocol.hatdfed_pb2_grpc import PeerStub

QUICK = DeploySettings(beat_seconds=0.2, away_seconds=2.0, idle_seconds=0.5, round_seconds=60.0)
STREAMS = 5
SIZE = 50_000


async def drip(member, receiver, t):
    """One stream of single bytes, faster than a stream may stop."""

    async def frames():
        yield pb.Frame(parcel=pb.Parcel(run=member.welcome.run, round=t, sender=member.welcome.index, size=SIZE))
        while True:
            await asyncio.sleep(0.05)
            yield pb.Frame(chunk=b"x")

    async with member.endpoints.open_channel(receiver.address, NodeId(EDGE_ROLE, receiver.name)) as channel:
        try:
            answer = await PeerStub(channel).Push(frames(), timeout=50)
        except grpc.aio.AioRpcError as error:
            return error.code().name
        return answer.reason


async def play_with_drips(folder):
    """Seconds of one round in which a member drips to everybody; its links and what the drips were told."""
    dripping = []

    async def attack(member, order):
        dripping.extend(
            asyncio.ensure_future(drip(member, receiver, order.round))
            for receiver in order.receivers
            for _ in range(STREAMS)
        )
        while not all(task.done() for task in dripping):  # as long as it seems to be busy, its model is waited for
            await member.stub.Beat(pb.Pulse(epoch=member.welcome.epoch, round=order.round))
            await asyncio.sleep(0.1)
        await member.stub.Report(member.outcome(order.round))

    async with Deployment(folder, settings("full", servers=3, rounds=1), QUICK, secure=False) as deployment:
        await deployment.start_edges(2)
        hostile = asyncio.ensure_future(HostileMember(deployment, "hostile", attack).serve())
        await deployment.until(lambda: dripping)
        began = time.monotonic()
        await deployment.run
        seconds = time.monotonic() - began
        reasons = await asyncio.gather(*dripping)
        hostile.cancel()
        await asyncio.gather(hostile, return_exceptions=True)
        links = {
            (row["receiver"], row["sender"])
            for row in deployment.process.folder.read().records("links")
            if row["delivered"]
        }
        return seconds, links, reasons


def test_five_dripping_streams_delay_no_round(play, tmp_path, one_thread):
    seconds, links, reasons = play(play_with_drips(tmp_path))
    assert seconds < 8, "with little to spare for a busy machine; a round may take 60"
    assert {(0, 1), (1, 0)} <= links
    assert set(reasons) <= {"slow", "replaced", "late"}
