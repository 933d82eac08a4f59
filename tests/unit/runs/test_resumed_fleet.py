"""A resumed run goes on with the fleet that it was begun with, and its results say who computed it."""

import json

import pytest
from tests.small_runs import SMALL

import hatdfed
from hatdfed.errors import ConfigError


def begin(folder, **how):
    return hatdfed.run("rnd", **SMALL, checkpoint_every=1, out=folder, show_progress=False, **how)


def fleet_of(folder):
    return json.loads((folder / "results.json").read_text())["computed_by"]["fleet"]


def go_on(folder, rounds, **how):
    return hatdfed.resume(folder, {"rounds": rounds}, show_progress=False, **how)


def test_a_run_goes_on_with_the_fleet_that_it_was_begun_with(tmp_path):
    begin(tmp_path / "run", fleet="mailbox")
    resumed = go_on(tmp_path / "run", 5)
    assert resumed.summary["computed_by"]["fleet"] == fleet_of(tmp_path / "run") == "mailbox"


def test_another_fleet_is_used_where_it_is_asked_for(tmp_path):
    begin(tmp_path / "run", fleet="mailbox")
    assert go_on(tmp_path / "run", 5, fleet="stacked").summary["computed_by"]["fleet"] == "stacked"


def test_a_finished_run_keeps_who_computed_it(tmp_path):
    first = begin(tmp_path / "run", fleet="mailbox")
    again = go_on(tmp_path / "run", 3, fleet="stacked")
    assert again.summary["computed_by"] == first.summary["computed_by"]
    assert fleet_of(tmp_path / "run") == "mailbox"


def test_a_run_whose_first_fleet_nobody_noted_goes_on_with_the_default(tmp_path):
    begin(tmp_path / "run", fleet="mailbox")
    (tmp_path / "run" / "environment.json").write_text("{}")
    assert go_on(tmp_path / "run", 5).summary["computed_by"]["fleet"] == "stacked"


def test_a_training_policy_that_looks_at_data_is_refused_with_private_training():
    with pytest.raises(ConfigError, match=r"'marginal-gain' decides by accuracies.*ε does not cover that"):
        hatdfed.run(**SMALL, training={"name": "marginal-gain"}, privacy={"clip": 1.0}, show_progress=False)
