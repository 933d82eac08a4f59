"""Servers that join, leave, return or are drained while a run goes on, and servers that cannot be dialled."""

import asyncio
import signal

import numpy as np
import pytest
import torch
from tests.deploy.deployment import QUICK, Deployment, settings
from tests.deploy.gates import Gate
from tests.deploy.processes import Processes, ended

from hatdfed.core.links import LinkTable
from hatdfed.deploy.coordinator.durable import DurableCoordinator
from hatdfed.deploy.edge.edge import RefusedError
from hatdfed.deploy.identity.names import COORDINATOR
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.deploy.protocol.hatdfed_pb2_grpc import OperationStub
from hatdfed.deploy.transport.endpoints import Endpoints

FEW = QUICK.model_copy(update={"min_servers": 2, "away_seconds": 1.0, "beat_seconds": 0.1})


@pytest.fixture
def growths(monkeypatch):
    """States before and after servers joined."""
    seen, grown = [], DurableCoordinator._grow

    def noted(self, state, servers):
        after = grown(self, state, servers)
        if servers != len(state.accuracy):
            seen.append((state, after))
        return after

    monkeypatch.setattr(DurableCoordinator, "_grow", noted)
    return seen


async def fourth(folder):
    config, gate = settings("hat-dfed", rounds=6), Gate(2)
    async with Deployment(folder, config) as deployment:
        await deployment.start_edges(1, make_setup=gate)
        for name in ("edge-1", "edge-2"):
            deployment.start_edge(name)
        await deployment.until(lambda: gate.is_reached(2))
        joined = deployment.start_edge("edge-3")
        await deployment.until(lambda: joined._handler is not None)
        begun = joined._handler.runner.server.params.clone(), joined._handler.runner.next_round
        donor = deployment.edges["edge-0"]._handler.runner.server.params.clone()
        fresh = joined._handler.setup.program.start(joined._handler.setup.initial_seed).params
        await deployment.until(lambda: deployment.active == 4)
        gate.open()
        summary = await deployment.run
        servers = deployment.process.folder.read().records("servers")
        return begun, donor, fresh, summary, servers


def test_a_fourth_server_begins_with_a_peers_model_and_the_policy_grows(play, tmp_path, one_thread, growths):
    (model, next_round), donor, fresh, summary, servers = play(fourth(tmp_path))
    assert next_round == 2
    torch.testing.assert_close(model, donor, atol=0, rtol=0)
    assert not torch.allclose(model, fresh)
    took_part = {t: {row["server"] for row in servers if row["t"] == t} for t in range(6)}
    assert [len(took_part[t]) for t in range(6)] == [3, 3, 3, 4, 4, 4]
    ((before, after),) = growths
    known = before.policy.log_weights
    old = LinkTable.all_of(3).to_dense(known)
    new = LinkTable.all_of(4).to_dense(after.policy.log_weights)
    assert np.array_equal(new[:3, :3], old)
    assert known.std() > 0, "something was learned before"
    assert np.allclose(np.concatenate([new[3, :3], new[:3, 3]]), known.mean())
    assert summary["rounds"] == 6


async def fourth_and_a_restart(folder):
    config, gate = settings("hat-dfed", rounds=8), Gate(1, 4)
    with Processes(folder, config) as processes:
        coordinator = processes.coordinator()
        processes.start_edge("edge-0", make_setup=gate)
        for name in ("edge-1", "edge-2"):
            processes.start_edge(name)
        await asyncio.wait_for(reached(gate, 1), 20)
        fourth = processes.start_edge("edge-3")
        while fourth._handler is None or "edge-3 is ready" not in processes.log():
            await asyncio.sleep(0.05)
        gate.release(1)
        await asyncio.wait_for(reached(gate, 4), 20)
        coordinator.send_signal(signal.SIGKILL)
        coordinator.wait()
        gate.open()
        coordinator = processes.coordinator()
        assert await ended(coordinator) == 0, processes.log()
        await asyncio.wait_for(asyncio.gather(*processes.tasks.values()), 20)
        return processes.records("servers"), processes.records("links")


async def reached(gate, t):
    while not gate.is_reached(t):
        await asyncio.sleep(0.02)


def test_a_run_that_has_grown_survives_a_restart(play, tmp_path, one_thread, eager):
    servers, links = play(fourth_and_a_restart(tmp_path))
    assert [sum(row["t"] == t for row in servers) for t in range(8)] == [3, 3, 4, 4, 4, 4, 4, 4]
    assert all(row["delivered"] for row in links)


async def away_for_a_while(folder):
    config, gate = settings("hat-dfed", rounds=8), Gate(0, 3, 5)
    async with Deployment(folder, config, FEW) as deployment:
        deployment.start_edge("edge-0", make_setup=gate)
        for name in ("edge-1", "edge-2"):
            deployment.start_edge(name)
        await deployment.until(lambda: gate.is_reached(0) and deployment.active == 3)
        gate.release(0)
        await deployment.until(lambda: gate.is_reached(3))
        index = deployment.edges["edge-1"]._handler.mailbox.index
        deployment.edges["edge-1"].leave_requested.set()
        why = await deployment.tasks["edge-1"]
        gate.release(3)
        await deployment.until(lambda: gate.is_reached(5))
        weights = weights_of(deployment)
        away = deployment.status["servers"][index]
        again = deployment.start_edge("edge-1")
        await deployment.until(lambda: again._handler is not None)
        await deployment.until(lambda: deployment.active == 3)
        gate.open()
        await deployment.run
        servers = deployment.process.folder.read().records("servers")
        return why, index, again._handler.mailbox.index, weights, servers, away


def weights_of(deployment):
    journal = deployment.process._journal
    like = DurableCoordinator(deployment.config, deployment.process.hub.manifest, journal, lambda: None).restore()
    return LinkTable.all_of(3).to_dense(like.policy.log_weights)


def test_a_server_that_leaves_and_returns_has_its_place_and_its_weights(play, tmp_path, one_thread, eager):
    why, index, again, weights, servers, away = play(away_for_a_while(tmp_path))
    assert why == "asked to leave"
    assert (away["name"], away["active"]) == ("edge-1", False)
    assert away["seen_seconds_ago"] >= 0, "one that is away was still seen once"
    assert again == index
    assert weights[index].any(), "what was learned about its links is kept"
    assert sorted(row["server"] for row in servers if row["t"] == 4) == sorted({0, 1, 2} - {index})
    assert len([row for row in servers if row["t"] == 7]) == 3


async def drained(folder):
    config, gate = settings("full", rounds=5), Gate(0, 1)
    async with Deployment(folder, config, FEW) as deployment:
        await deployment.start_edges(3, make_setup=gate)
        await deployment.until(lambda: gate.is_reached(0) and deployment.active == 3)
        gate.release(0)
        await deployment.until(lambda: gate.is_reached(1))
        async with Endpoints(deployment.identity_store.identity).open_channel(
            f"127.0.0.1:{deployment.port}", COORDINATOR
        ) as channel:
            await OperationStub(channel).Drain(pb.NodeName(name="edge-2"), timeout=5)
        gate.open()
        why = await asyncio.wait_for(deployment.tasks["edge-2"], 20)
        deployment.start_edge("edge-2")
        with pytest.raises(RefusedError, match="drained"):
            await asyncio.wait_for(deployment.tasks["edge-2"], 10)
        summary = await deployment.run
        servers = deployment.process.folder.read().records("servers")
        return why, servers, summary


def test_a_drained_server_finishes_its_round_and_goes(play, tmp_path, one_thread):
    why, servers, summary = play(drained(tmp_path))
    assert why.startswith("dismissed: drained")
    assert [len([row for row in servers if row["t"] == t]) for t in range(1, 5)] == [3, 2, 2, 2]
    assert summary["notes"] == []


async def with_addresses(folder, method, *places):
    async with Deployment(folder, settings(method)) as deployment:
        for number, place in enumerate(places):
            edge = deployment.start_edge(f"edge-{number}", **place)
            await deployment.until(lambda edge=edge: edge._handler is not None)
        summary = await deployment.run
        return summary, deployment.process.folder.read().records("links")


def test_models_flow_to_and_from_an_edge_that_nobody_can_dial(play, tmp_path, one_thread):
    summary, links = play(with_addresses(tmp_path, "full", {}, {}, {"listen": ""}))
    assert len(links) == 4 * 6
    assert all(row["delivered"] for row in links)
    assert summary["notes"] == []


@pytest.mark.parametrize("nowhere", [{"listen": ""}, {"advertise": "127.0.0.1:1"}])
def test_a_pair_of_which_neither_can_dial_the_other_is_never_drawn(play, tmp_path, one_thread, nowhere):
    _, links = play(with_addresses(tmp_path, "full", {}, nowhere, nowhere))
    drawn = {(row["receiver"], row["sender"]) for row in links}
    assert drawn == {(0, 1), (1, 0), (0, 2), (2, 0)}
    assert all(row["delivered"] for row in links)
