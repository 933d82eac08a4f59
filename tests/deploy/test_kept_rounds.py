"""An edge that is killed in the middle of a round goes on with it: nothing is trained, sent or received twice."""

import asyncio
from collections import Counter

import pytest
from tests.deploy.deployment import Deployment, settings
from tests.deploy.gates import Gate
from tests.deploy.processes import free_port

from hatdfed.deploy.coordinator.settings import DeploySettings
from hatdfed.deploy.edge.open_round_files import OpenRoundFiles
from hatdfed.deploy.edge.round_runner import RoundRunner
from hatdfed.deploy.edge.transfers import SendRecord
from hatdfed.deploy.protocol import hatdfed_pb2 as pb

QUICK = DeploySettings(beat_seconds=0.1, away_seconds=10.0, idle_seconds=2.0, round_seconds=60.0)


@pytest.fixture
def trainings(monkeypatch):
    """How often each server trained in each round."""
    found = Counter()
    train = RoundRunner._train

    def count(self, work, t):
        found[self._mailbox.index, t] += 1
        return train(self, work, t)

    monkeypatch.setattr(RoundRunner, "_train", count)
    monkeypatch.setattr("hatdfed.deploy.edge.round_runner._KEEP_SECONDS", 0.05)
    return found


async def kill_in_the_middle(folder):
    """Edge 2 has trained, has sent its model to edge 1 and has that of edge 1, but not that of edge 0."""
    gate, place = Gate(1), f"127.0.0.1:{free_port()}"
    async with Deployment(folder, settings("full", rounds=2), QUICK, secure=False) as deployment:
        for number in range(3):
            more = {0: {"make_setup": gate}, 2: {"listen": place}}.get(number, {})
            edge = deployment.start_edge(f"edge-{number}", **more)
            await deployment.until(lambda edge=edge: edge._handler is not None)
        await deployment.until(lambda: gate.is_reached(1))
        mailbox, files = edge._handler.mailbox, folder / "stores" / "edge-2" / "open-round"
        await deployment.until(lambda: mailbox.order.round == 1 and 1 in mailbox.received and 1 in mailbox.delivered)
        await deployment.until((files / "trained.safetensors").exists)
        await asyncio.sleep(0.2)
        await deployment.kill_edge("edge-2")
        edge = deployment.start_edge("edge-2", listen=place)
        await deployment.until(lambda: edge._handler is not None and edge._handler.mailbox.order is not None)
        gate.open()
        await asyncio.wait_for(deployment.run, 30)
        records = deployment.process.folder.read()
        return records.records("links"), [row for row in records.records("ledger") if row["cause"] == "link"], files


def test_a_killed_edge_neither_trains_nor_sends_again(play, tmp_path, one_thread, eager, trainings):
    links, ledger, files = play(kill_in_the_middle(tmp_path))
    assert set(trainings.values()) == {1}
    assert len(trainings) == 6
    delivered = {(row["t"], row["receiver"], row["sender"]) for row in links if row["delivered"]}
    assert {(1, 2, 1), (1, 1, 2), (1, 2, 0), (1, 0, 2)} <= delivered
    again = {(row["t"], row["receiver"], row["sender"]) for row in ledger if row["bits_again"]}
    assert again <= {(1, 0, 2)}, "what had not arrived when it was killed"
    assert not files.exists()


def test_files_of_another_round_are_deleted_and_damaged_ones_not_used(tmp_path):
    files = OpenRoundFiles(tmp_path / "open-round")
    assert not files.begin("run", 3).is_resumed
    files.keep_received(1, b"message")
    files.keep_sent({2: SendRecord(pb.Sent(receiver=2, share=0.5, delivered=True), 77)})
    (files.folder / "trained.safetensors").write_bytes(b"damaged")
    kept = files.begin("run", 3)
    assert (kept.is_resumed, kept.trained, list(kept.received)) == (True, None, [1])
    assert (kept.sent[2].sent.share, kept.sent[2].reached) == (0.5, 77)
    (files.folder / "sent.json").write_text("[[1, 2, 3]]")
    assert files.begin("run", 3).sent == {}
    assert not files.begin("run", 4).received
    assert not files.begin("other", 4).is_resumed
