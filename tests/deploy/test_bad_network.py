"""Eight edges that nobody can dial, over slow links that are cut again and again: the small form of a benchmark.

`benchmarks/bad_network.py` plays it with processes, a model of 200 MB and a cut every minute.
"""

import asyncio
import contextlib

import pytest
from tests.deploy.deployment import Deployment, settings
from torch import nn

from hatdfed.deploy.coordinator.settings import DeploySettings
from hatdfed.deploy.relay.relay import Relay
from hatdfed.server.networks import NETWORKS
from hatdfed_bench.bad_link import BadLink

EDGES = 8
QUICK = DeploySettings(beat_seconds=0.3, away_seconds=10.0, idle_seconds=3.0, round_seconds=60.0, min_servers=EDGES)
WORLD = {"servers": EDGES, "rounds": 2, "network": "wide", "images_per_server": 8, "validation_images": 8}


async def cut_in_turn(links, seconds):
    """Each link once in so many seconds."""
    while True:
        for link in links:
            await asyncio.sleep(seconds / len(links))
            link.cut()


async def play_over_bad_links(folder):
    async with contextlib.AsyncExitStack() as stack:
        port = await stack.enter_async_context(Relay(None).serve("127.0.0.1", 0))
        deployment = Deployment(folder, settings("one-peer-exponential", **WORLD), QUICK, secure=False)
        deployment.quick = QUICK.model_copy(update={"relay": f"relay-1@127.0.0.1:{port}"})
        await stack.enter_async_context(deployment)
        links = []
        for number in range(EDGES):
            link = BadLink(("127.0.0.1", port), bytes_per_second=4e6)
            links.append(await stack.enter_async_context(link))
            edge = deployment.start_edge(f"edge-{number}", listen="", relay=f"127.0.0.1:{link.port}")
            await deployment.until(lambda edge=edge: edge._handler is not None)
        cutting = asyncio.ensure_future(cut_in_turn(links, 6.0))
        await asyncio.wait_for(deployment.run, 50)
        cutting.cancel()
        records = deployment.process.folder.read()
        return records.records("links"), records.records("ledger"), sum(link.cuts for link in links)


@pytest.fixture
def wide_network(monkeypatch):
    """A model of 4 MB: one that fits into the buffers on its way would be lost as a whole at every cut."""

    def wide(shape, classes):
        inputs = shape[0] * shape[1] * shape[2]
        return nn.Sequential(
            nn.Flatten(), nn.Linear(inputs, 1000), nn.ReLU(), nn.Linear(1000, 1000), nn.Linear(1000, classes)
        )

    monkeypatch.setitem(NETWORKS.built_in, "wide", wide)


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr("hatdfed.deploy.transport.frames.CHUNK_BYTES", 16 * 1024)
    monkeypatch.setattr("hatdfed.deploy.transport.frames.PART_BYTES", 64 * 1024)


def test_every_model_arrives_over_links_that_are_cut_again_and_again(
    play, tmp_path, one_thread, wide_network, small_chunks, eager
):
    links, ledger, cuts = play(play_over_bad_links(tmp_path))
    assert cuts > EDGES
    assert len(links) == 2 * EDGES, "one incoming link a server"
    assert all(link["delivered"] for link in links)
    sent = [row for row in ledger if row["cause"] == "link"]
    assert {row["hops"] for row in sent} == {2}
    assert sum(row["joules"] for row in sent) > 0
