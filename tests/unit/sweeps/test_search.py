"""A search: only validation data steer it, it goes on where it was killed, and it tries what it would have tried."""

import re
from types import MappingProxyType

import pytest
from tests.unit.sweeps.small import SMALL

import hatdfed
from hatdfed.core.fleet import FinalAccuracy
from hatdfed.errors import ConfigError, RunFolderError
from hatdfed.runs.play import play
from hatdfed.runs.recorder import summarise
from hatdfed.setup.methods import METHODS, Method
from hatdfed.sweeps.file import read_sweep
from hatdfed.sweeps.search import Search

pytest.importorskip("optuna")

SEARCH = {
    "base": {**SMALL, "method": "hat-dfed-plus", "rounds": 2, "checkpoint_every": 0},
    "search": {
        "parameters": {
            "policy.thrift": {"low": 0.5, "high": 16.0, "log": True},
            "schedule.every": {"low": 1, "high": 3},
            "learner.momentum": {"low": 0.0, "high": 0.5, "step": 0.25},
            "codec": ["float32", "int8"],
        },
        "trials": 13,  # the last one knows enough to be more than a guess
        "at_once": 6,
    },
    "seeds": [1],
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "s"
    return folder, hatdfed.sweep(SEARCH, out=folder, jobs=1)


def tried(result):
    return [row["settings"] for row in result.rows]


def test_a_search_tries_what_it_may(whole):
    folder, result = whole
    assert len(result.rows) == 13
    for settings in tried(result):
        assert 0.5 <= settings["policy.thrift"] <= 16
        assert settings["schedule.every"] in (1, 2, 3)
        assert settings["learner.momentum"] in (0.0, 0.25, 0.5)
        assert settings["codec"] in ("float32", "int8")
    assert result.run("trial=003,seed=1").config.codec == tried(result)[3]["codec"]
    assert (folder / "pareto.png").is_file()


def test_its_table_shows_no_test_figures(whole):
    folder, result = whole
    assert "validation_accuracy" in result.rows[0]
    assert not {"avg_accuracy", "worst_accuracy"} & set(result.rows[0])
    assert "avg_accuracy" not in (folder / "summary.csv").read_text().splitlines()[0]


def test_a_search_that_is_stopped_goes_on_to_the_same_trials(whole, tmp_path, monkeypatch):
    calls = []

    def interrupted(*arguments, **more):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return play(*arguments, **more)

    monkeypatch.setattr("hatdfed.sweeps.batches.play", interrupted)
    with pytest.raises(KeyboardInterrupt):
        hatdfed.sweep(SEARCH, out=tmp_path / "s", jobs=1)
    again = hatdfed.sweep(SEARCH, out=tmp_path / "s", jobs=1)
    assert again.rows == whole[1].rows
    assert (tmp_path / "s" / "summary.json").read_bytes() == (whole[0] / "summary.json").read_bytes()


def test_a_group_that_was_half_proposed_is_filled(whole, tmp_path):
    sweep = read_sweep(SEARCH)
    first = Search(sweep, tmp_path / "search.sqlite")
    first._study.add_trial(first._propose(0))  # killed here
    second = Search(sweep, tmp_path / "search.sqlite")
    second._fill_group()
    assert [point.settings for point in second.points] == tried(whole[1])[:6]


def test_the_test_set_has_no_say(whole, tmp_path, monkeypatch):
    def blind(config, accuracy, rounds):
        return summarise(config, FinalAccuracy(*(0 * each for each in accuracy[:3])), rounds)

    monkeypatch.setattr("hatdfed.runs.recorder.summarise", blind)
    again = hatdfed.sweep(SEARCH, out=tmp_path / "s", jobs=1)
    assert again.rows == whole[1].rows
    assert again.run("trial=000,seed=1").summary["avg_accuracy"] == 0


@pytest.mark.parametrize(
    "change",
    [{"base": {**SEARCH["base"], "feedback": "test"}}, {"base": {**SMALL, "method": "hat-dfed-released"}}],
)
def test_a_search_that_would_see_the_test_set_is_refused(tmp_path, change):
    with pytest.raises(ConfigError, match="never sees the test set"):
        hatdfed.sweep({**SEARCH, **change}, out=tmp_path / "s")
    assert not (tmp_path / "s").exists()


class Nobody:
    """Plays nothing."""

    figures = MappingProxyType({})

    def play(self, runs):
        pass


LEAKING = Method("my-leak", "of a plug-in", {"feedback": "test"})


@pytest.mark.parametrize(
    ("parameters", "leaking"),
    [
        ({"method": ["hat-dfed", "hat-dfed-released", "rnd"]}, "method: hat-dfed-released"),
        ({"codec": ["float32", "int8"], "method": ["rnd", "my-leak"]}, "method: my-leak"),
        ({"feedback": ["validation", "test"]}, "feedback: test"),
        ({"method": ["rnd", "my-leak"], "dataset": ["synthetic"]}, "dataset: synthetic, method: my-leak"),
    ],
)
def test_no_choice_of_a_search_may_see_the_test_set(tmp_path, monkeypatch, parameters, leaking):
    monkeypatch.setitem(METHODS.built_in, LEAKING.name, LEAKING)
    search = {"parameters": parameters, "trials": 2}
    with pytest.raises(ConfigError, match=f"never sees the test set, but feedback is test with {leaking}"):
        hatdfed.sweep({"base": SMALL, "search": search}, out=tmp_path / "s", jobs=1)
    assert not (tmp_path / "s").exists()


def test_a_method_that_leaks_may_be_searched_without_its_leak(tmp_path):
    base = {**SMALL, "rounds": 1, "feedback": "validation"}
    search = {"parameters": {"method": ["hat-dfed-released"]}, "trials": 1}
    assert len(hatdfed.sweep({"base": base, "search": search}, out=tmp_path / "s", jobs=1).rows) == 1


def test_nothing_of_a_run_that_saw_the_test_set_is_told(tmp_path):
    search = {"parameters": {"method": ["rnd", "hat-dfed-released"]}, "trials": 6, "at_once": 6, "sampler": "random"}
    study = Search(read_sweep({"base": SMALL, "search": search}), tmp_path / "search.sqlite")
    with pytest.raises(ConfigError, match="never sees the test set"):
        study.go_on(Nobody())
    with pytest.raises(ConfigError, match="never sees the test set"):
        study._tell({run.name: {} for point in study.points for run in point.runs})
    assert study.told == 0


def test_settings_that_nobody_knows_are_refused_before_the_first_trial(tmp_path):
    search = {"parameters": {"policy.thrft": {"low": 1, "high": 2}}, "trials": 2}
    with pytest.raises(ConfigError, match="has no setting 'thrft'"):
        hatdfed.sweep({**SEARCH, "search": search}, out=tmp_path / "s")


def test_more_trials_go_on_with_the_same_search(whole, tmp_path, monkeypatch):
    few = {**SEARCH, "search": {**SEARCH["search"], "trials": 6}}
    first = hatdfed.sweep(few, out=tmp_path / "s", jobs=1)
    played = []
    monkeypatch.setattr(
        "hatdfed.sweeps.batches.play", lambda jobs, *rest, **more: played.extend(jobs) or play(jobs, *rest, **more)
    )
    more = hatdfed.sweep({**SEARCH, "search": {**SEARCH["search"], "trials": 8}}, out=tmp_path / "s", jobs=1)
    assert tried(more)[:6] == tried(first) == tried(whole[1])[:6]
    assert len(played) == 2


def test_a_trial_with_a_failed_run_is_left_out_and_the_search_goes_on(tmp_path, monkeypatch):
    def failing(jobs, *rest, **more):
        if any(job.out.name == "trial=001,seed=1" for job in jobs):
            raise ValueError("bad luck")
        return play(jobs, *rest, **more)

    monkeypatch.setattr("hatdfed.sweeps.batches.play", failing)
    few = {**SEARCH, "search": {**SEARCH["search"], "trials": 8}}
    result = hatdfed.sweep(few, out=tmp_path / "s", jobs=1)
    assert result.failed == {"trial=001,seed=1": "ValueError: bad luck"}
    assert [row["missing_seeds"] for row in result.rows] == [[], [1], [], [], [], [], [], []]


def test_a_file_that_is_no_search_is_one_sentence(tmp_path):
    (tmp_path / "search.sqlite").write_text("not a database" * 100)
    with pytest.raises(RunFolderError, match=re.escape("search.sqlite cannot be used for a search")):
        Search(read_sweep(SEARCH), tmp_path / "search.sqlite")
