"""What a machine does with a batch, without Ray; and that importing hatdfed does not import Ray."""

import re
from dataclasses import replace
from pathlib import Path

from tests.small_runs import CPU, config

import hatdfed
from hatdfed.fleets.sharded.ray_nodes import Need
from hatdfed.runs.play import Job, play
from hatdfed.sweeps.batches import PlayOptions
from hatdfed.sweeps.executors.ray import make_order
from hatdfed.sweeps.executors.ray_task import play_order


def order(jobs, **how):
    return make_order(jobs, PlayOptions(CPU, **how), Need(2, 0.0), CPU)


def test_a_batch_comes_back_as_one_parcel_a_run():
    jobs = {4: Job(config(seed=4)), 7: Job(config(seed=7))}
    words = list(play_order(order(jobs)))
    assert [(kind, content[0]) for kind, content in words if kind == "run"] == [("run", 4), ("run", 7)]
    assert not [content for kind, content in words if kind == "error"]
    parcels = [content[1] for kind, content in words if kind == "run"]  # a slow machine also counts rounds
    assert all({"run.sqlite", "results.json"} <= parcel.keys() for parcel in parcels)


def test_a_half_played_run_goes_on_there(tmp_path):
    job = Job(config(rounds=2, checkpoint_every=1), tmp_path / "run")
    play([job], CPU)
    (tmp_path / "run" / "results.json").unlink()
    words = list(play_order(order({0: job._replace(resumed=True)})))
    assert [kind for kind, _ in words if kind != "rounds"] == ["run"]
    assert "rounds" not in [kind for kind, _ in words]  # it had played them all


def test_another_version_and_a_run_that_cannot_be_are_one_sentence():
    (word,) = play_order(replace(order({0: Job(config())}), version="9.9"))
    assert word == ("error", f"A machine of the cluster has hatdfed {hatdfed.__version__}, this one has 9.9.")
    absent = config().model_copy(update={"network": "no-such-network"})
    ((kind, sentence),) = play_order(order({0: Job(absent)}))
    assert kind == "error"
    assert "no-such-network" in sentence


def test_a_data_folder_that_the_machine_does_not_have_is_not_used(tmp_path):
    words = list(play_order(order({0: Job(config())}, data_dir=tmp_path / "only-here")))
    assert "run" in [kind for kind, _ in words]


def test_ray_is_imported_where_it_is_used_and_only_then():
    package = Path(hatdfed.__file__).parent
    sources = {path.relative_to(package): path.read_text() for path in package.rglob("*.py")}
    importing = re.compile(r"^\s*(import ray\b|from ray\b)", re.MULTILINE)
    found = {path.as_posix() for path, text in sources.items() if importing.search(text)}
    assert found == {"fleets/sharded/ray_connection.py", "setup/build/ray_shards.py"}
    at_once = re.compile(r"^(import ray\b|from ray\b)", re.MULTILINE)
    assert not [path for path, text in sources.items() if at_once.search(text)]
