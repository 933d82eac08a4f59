"""Trials that are clearly worse are stopped early; the best never are, and a killed search comes to the same."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.sweeps.small import SMALL

import hatdfed
from hatdfed.core.fleet import FinalAccuracy
from hatdfed.errors import ConfigError
from hatdfed.runs.play import play
from hatdfed.runs.recorder import summarise
from hatdfed.runs.records.folder import RunFolder
from hatdfed.sweeps.file import Pruner, read_sweep
from hatdfed.sweeps.pruners import Measured, find_losers

optuna = pytest.importorskip("optuna")

BASE = {**SMALL, "method": "rnd", "rounds": 6}
RATES = [0.01, 0.02, 1e-9, 0.03, 0.04, 2e-9]  # two of them cannot learn anything
SEARCH = {
    "parameters": {"learner.learning_rate": RATES},
    "sampler": "grid",
    "at_once": 6,
    "objectives": ["accuracy"],
    "pruner": {"name": "median", "rounds": [2, 4]},
}
SWEEP = {"base": BASE, "search": SEARCH, "seeds": [1, 2]}


def measured(*values):
    return [Measured(number, "w", value[0], value) for number, value in enumerate(values)]


def test_the_median_rule_stops_what_is_below_the_median():
    pruner = Pruner(name="median", min_trials=4)
    assert find_losers(pruner, measured((10.0,), (80.0,), (70.0,), (75.0,), (70.0,))) == {0}
    assert find_losers(pruner, measured((10.0,), (80.0,), (70.0,))) == set()  # too few


def test_halving_keeps_the_best_share():
    values = [(float(value),) for value in range(8)]
    assert find_losers(Pruner(name="halving"), measured(*values)) == {0, 1, 2, 3}
    assert find_losers(Pruner(name="halving", factor=4), measured(*values)) == {0, 1, 2, 3, 4, 5}


def test_what_may_be_on_the_front_goes_on():
    cheap, beaten = (10.0, -1.0), (10.0, -9.0)
    rivals = measured(cheap, beaten, (80.0, -5.0), (90.0, -7.0))
    assert find_losers(Pruner(name="halving"), rivals) == {1}


def test_trials_of_different_worlds_are_not_compared():
    rivals = [each._replace(world=str(each.trial % 2)) for each in measured(*[(float(n),) for n in range(6)])]
    assert find_losers(Pruner(name="median", min_trials=4), rivals) == set()


@given(
    st.lists(st.tuples(st.integers(0, 100), st.integers(-9, 0)), min_size=1, max_size=20),
    st.sampled_from(["median", "halving"]),
    st.integers(2, 9),
)
def test_nothing_that_is_best_at_an_objective_is_ever_stopped(values, name, factor):
    pruner = Pruner(name=name, min_trials=1, **({"factor": factor} if name == "halving" else {}))
    losers = find_losers(pruner, measured(*values))
    best = max(values), max(values, key=lambda value: (value[1], value[0]))
    assert not losers & {number for number, value in enumerate(values) if value in best}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pruned") / "s"
    return folder, hatdfed.sweep(SWEEP, out=folder, jobs=1)


def by_rate(result):
    return {row["settings"]["learner.learning_rate"]: row for row in result.rows}


def test_planted_bad_trials_are_stopped_and_the_best_is_not(whole):
    folder, result = whole
    rows = by_rate(result)
    assert rows[1e-9]["pruned_after"] == rows[2e-9]["pruned_after"] == 2
    for rate in (1e-9, 2e-9):
        assert rows[rate]["validation_accuracy"] is None
        assert rows[rate]["accuracy_when_pruned"] < 50
        assert not rows[rate]["is_on_front"]
        for seed in (1, 2):
            run = RunFolder(folder / "runs" / f"trial={rows[rate]['trial']:03d},seed={seed}")
            assert len(run.read_rounds()) == 2
            assert run.read_results() is None  # so its test data were not read
    (best,) = [row for row in result.rows if row["is_on_front"]]
    assert best["pruned_after"] is None
    assert best["validation_accuracy"] == max(
        row["validation_accuracy"] for row in result.rows if row["pruned_after"] is None
    )


def test_a_trial_that_paused_comes_to_the_same_figures_as_one_that_did_not(whole, tmp_path):
    plain = {**SWEEP, "search": {key: value for key, value in SEARCH.items() if key != "pruner"}}
    unpruned = by_rate(hatdfed.sweep(plain, out=tmp_path / "s", jobs=1))
    finished = {rate: row for rate, row in by_rate(whole[1]).items() if row["pruned_after"] is None}
    assert len(finished) >= 2
    for rate, row in finished.items():
        assert row["validation_accuracy"] == unpruned[rate]["validation_accuracy"]
        assert row["total_joules"] == unpruned[rate]["total_joules"]


def test_the_saving_is_what_was_not_played(whole):
    folder, result = whole
    pruning = result.search["pruning"]
    played = sum(len(RunFolder(path).read_rounds()) for path in (folder / "runs").iterdir())
    assert pruning["rounds"] == 6 * 2 * 6
    assert pruning["rounds_saved"] == pruning["rounds"] - played > 0
    assert pruning["pruned_trials"] == sum(row["pruned_after"] is not None for row in result.rows)


def test_the_file_of_the_search_says_which_trials_were_pruned(whole):
    folder, result = whole
    study = optuna.load_study(study_name="sweep", storage=f"sqlite:///{folder / 'search.sqlite'}")
    pruned = {trial.number for trial in study.trials if trial.state.name == "PRUNED"}
    assert pruned == {row["trial"] for row in result.rows if row["pruned_after"] is not None}
    assert all(trial.user_attrs["sampler"] == "grid" and 2 in trial.intermediate_values for trial in study.trials)


@pytest.mark.parametrize("killed_at", [1, 2, 3])
def test_a_search_that_was_killed_stops_the_same_trials(whole, tmp_path, monkeypatch, killed_at):
    calls = []

    def interrupted(*arguments, **more):
        calls.append(1)
        if len(calls) == killed_at + 1:
            raise KeyboardInterrupt
        return play(*arguments, **more)

    monkeypatch.setattr("hatdfed.sweeps.batches.play", interrupted)
    with pytest.raises(KeyboardInterrupt):
        hatdfed.sweep(SWEEP, out=tmp_path / "s", jobs=1)
    monkeypatch.setattr("hatdfed.sweeps.batches.play", play)
    again = hatdfed.sweep(SWEEP, out=tmp_path / "s", jobs=1)
    assert again.rows == whole[1].rows
    assert (tmp_path / "s" / "summary.json").read_bytes() == (whole[0] / "summary.json").read_bytes()


def test_a_finished_search_plays_nothing_when_it_is_repeated(whole, monkeypatch):
    def refuse(*arguments, **more):
        raise AssertionError("nothing is left to play")

    monkeypatch.setattr("hatdfed.sweeps.batches.play", refuse)
    before = (whole[0] / "summary.json").read_bytes()
    assert hatdfed.sweep(SWEEP, out=whole[0], jobs=1).rows == whole[1].rows
    assert (whole[0] / "summary.json").read_bytes() == before


def test_the_test_set_prunes_nothing(whole, tmp_path, monkeypatch):
    def blind(config, accuracy, rounds):
        return summarise(config, FinalAccuracy(*(0 * each for each in accuracy[:3])), rounds)

    monkeypatch.setattr("hatdfed.runs.recorder.summarise", blind)
    assert hatdfed.sweep(SWEEP, out=tmp_path / "s", jobs=1).rows == whole[1].rows


def test_processes_come_to_the_same(whole, tmp_path):
    assert hatdfed.sweep(SWEEP, out=tmp_path / "s", jobs=2).rows == whole[1].rows


def test_more_trials_are_compared_with_those_before(tmp_path):
    search = {**SEARCH, "at_once": 3, "pruner": {"name": "halving", "rounds": [2], "min_trials": 3}}
    few = hatdfed.sweep({**SWEEP, "search": {**search, "trials": 3}}, out=tmp_path / "s", jobs=1)
    more = hatdfed.sweep({**SWEEP, "search": search}, out=tmp_path / "s", jobs=1)
    assert [row["pruned_after"] for row in more.rows[:3]] == [row["pruned_after"] for row in few.rows]
    assert by_rate(more)[1e-9]["pruned_after"] == by_rate(more)[2e-9]["pruned_after"] == 2


def test_what_was_pruned_is_read_back(whole):
    assert hatdfed.load(whole[0]).search == json.loads((whole[0] / "summary.json").read_text())["search"]
    assert hatdfed.load(whole[0]).search == whole[1].search


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"pruner": "medain"}, r"search\.pruner is 'medain'.*Did you mean median\?"),
        ({"pruner": {"name": "median", "round": [2]}}, "search.pruner has a key 'round'"),
        ({"pruner": {"name": "median", "rounds": [6]}}, r"search\.pruner\.rounds has 6, but runs have 6 rounds"),
        ({"pruner": {"name": "median", "factor": 3}}, "factor is for halving"),
        ({"objectives": ["joules"]}, "judges validation accuracy, but it is none of search.objectives"),
    ],
)
def test_a_pruner_that_cannot_work_is_one_sentence(tmp_path, change, sentence):
    with pytest.raises(ConfigError, match=sentence):
        hatdfed.sweep({**SWEEP, "search": {**SEARCH, **change}}, out=tmp_path / "s")
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [({"rounds": 3}, "but runs have only 3"), ({"checkpoint_every": 0}, "but checkpoint_every is 0")],
)
def test_runs_that_cannot_be_paused_are_one_sentence(tmp_path, change, sentence):
    with pytest.raises(ConfigError, match=sentence):
        hatdfed.sweep(
            {**SWEEP, "base": {**BASE, **change}, "search": {**SEARCH, "pruner": "halving"}}, out=tmp_path / "s"
        )
    assert not (tmp_path / "s").exists()


def test_a_search_without_a_pruner_keeps_its_folder():
    plain = {"base": {"rounds": 2}, "search": {"parameters": {"link_share": {"low": 0.1, "high": 0.5}}}}
    assert read_sweep(plain).version == read_sweep({**plain, "search": {**plain["search"], "pruner": None}}).version
    pruned = {**plain, "search": {**plain["search"], "pruner": "median"}}
    assert read_sweep(plain).version != read_sweep(pruned).version
