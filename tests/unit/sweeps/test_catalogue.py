"""One list of runs behind comparisons and sweeps: nothing is resolved, loaded or looked for twice."""

import sys
from collections import Counter

import pytest
from tests.unit.sweeps.small import SMALL

import hatdfed
from hatdfed.cli.app import main
from hatdfed.data.datasets import LoadedDatasets
from hatdfed.errors import ConfigError, RunFolderError
from hatdfed.setup.layers import resolve
from hatdfed.sweeps.catalogue import PlannedRun, State, check_runs, unfinished
from hatdfed.sweeps.file import read_sweep
from hatdfed.sweeps.points import points
from hatdfed.sweeps.table import pareto

TYPED = [f"--set={key}={value}" for key, value in SMALL.items() if key != "dataset_options"]


@pytest.fixture
def calls(monkeypatch):
    """How often settings were resolved, data loaded and programs made, wherever from."""
    import hatdfed.data.datasets
    import hatdfed.setup.build.program
    import hatdfed.setup.layers

    counted = Counter()

    def count(module, name):
        real = getattr(module, name)

        def counting(*arguments, **settings):
            counted[name] += 1
            return real(*arguments, **settings)

        for other in [each for each in sys.modules.values() if getattr(each, "__name__", "").startswith("hatdfed")]:
            if getattr(other, name, None) is real:
                monkeypatch.setattr(other, name, counting)

    import hatdfed.cli.compare
    import hatdfed.cli.sweep
    import hatdfed.sweeps.compare
    import hatdfed.sweeps.sweep

    count(hatdfed.setup.layers, "resolve")
    count(hatdfed.data.datasets, "load_dataset")
    count(hatdfed.setup.build.program, "make_program")
    return counted


def command(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["hatdfed", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code


def test_a_comparison_resolves_each_config_once_and_loads_its_data_once(calls):
    hatdfed.compare(["rnd", "local"], seeds=2, **SMALL)
    assert calls["resolve"] == 4
    assert calls["load_dataset"] == 1


def test_so_does_the_command(calls, tmp_path, monkeypatch):
    options = ["--seeds", "2", "--jobs", "1", "--out", tmp_path / "c", *TYPED]
    command(monkeypatch, "compare", "--methods", "rnd,local", *options)
    assert (calls["resolve"], calls["load_dataset"]) == (4, 1)
    assert calls["make_program"] == 6, "one for each run, and one for each method before the first is played"
    command(monkeypatch, "compare", "--methods", "rnd,local", *options)
    assert (calls["resolve"], calls["load_dataset"]) == (8, 1), "what is finished needs no data"


def test_a_sweep_resolves_each_config_once_and_loads_its_data_once(calls, tmp_path, monkeypatch):
    hatdfed.sweep({"base": SMALL, "grid": {"method": ["rnd", "local"]}, "seeds": 2}, out=tmp_path / "s", jobs=1)
    assert (calls["resolve"], calls["load_dataset"]) == (4, 1)


def test_data_are_loaded_once_for_each_set_of_options(calls):
    datasets = LoadedDatasets()
    options = {"train": 300, "validation": 60, "test": 30}
    assert datasets.get("synthetic", options) is datasets.get("synthetic", dict(options))
    assert datasets.get("synthetic", {**options, "test": 20}) is not datasets.get("synthetic", options)
    assert calls["load_dataset"] == 2


def test_a_run_says_how_far_it_is(tmp_path):
    config = resolve({**SMALL, "method": "rnd", "rounds": 2})
    run = PlannedRun("a", config).within(tmp_path)
    assert (run.folder, run.state) == (tmp_path / "a", State.OPEN)

    def stop(config, record):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hatdfed.run(config, out=run.folder, on_round=stop)
    assert run.state == State.BEGUN
    assert unfinished([run]) == [run]
    hatdfed.resume(run.folder)
    assert run.state == State.DONE
    assert unfinished([run]) == []
    other = PlannedRun("a", config.model_copy(update={"seed": 3}), run.folder)
    with pytest.raises(RunFolderError, match=r"has seed 0, but 3 was asked for\. Ask for the settings that are there"):
        unfinished([other])


def test_runs_that_cannot_work_are_refused_before_one_is_played():
    wrong = resolve({**SMALL, "policy": {"name": "regular-graph", "degree": 50}})
    with pytest.raises(ConfigError, match=r"policy\.degree is 50"):
        check_runs([resolve(SMALL), wrong], LoadedDatasets())


def test_points_at_other_prices_have_a_front_of_their_own():
    varied = {"energy.model_bits": [1e3, 1e6], "method": ["rnd", "local"]}
    worlds = [point.world for point in points(read_sweep({"base": SMALL, "grid": varied}))]
    assert worlds[0] == worlds[1] != worlds[2] == worlds[3]
    rows = [
        {"validation_accuracy": a, "total_joules": j, "leaks_test": False}
        for a, j in ((50, 1), (40, 2), (50, 9), (60, 8))
    ]
    assert pareto(rows, ["accuracy", "joules"]) == {0, 3}
    rows[3]["validation_accuracy"] = 45
    assert pareto(rows, ["accuracy", "joules"]) == {0}
    assert pareto(rows, ["accuracy", "joules"], worlds) == {0, 2, 3}


def test_points_of_different_lengths_are_ranked_together():
    short, long = points(read_sweep({"base": SMALL, "grid": {"rounds": [2, 4]}}))
    assert short.world == long.world
