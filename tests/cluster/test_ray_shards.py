"""One run in shards that are processes of their own: lost ones stop it, and it goes on from its checkpoint."""

import os
import signal

import pytest
from tests.small_runs import config

from hatdfed.errors import ClusterError, ConfigError
from hatdfed.fleets.sharded.orders import even_bounds
from hatdfed.fleets.sharded.ray_nodes import Need, Node
from hatdfed.runs.calls import resume, run
from hatdfed.setup.build.placement import Placement
from hatdfed.setup.build.ray_shards import RayShards, need_of_shards


@pytest.mark.cluster
def test_a_lost_shard_stops_the_run_which_goes_on_from_its_checkpoint(tmp_path, monkeypatch):
    pytest.importorskip("ray", reason="Ray is not installed")
    settings = config(servers=7, rounds=5, checkpoint_every=2, method="sgp")
    whole = run(settings, fleet="stacked")
    started = []
    real = RayShards._start

    def remembered(self, device):
        started.append(real(self, device))
        return started[-1]

    monkeypatch.setattr(RayShards, "_start", remembered)

    def kill_one(config, record):
        if record.t == 2 and len(started) == 1:
            shards = started[0]
            import ray

            os.kill(ray.get(shards[1].pid.remote()), signal.SIGKILL)

    with pytest.raises(ClusterError, match="servers 4 to 6 was lost"):
        run(settings, out=tmp_path / "run", fleet="sharded", shards=2, on_round=kill_one)
    result = resume(tmp_path / "run", fleet="sharded", shards=3)
    assert len(started) == 2
    assert result.summary["accuracy_by_server"] == whole.summary["accuracy_by_server"]
    assert result.summary["computed_by"]["shards"] == 3
    assert [(row["receiver"], row["sender"]) for row in result.links] == [
        (row["receiver"], row["sender"]) for row in whole.links
    ]


def test_a_shard_gets_a_cpu_or_a_part_of_one():
    small = Node("a", "10.0.0.1", 2, 0)
    assert need_of_shards([small], 2, "cpu") == Need(1.0)
    assert need_of_shards([small], 4, "cpu") == Need(0.5)
    assert need_of_shards([small, Node("b", "10.0.0.2", 8, 1)], 4, "cuda") == Need(0.25, 0.25)
    with pytest.raises(ClusterError, match="3 shards on cuda do not fit"):
        need_of_shards([small], 3, "cuda")
    with pytest.raises(ClusterError, match="21 shards on cpu do not fit"):
        need_of_shards([small], 21, "cpu")


def test_shards_and_fleet_belong_together():
    with pytest.raises(ConfigError, match="needs --shards"):
        Placement("sharded")
    with pytest.raises(ConfigError, match="are for --fleet sharded"):
        Placement("stacked", shards=2)
    with pytest.raises(ConfigError, match="7 servers cannot be cut into 8 shards"):
        even_bounds(7, 8)
