"""Models over connections that break off before one is through: they go on where they stopped, in both directions."""

import asyncio
import contextlib

import grpc
import pytest
from tests.deploy.deployment import Deployment, settings
from tests.deploy.processes import free_port

from hatdfed.deploy.coordinator.settings import DeploySettings
from hatdfed.deploy.edge.peer_service import PeerService
from hatdfed.deploy.edge.round_mailbox import RoundMailbox
from hatdfed_bench.bad_link import BadLink

WORLD = {"servers": 2, "rounds": 1, "network": "paper-cnn", "images_per_server": 8, "validation_images": 8}
QUICK = DeploySettings(beat_seconds=0.2, away_seconds=5.0, idle_seconds=2.0, round_seconds=30.0)
BAD = {"cut_after_bytes": 300_000, "bytes_per_second": 2e6}  # a model has about 526,000 bytes


@pytest.fixture
def at_once(monkeypatch):
    """A small model in many chunks, and retries that do not wait for long."""
    monkeypatch.setattr("hatdfed.deploy.transport.frames.CHUNK_BYTES", 16 * 1024)
    monkeypatch.setattr("hatdfed.deploy.transport.frames.PART_BYTES", 64 * 1024)
    monkeypatch.setattr("hatdfed.deploy.edge.peers.random.random", lambda: 0.0)


async def play_over_bad_links(folder, second):
    """One round of two edges whose connections to each other are cut early; its links and its ledger."""
    ports = [free_port(), free_port()]
    async with contextlib.AsyncExitStack() as stack:
        links = [await stack.enter_async_context(BadLink(("127.0.0.1", port), **BAD)) for port in ports]
        deployment = Deployment(folder, settings("full", **WORLD), QUICK, secure=False)
        await stack.enter_async_context(deployment)
        for number, (port, link) in enumerate(zip(ports, links, strict=True)):
            where = {"listen": f"127.0.0.1:{port}", "advertise": f"127.0.0.1:{link.port}"}
            edge = deployment.start_edge(f"edge-{number}", **{**where, **(second if number else {})})
            await deployment.until(lambda edge=edge: edge._handler is not None)
        await asyncio.wait_for(deployment.run, 20)
        records = deployment.process.folder.read()
        ledger = [row for row in records.records("ledger") if row["cause"] == "link"]
        return records.records("links"), ledger, sum(link.cuts for link in links)


@pytest.mark.parametrize("second", [{}, {"listen": ""}], ids=["both push", "one fetches"])
def test_models_arrive_over_connections_that_never_last_for_a_whole_one(play, tmp_path, one_thread, at_once, second):
    links, ledger, cuts = play(play_over_bad_links(tmp_path, second))
    assert cuts
    assert len(links) == 2
    assert all(link["delivered"] for link in links)
    once = [row["bits"] - row["bits_again"] for row in ledger]
    assert once[0] == pytest.approx(once[1])
    assert any(row["bits_again"] for row in ledger), "what was sent twice is counted"
    assert all(row["bits_again"] < 0.9 * bits for row, bits in zip(ledger, once, strict=True))


def test_a_peer_that_cannot_say_how_far_it_came_gets_the_whole_model_again(
    play, tmp_path, one_thread, at_once, monkeypatch
):
    async def do_not_know(self, request, context):
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")

    monkeypatch.setattr(PeerService, "HowFar", do_not_know)
    links, ledger, _ = play(play_over_bad_links(tmp_path, {}))
    assert not any(link["delivered"] for link in links)
    assert all(row["bits_again"] > 0 for row in ledger)


async def cut_during_the_check(folder, monkeypatch):
    """All connections break when the first model is complete, but not yet checked."""
    ports, checked = [free_port(), free_port()], []
    async with contextlib.AsyncExitStack() as stack:
        links = [await stack.enter_async_context(BadLink(("127.0.0.1", port))) for port in ports]

        async def check_late(*arguments):
            if not checked:
                checked.append(arguments)
                for link in links:
                    link.cut()
                await asyncio.sleep(0.3)
            return await check(*arguments)

        check = RoundMailbox.check
        monkeypatch.setattr(RoundMailbox, "check", check_late)
        deployment = Deployment(folder, settings("full", **WORLD), QUICK, secure=False)
        await stack.enter_async_context(deployment)
        for number, (port, link) in enumerate(zip(ports, links, strict=True)):
            where = {"listen": f"127.0.0.1:{port}", "advertise": f"127.0.0.1:{link.port}"}
            edge = deployment.start_edge(f"edge-{number}", **where)
            await deployment.until(lambda edge=edge: edge._handler is not None)
        await asyncio.wait_for(deployment.run, 20)
        records = deployment.process.folder.read()
        return int(checked[0][3]), records.records("links"), records.records("ledger")


def test_a_model_that_is_complete_is_not_sent_again_if_the_connection_breaks_before_it_is_checked(
    play, tmp_path, one_thread, at_once, monkeypatch
):
    sender, links, ledger = play(cut_during_the_check(tmp_path, monkeypatch))
    assert all(link["delivered"] for link in links)
    assert not any(row["bits_again"] for row in ledger if row["cause"] == "link" and row["sender"] == sender)
