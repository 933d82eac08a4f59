"""Ray on one machine, for real: batches as tasks, what is lost comes again, what cannot be is refused."""

import os
import signal

import pytest
from tests.small_runs import CPU, Told, config

from hatdfed.errors import ClusterError
from hatdfed.fleets.sharded.ray_connection import connected
from hatdfed.runs.calls import run
from hatdfed.runs.play import Job, play
from hatdfed.sweeps.executors import ray as executor
from hatdfed.sweeps.executors.ray import RayExecutor

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module", autouse=True)
def one_cluster():
    """For all tests of this file: whoever finds Ray running uses it."""
    pytest.importorskip("ray", reason="Ray is not installed")  # here: most who collect this file do not run it
    with connected(None):
        yield


def _seed(result):
    return result.config.seed, result.summary["accuracy_by_server"]


def _killed_once(marker, task):
    """A task whose process dies the first time."""

    def dying(order):
        if not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        yield from task(order)

    return dying


def test_a_sweep_on_this_machine_survives_a_killed_worker(tmp_path, monkeypatch):
    orders = []
    real = executor.make_order
    monkeypatch.setattr(executor, "make_order", lambda *args: orders.append(args[0]) or real(*args))
    monkeypatch.setattr(executor, "play_order", _killed_once(tmp_path / "killed", executor.play_order))
    jobs = {n: Job(config(seed=n), tmp_path / f"seed{n}") for n in range(3)}
    jobs[3] = Job(config(seed=3))  # without a folder
    half = jobs[2]._replace(config=config(seed=2, checkpoint_every=1))
    _play_half(half)
    jobs[2] = half._replace(resumed=True)
    told = Told()
    told.play(RayExecutor(cpus_per_batch=1), jobs, keep=_seed)
    alone = [play([job._replace(out=None, resumed=False)], CPU)[0] for job in jobs.values()]
    assert told.done == {n: _seed(result) for n, result in enumerate(alone)}
    assert not told.failed
    assert len([note for note in told.notes if "was lost" in note]) == 1
    assert len(orders) == 3  # two batches, one of them twice
    assert told.rounds[-1] == (12, 12)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["killed", "seed0", "seed1", "seed2"]


def _play_half(job):
    def stop(config, record):
        if record.t == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play([job], CPU, on_round=stop)


@pytest.mark.parametrize("world", [{}, {"link_loss": [0.3, 0.6]}])
def test_a_run_in_two_shards_is_the_run(world):
    settings = config(servers=5, codec="int8", method="hat-dfed", world=world)
    shared, whole = run(settings, fleet="sharded", shards=2), run(settings, fleet="stacked")
    assert shared.links == whole.links
    assert shared.ledger == whole.ledger
    assert shared.summary["accuracy_by_server"] == whole.summary["accuracy_by_server"]
    assert shared.summary["computed_by"]["fleet"] == "sharded"


def test_more_than_the_machine_has_is_refused():
    with pytest.raises(ClusterError, match="needs 10000 CPUs"):
        Told().play(RayExecutor(cpus_per_batch=10_000), {0: Job(config())})
