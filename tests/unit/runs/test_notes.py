"""What a run says about itself in plain words."""

import pytest
from tests.small_runs import SMALL

from hatdfed.runs.calls import run

ALONE = "every server"


def notes_of(**settings):
    return [note for note in run({**SMALL, **settings}).summary["notes"] if ALONE in note]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"method": "hat-dfed-plus", "rounds": 1}, "schedule.every is 2, but the run has 1 round"),
        ({"method": "rnd", "rounds": 3, "schedule": {"every": 4}}, "schedule.every is 4, but the run has 3 rounds"),
        ({"method": "rnd", "rounds": 2, "schedule": {"budget_joules": 1e-9}}, "No link was drawn in any of the 2"),
        ({"method": "local", "rounds": 1}, "No link was drawn in the only round"),
    ],
)
def test_a_run_without_any_link_says_so_once(settings, words):
    (note,) = notes_of(**settings)
    assert words in note


def test_a_run_in_which_nobody_was_there_says_so_instead():
    assert notes_of(method="rnd", rounds=2, churn=1.0) == []
    notes = run({**SMALL, "method": "rnd", "rounds": 2, "churn": 1.0}).summary["notes"]
    assert any("No server trained in any of the 2 rounds: all of them were away" in note for note in notes)


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "hat-dfed-plus", "rounds": 2},
        {"method": "rnd", "rounds": 3, "schedule": {"every": 3}},
        {"method": "rnd", "rounds": 3, "schedule": {"every": 9, "finish_rounds": 1}},
        {"method": "rnd", "rounds": 1},
    ],
)
def test_a_run_with_links_does_not(settings):
    assert notes_of(**settings) == []


def test_a_run_whose_servers_see_their_data_differently_says_which_accuracy_is_which():
    world = {"groups": 2, "differ": "labels"}
    summary = run({**SMALL, "method": "local", "servers": 4, "world": world}).summary
    (note,) = [note for note in summary["notes"] if "own_accuracy" in note]
    assert f"{summary['own_accuracy']:.1f} % on average" in note
    plain = run({**SMALL, "method": "local", "servers": 4}).summary
    assert not [note for note in plain["notes"] if "own_accuracy" in note]
