"""Edges that die, come back, or are too few: the others go on, and nobody begins with garbage."""

import asyncio
import signal
import time

import pytest
import torch
from tests.deploy.deployment import Deployment, settings
from tests.deploy.gates import Gate
from tests.deploy.processes import KILLED, Processes, ended

from hatdfed.deploy.coordinator.settings import DeploySettings
from hatdfed.deploy.edge.store import EdgeStore

FEW = DeploySettings(min_servers=2, beat_seconds=0.1, away_seconds=1.0, idle_seconds=1.0, round_seconds=30.0)


def links_of(deployment, t):
    rows = deployment.process.folder.read().records("links")
    return {(row["receiver"], row["sender"]): bool(row["delivered"]) for row in rows if row["t"] == t}


async def killed_while_training(folder):
    config, hers, his = settings("full", rounds=5), Gate(2), Gate(0, 3)
    async with Deployment(folder, config, FEW) as deployment:
        await deployment.start_edges(1, make_setup=his)
        deployment.start_edge("edge-1")
        await deployment.until(lambda: his.is_reached(0))
        deployment.start_edge("edge-2", make_setup=hers)
        await deployment.until(lambda: deployment.active == 3)
        his.release(0)
        await deployment.until(lambda: hers.is_reached(2))
        began = time.monotonic()
        await deployment.kill_edge("edge-2")
        hers.open()
        await deployment.until(lambda: his.is_reached(3))
        seconds = time.monotonic() - began
        committed = EdgeStore(folder / "stores" / "edge-2").load()
        again = deployment.start_edge("edge-2")
        await deployment.until(lambda: again._handler is not None)
        begun_with = again._handler.runner.server.params.clone(), again._handler.runner.next_round
        await deployment.until(lambda: deployment.active == 3)
        his.open()
        summary = await deployment.run
        return seconds, committed, begun_with, [links_of(deployment, t) for t in range(5)], summary


def test_a_round_closes_without_an_edge_that_died_and_it_returns_with_its_model(play, tmp_path, one_thread, eager):
    seconds, committed, (params, next_round), links, summary = play(killed_while_training(tmp_path))
    assert seconds < FEW.away_seconds + 2
    assert committed.round == next_round == 2
    torch.testing.assert_close(params, committed.server.params, atol=0, rtol=0)
    assert [sum(delivered.values()) for delivered in links] == [2, 6, 2, 2, 6]
    assert {link for link, delivered in links[2].items() if delivered} == {(0, 1), (1, 0)}
    assert len(links[2]) == 6, "links of the dead edge are reported as not delivered"
    assert summary["rounds"] == 5
    assert summary["notes"] == ["4 models did not arrive."]


async def back_in_the_same_round(folder):
    """An edge dies after another has brought it its model, and returns before the round has closed."""
    config, gate = settings("full", rounds=2), Gate(0)
    slow = DeploySettings(beat_seconds=0.1, away_seconds=5.0, idle_seconds=1.0, round_seconds=30.0)
    async with Deployment(folder, config, slow) as deployment:
        await deployment.start_edges(1)
        deployment.start_edge("edge-1", make_setup=gate)
        await deployment.until(lambda: deployment.edges["edge-1"]._handler is not None)
        edge = deployment.start_edge("edge-2")
        await deployment.until(lambda: gate.is_reached(0) and edge._handler.mailbox.received)
        began = time.monotonic()
        await deployment.kill_edge("edge-2")
        again = deployment.start_edge("edge-2")
        await deployment.until(
            lambda: again._handler is not None and again._handler.runner.doing == "exchanging models of round 1"
        )
        gate.open()
        await deployment.run
        return time.monotonic() - began, links_of(deployment, 0)


def test_an_edge_that_returns_in_the_same_round_waits_for_nobody_who_is_done(play, tmp_path, one_thread, eager):
    """The others have brought it their models once, and will not again."""
    seconds, links = play(back_in_the_same_round(tmp_path))
    assert seconds < 8
    assert links[(0, 2)]
    assert links[(1, 2)]


async def too_few(folder):
    config, gate = settings("hat-dfed"), Gate(1)
    quick = DeploySettings(min_servers=3, beat_seconds=0.1, away_seconds=0.6, idle_seconds=1.0, round_seconds=30.0)
    async with Deployment(folder, config, quick) as deployment:
        await deployment.start_edges(2)
        deployment.start_edge("edge-2", make_setup=gate)
        await deployment.until(lambda: gate.is_reached(1))
        await deployment.kill_edge("edge-2")
        gate.open()
        await deployment.until(lambda: "2 of at least 3" in deployment.status["waits_for"])
        await asyncio.sleep(0.5)
        paused_at = deployment.process.progress.played
        deployment.start_edge("edge-2")
        summary = await deployment.run
        return paused_at, summary


def test_below_the_least_number_of_servers_the_run_pauses_and_resumes_by_itself(play, tmp_path, one_thread, eager):
    paused_at, summary = play(too_few(tmp_path))
    assert paused_at == 2
    assert summary["rounds"] == 4


async def failing(folder):
    """One edge's data cannot be read in one round."""

    class Broken(Gate):
        def pass_through(self, t):
            if t == 1:
                raise OSError("the disk is gone")

    config = settings("full")
    quick = FEW.model_copy(update={"min_servers": 3})
    async with Deployment(folder, config, quick) as deployment:
        await deployment.start_edges(2)
        deployment.start_edge("edge-2", make_setup=Broken())
        began = time.monotonic()
        await deployment.run
        return time.monotonic() - began, [links_of(deployment, t) for t in range(4)]


def test_an_edge_whose_round_fails_stays_and_nobody_waits_for_it(play, tmp_path, one_thread, caplog):
    seconds, links = play(failing(tmp_path))
    assert seconds < 10
    assert [sum(delivered.values()) for delivered in links] == [6, 2, 6, 6]
    assert "round 1 failed here" in caplog.text


async def processes_killed(folder, failpoint):
    """Two edges in this process, one of its own that dies at a point, and is started again."""
    config = settings("full", rounds=3)
    with Processes(folder, config, away_seconds=1.5, idle_seconds=1.0) as processes:
        coordinator = processes.coordinator()
        await processes.start_edges(2)
        dying = processes.edge_process("edge-2", failpoint)
        assert await ended(dying) == KILLED, processes.log("edge-2")
        kept = EdgeStore(folder / "stores" / "edge-2").load()
        again = processes.edge_process("edge-2")
        assert await ended(coordinator) == 0, processes.log()
        await asyncio.wait_for(asyncio.gather(*processes.tasks.values()), 20)
        await ended(again)
        return kept, processes.log("edge-2"), processes.records("rounds"), processes.records("links")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("failpoint", "committed"),
    [
        ("trained:1", None),
        ("before-push:1", None),
        ("model-received:1", None),
        ("before-edge-commit:1", None),
        ("after-edge-commit:1", 1),
    ],
)
def test_an_edge_process_that_dies_at_a_point_of_its_round(play, tmp_path, one_thread, eager, failpoint, committed):
    kept, log, rounds, links = play(processes_killed(tmp_path, failpoint))
    assert (kept and kept.round) == committed
    assert ("goes on with its own model" in log) == (committed is not None)
    assert [row["t"] for row in rounds] == [0, 1, 2]
    assert all(row["delivered"] for row in links if 2 not in (row["receiver"], row["sender"]))


async def real_kills(folder):
    """The coordinator and one edge get SIGKILL in the middle of a run and are started again."""
    config = settings("hat-dfed", rounds=40)
    with Processes(folder, config, min_servers=3) as processes:
        coordinator = processes.coordinator()
        await processes.start_edges(2)
        edge = processes.edge_process("edge-2")
        await until_round(processes, 5)
        coordinator.send_signal(signal.SIGKILL)
        coordinator.wait()
        edge.send_signal(signal.SIGKILL)
        edge.wait()
        coordinator, edge = processes.coordinator(), processes.edge_process("edge-2")
        assert await ended(coordinator, 90) == 0, processes.log()
        assert await ended(edge) == 0, processes.log("edge-2")
        whys = await asyncio.wait_for(asyncio.gather(*processes.tasks.values()), 20)
        return whys, processes.records("rounds"), len(processes.links()), processes.log("edge-2")


async def until_round(processes, t):
    async with asyncio.timeout(40):
        while len(processes.so_far("rounds")) < t:
            await asyncio.sleep(0.1)


@pytest.mark.processes
def test_coordinator_and_edge_are_killed_in_the_middle_and_the_run_ends_as_it_should(play, tmp_path, one_thread, eager):
    whys, rounds, plans, log = play(real_kills(tmp_path))
    assert whys == ["the coordinator has ended"] * 2
    assert [row["t"] for row in rounds] == list(range(40))
    assert plans == 40
    assert "goes on with its own model" in log


class Slow(Gate):
    """Every round takes a while."""

    def pass_through(self, t):
        time.sleep(0.1)


async def frozen(folder):
    """An edge stands still without hanging up, and goes on later."""
    config = settings("hat-dfed", rounds=80)
    with Processes(folder, config, min_servers=2, away_seconds=1.0, idle_seconds=3.0, beat_seconds=0.2) as processes:
        coordinator = processes.coordinator()
        for name in ("edge-0", "edge-1"):
            processes.start_edge(name, make_setup=Slow())
        edge = processes.edge_process("edge-2")
        await until_server(processes, 2)
        edge.send_signal(signal.SIGSTOP)
        stopped_at, began = len(processes.records("rounds")), time.monotonic()
        await until_round(processes, stopped_at + 12)
        seconds = time.monotonic() - began
        edge.send_signal(signal.SIGCONT)
        await until_server(processes, 2, after=len(processes.records("rounds")))
        assert await ended(coordinator) == 0, processes.log()
        await asyncio.wait_for(asyncio.gather(*processes.tasks.values()), 20)
        await ended(edge)
        return seconds, processes.records("rounds")


async def until_server(processes, server, after=0):
    async with asyncio.timeout(40):
        while not any(row["server"] == server and row["t"] >= after for row in processes.so_far("servers")):
            await asyncio.sleep(0.1)


@pytest.mark.slow
def test_a_frozen_edge_delays_one_round_and_no_other(play, tmp_path, one_thread, eager):
    seconds, rounds = play(frozen(tmp_path))
    assert seconds < 10
    assert sum(row["seconds"] > 1.5 for row in rounds[3:]) <= 2
    assert [row["t"] for row in rounds] == list(range(80))
