"""A quorum instead of everybody: rounds begin without servers that are not there, and drained ones may come back."""

import asyncio
import logging

import pytest
from tests.deploy.deployment import QUICK, Deployment, settings
from tests.deploy.gates import Gate
from typer.testing import CliRunner

from hatdfed.cli import operate
from hatdfed.cli.app import app
from hatdfed.deploy.coordinator.settings import DeploySettings
from hatdfed.deploy.identity.names import COORDINATOR
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.deploy.protocol.hatdfed_pb2_grpc import OperationStub
from hatdfed.deploy.transport.endpoints import Endpoints

MAJORITY = QUICK.model_copy(update={"min_servers": None, "away_seconds": 1.0, "beat_seconds": 0.1})


async def one_dies(folder):
    gate = Gate(1)
    async with Deployment(folder, settings("full", rounds=4), MAJORITY) as deployment:
        await deployment.start_edges(3, make_setup=gate)
        await deployment.until(lambda: gate.is_reached(1))
        await deployment.kill_edge("edge-2")
        gate.open()
        summary = await asyncio.wait_for(deployment.run, 20)
        return summary, deployment.process.folder.read().records("servers"), deployment.status["quorum"]


def test_a_run_goes_on_when_one_edge_of_three_dies(play, tmp_path, one_thread, caplog):
    caplog.set_level(logging.INFO)
    summary, servers, quorum = play(one_dies(tmp_path))
    assert summary["rounds"] == 4
    assert quorum == 2
    assert "a round needs at least 2 of 3 servers" in caplog.text
    assert {row["server"] for row in servers if row["t"] == 0} == {0, 1, 2}
    assert {row["server"] for row in servers if row["t"] == 3} == {0, 1}


async def late_start(folder, gather_seconds, comes):
    quick = MAJORITY.model_copy(update={"gather_seconds": gather_seconds})
    async with Deployment(folder, settings("full", rounds=2), quick) as deployment:
        await deployment.start_edges(2)
        await deployment.until(lambda: deployment.active == 2)
        await deployment.until(lambda: "before the first round" in deployment.status["waits_for"])
        told = deployment.status
        if comes:
            deployment.start_edge("edge-2")
        await asyncio.wait_for(deployment.run, 20)
        servers = deployment.process.folder.read().records("servers")
        return told, [sum(row["t"] == t for row in servers) for t in range(2)]


def test_the_first_round_waits_for_everybody(play, tmp_path, one_thread):
    told, counts = play(late_start(tmp_path, 60, comes=True))
    assert told["waits_for"].endswith("2 of 3 are there")
    assert 50 < told["waits_seconds"] <= 60
    assert counts == [3, 3]


def test_but_not_for_ever(play, tmp_path, one_thread, caplog):
    told, counts = play(late_start(tmp_path, 1.0, comes=False))
    assert told["waits_seconds"] <= 1.0
    assert counts == [2, 2]
    assert "the first round begins with 2 of 3 servers" in caplog.text


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ({}, 300.0),
        ({"min_servers": 2}, 0.0),
        ({"gather_seconds": 7}, 7.0),
        ({"min_servers": 2, "gather_seconds": 7}, 7),
    ],
)
def test_who_sets_a_quorum_is_not_made_to_wait(given, seconds):
    assert DeploySettings(**given).first_wait == seconds


async def drained_and_back(folder):
    gate = Gate(0, 2)
    async with Deployment(folder, settings("full", rounds=500), MAJORITY) as deployment:
        await deployment.start_edges(3, make_setup=gate)
        await deployment.until(lambda: gate.is_reached(0) and deployment.active == 3)
        async with Endpoints(deployment.identity_store.identity).open_channel(
            f"127.0.0.1:{deployment.port}", COORDINATOR
        ) as channel:
            stub = OperationStub(channel)
            await stub.Drain(pb.NodeName(name="edge-2"), timeout=5)
            gate.release(0)
            why = await asyncio.wait_for(deployment.tasks["edge-2"], 20)
            await stub.Undrain(pb.NodeName(name="edge-2"), timeout=5)
        deployment.start_edge("edge-2")
        gate.open()
        await deployment.until(lambda: deployment.active == 3)
        await deployment.stop_coordinator()
        await deployment.start_coordinator()
        drained = [server["drained"] for server in deployment.status["servers"]]
        return why, drained


def test_a_drained_edge_comes_back_when_it_is_undrained(play, tmp_path, one_thread):
    why, drained = play(drained_and_back(tmp_path))
    assert "drained" in why
    assert drained == [False] * 3, "also after a restart"


@pytest.mark.parametrize(("active", "warns"), [(3, False), (2, True)])
def test_drain_warns_when_too_few_servers_are_left(monkeypatch, active, warns):
    status = {"quorum": 3, "servers": [{"active": True}] * active + [{"active": False}]}
    monkeypatch.setattr(operate, "_ask_coordinator", lambda *_: status)
    done = CliRunner().invoke(app, ["drain", "edge-2"])
    assert done.exit_code == 0
    assert ("hatdfed undrain edge-2" in " ".join(done.output.split())) is warns
