"""What proposes trials: each is a function of the seed and the trial's number, and stays within the space."""

import pytest
from tests.unit.sweeps.small import SMALL

import hatdfed
from hatdfed.errors import ConfigError
from hatdfed.sweeps.file import read_sweep
from hatdfed.sweeps.search import Search

pytest.importorskip("optuna")

FINITE = {"codec": ["float32", "int8"], "schedule.every": {"low": 1, "high": 3}}
SPACE = {
    **FINITE,
    "policy.thrift": {"low": 0.5, "high": 16.0, "log": True},
    "learner.momentum": {"low": 0.0, "high": 0.6, "step": 0.1},
    "rounds": {"low": 1, "high": 64, "log": True},
    "link_share": {"low": 0.2, "high": 0.4},
}


def propose(sampler, parameters=SPACE, trials=16, seed=0):
    search = {"parameters": parameters, "trials": trials, "at_once": 100, "sampler": sampler, "sampler_seed": seed}
    study = Search(read_sweep({"base": {**SMALL, "method": "hat-dfed-plus"}, "search": search}), None)
    study._fill_group()
    return study.trials


def settings(trials):
    return [dict(trial.point.settings) for trial in trials]


@pytest.mark.parametrize("sampler", ["tpe", "random", "sobol"])
def test_trials_are_in_the_space_and_follow_from_the_seed(sampler):
    trials = propose(sampler)
    assert [trial.sampler for trial in trials] == [sampler] * 16
    for tried in settings(trials):
        assert tried["codec"] in ("float32", "int8")
        assert tried["schedule.every"] in (1, 2, 3)
        assert 0.5 <= tried["policy.thrift"] <= 16
        assert round(10 * tried["learner.momentum"], 9) in range(7)
        assert tried["rounds"] in range(1, 65)
        assert 0.2 <= tried["link_share"] <= 0.4
    assert settings(propose(sampler)) == settings(trials)
    assert settings(propose(sampler, seed=1)) != settings(trials)
    assert settings(propose(sampler, trials=5)) == settings(trials)[:5]


def test_a_sobol_sequence_meets_every_part_of_a_range():
    shares = [(each["link_share"] - 0.2) / 0.2 for each in settings(propose("sobol"))]
    assert sorted(int(16 * share) for share in shares) == list(range(16))


def test_a_grid_tries_every_combination_once():
    tried = settings(propose("grid", FINITE, trials=None))
    wanted = [{"codec": codec, "schedule.every": every} for codec in ("float32", "int8") for every in (1, 2, 3)]
    assert sorted(tried, key=str) == sorted(wanted, key=str)
    assert tried != wanted  # in an order of its own
    assert settings(propose("grid", FINITE, trials=99)) == tried
    assert settings(propose("grid", FINITE, trials=2)) == tried[:2]


def test_steps_of_a_grid_are_the_numbers_that_people_write():
    tried = propose("grid", {"learner.momentum": {"low": 0.0, "high": 0.6, "step": 0.1}}, trials=None)
    assert sorted(each["learner.momentum"] for each in settings(tried)) == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6]


def test_a_grid_is_played_to_its_end_and_continues_from_where_it_was(tmp_path):
    search = {"parameters": FINITE, "sampler": "grid", "at_once": 3}
    sweep = {"base": {**SMALL, "rounds": 1, "method": "hat-dfed-plus"}, "search": search}
    first = hatdfed.sweep({**sweep, "search": {**search, "trials": 3}}, out=tmp_path / "s", jobs=1)
    whole = hatdfed.sweep(sweep, out=tmp_path / "s", jobs=1)
    assert len(whole.rows) == 6
    assert [row["settings"] for row in whole.rows[:3]] == [row["settings"] for row in first.rows]
    assert {row["sampler"] for row in whole.rows} == {"grid"}


@pytest.mark.parametrize(
    ("search", "sentence"),
    [
        ({"sampler": "gird", "parameters": FINITE}, r"search\.sampler is 'gird'.*Did you mean grid\?"),
        ({"sampler": "grid", "parameters": SPACE}, r"policy\.thrift is a continuous range, of which a grid has no end"),
        ({"sampler": "grid", "parameters": {"rounds": {"low": 1, "high": 10**9}}}, "at most 100000 are tried"),
        ({"parameters": {"link_share": {"low": 0.1, "high": float("inf")}}}, "has no finite range"),
    ],
)
def test_what_cannot_be_sampled_is_one_sentence(search, sentence):
    with pytest.raises(ConfigError, match=sentence):
        read_sweep({"base": SMALL, "search": search})
