"""A coordinator that dies at any point: the run goes on by itself and looks as if nothing had happened."""

import asyncio

import pytest
import torch
from tests.alone import play_undisturbed
from tests.deploy.deployment import settings
from tests.deploy.processes import KILLED, Processes, ended

from hatdfed.deploy.failpoints import COORDINATOR_POINTS


async def played(folder, config, points):
    """A run whose coordinator dies at all these points, one after the other."""
    with Processes(folder, config) as processes:
        process = processes.coordinator(points[0])
        await processes.start_edges(config.servers)
        for point in [*points[1:], None]:
            assert await ended(process) == KILLED, processes.log()
            process = processes.coordinator(point)
        assert await ended(process) == 0, processes.log()
        whys = await asyncio.wait_for(asyncio.gather(*processes.tasks.values()), 20)
        handlers = sorted(
            (edge._handler for edge in processes.edges.values()), key=lambda handler: handler.mailbox.index
        )
        models = torch.stack([handler.runner.server.params for handler in handlers])
        return processes, whys, models


def check(processes, whys, models, config):
    expected, expected_models = play_undisturbed(config)
    assert processes.links() == expected
    torch.testing.assert_close(models, expected_models, atol=1e-5, rtol=0)
    assert [row["t"] for row in processes.records("rounds")] == list(range(config.rounds))
    links = processes.records("links")
    assert [
        [(row["receiver"], row["sender"]) for row in links if row["t"] == t] for t in range(config.rounds)
    ] == expected
    assert all(row["delivered"] for row in links)
    servers = processes.records("servers")
    assert len(servers) == config.rounds * config.servers
    assert set(whys) == {"the coordinator has ended"}


@pytest.mark.processes
def test_a_coordinator_that_dies_at_every_point_of_a_round_changes_nothing(play, tmp_path, one_thread, eager):
    config = settings("hat-dfed")
    first = f"{COORDINATOR_POINTS[0]}:2"  # in the second round
    check(*play(played(tmp_path, config, [first, *COORDINATOR_POINTS[1:]])), config)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["hat-dfed-plus", "sgp"])
@pytest.mark.parametrize("point", COORDINATOR_POINTS)
def test_a_coordinator_that_dies_in_the_third_round_changes_nothing(play, tmp_path, one_thread, method, point):
    config = settings(method, codec="float32")
    times = {"half-announced": 7, "after-first-report": 7}.get(point, 3)
    check(*play(played(tmp_path, config, [f"{point}:{times}"])), config)
