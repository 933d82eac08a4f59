"""No honest server is caught, and a minority of servers with false reports cannot keep the honest ones apart."""

import json
from dataclasses import replace

import numpy as np
import pytest
from tests.alone import run_alone
from tests.group_matrices import find_groups

from hatdfed import resume, run
from hatdfed.cli.show import show_command
from hatdfed.data.datasets import load_dataset
from hatdfed.setup.build.placement import Placement
from hatdfed.setup.build.simulation import make_batch
from hatdfed.setup.layers import config_members, resolve

DATASET = load_dataset("digits")
# Links in every round; all are introduced in round 2.
QUICK = {
    "dataset": "digits", "network": "linear", "servers": 10, "rounds": 8, "validation_images": 100,
    "learner": {"learning_rate": 0.02}, "method": "hat-dfed-trust", "schedule": {"every": 1, "finish_rounds": 2},
    "policy": {"ready": 1.0, "latest": 0.25, "quiet": 0, "curiosity": 0.3},
}  # fmt: skip
TWO = {"groups": 2, "differ": "labels"}
HONEST = {
    "plain": {},
    "two meanings": {"world": TWO},
    "80/20": {"world": {**TWO, "group_shares": [0.8, 0.2]}},
    "a lone server": {"world": {"groups": 2, "differ": "inputs", "group_shares": [0.9, 0.1]}},
    "groups that change": {"world": {**TWO, "changing": 0.3, "change_at": 0.5}},
    "bad labels": {"world": {"bad_labels": 0.2}},
    "broken sensors": {"world": {"broken_sensors": 0.2}},
    "unequal amounts": {"world": {"amount_ratio": 10.0}},
    "own feedback": {"world": {"amount_ratio": 10.0}, "feedback": "own"},
    "churn": {"churn": 0.3},
    "lossy links": {"world": {"link_loss": [0.2, 0.6]}},
    "drifting prices": {"world": {"price_drift": 3.0}},
    "candidates": {"candidates": 4},
    "a small codec": {"codec": "int8"},
    "the paper's method": {"method": "hat-dfed", "policy": {"name": "link-bandit"}},
    "released utility": {"method": "hat-dfed-literal", "policy": {"name": "link-bandit"}},
    "losses": {"method": "pens", "policy": {"name": "pens"}},
    "similarity": {"method": "morph", "policy": {"name": "morph"}},
    "push-sum": {"method": "sgp", "policy": {"name": "random-links"}},
    "liars who report the truth": {"world": {"liars": 0.4, "attack": "sign-flip"}},
}


def make_config(**more):
    return resolve({**QUICK, **more})


def play(config, tell=None):
    """The last state and the records; `tell` changes what the coordinator is told."""
    (simulation,) = make_batch([config], DATASET, Placement("stacked", "cpu"), names=[""]).simulations
    coordinator = simulation.coordinator if tell is None else Deceived(simulation.coordinator, tell)
    records = []
    state = run_alone(
        coordinator, simulation.fleet, rounds=config.rounds, sinks=[lambda _, record: records.append(record)]
    )
    return state, records


class Deceived:
    """A coordinator that is told something else than the truth."""

    def __init__(self, inner, tell):
        self.inner, self.tell = inner, tell
        self.start, self.plan = inner.start, inner.plan

    def learn(self, state, plan, report):
        return self.inner.learn(state, plan, self.tell(report))


@pytest.mark.parametrize("name", HONEST)
def test_no_honest_server_is_caught(name):
    state, _ = play(make_config(**HONEST[name]))
    assert state.caught == ()


@pytest.mark.parametrize("liars", [0.2, 0.4])
def test_who_reports_falsely_is_caught_at_once_and_the_honest_stay_together(liars):
    config = make_config(world={"liars": liars, "attack": "false-reports"})
    is_liar = config_members(config).is_liar
    state, records = play(config)
    assert [(each.server, each.round) for each in state.caught] == [(i, 0) for i in np.flatnonzero(is_liar)]
    assert_together(config, state, records)


def assert_together(config, state, records):
    """All honest servers are one group, and in the finish each hears all the others."""
    honest = np.flatnonzero(~config_members(config).is_liar)
    groups = state.policy.inner.group
    assert len(set(groups[honest])) == 1
    for i in honest:
        assert set(records[-1].draw.topology.senders(i)) >= set(honest) - {i}


def tell_within_bounds(config, praised):
    """What liars say if they know the bounds: only scores are false; `praised` are those whose models they praise."""
    is_liar = config_members(config).is_liar

    def falsify(server, report):
        if not is_liar[server] or "harm" not in report.scores:
            return report
        others = np.where(np.isin(report.senders, praised) | is_liar[report.senders], 0.0, 10.0)
        harm = np.where(report.senders == server, 0.0, others)
        scores = {**report.scores, "harm": harm, "loss": 2 * harm, "evidence": np.full(len(harm), config.probe_size)}
        return report._replace(accuracy=1.0, scores=scores)

    return lambda report: replace(report, servers=tuple(falsify(i, each) for i, each in enumerate(report.servers)))


def play_with_careful_liars(liars, praised, **more):
    """A run whose liars send honest models and praise some of the honest servers; with who is honest.

    All are introduced in round 6, when they know something: models that are hardly trained look alike to nobody.
    """
    more = {"rounds": 24, **more}
    config = make_config(world={"liars": liars, "attack": "false-reports"}, **more)
    honest = np.flatnonzero(~config_members(config).is_liar)
    state, records = play(make_config(**more), tell_within_bounds(config, honest[:praised]))
    assert not {each.server for each in state.caught} & set(honest.tolist())
    return config, honest, state, records


@pytest.mark.parametrize(("liars", "praised"), [(0.2, n) for n in range(8)] + [(0.4, n) for n in range(6)])
def test_who_knows_the_bounds_separates_at_most_one_honest_server_from_the_others(liars, praised):
    _, honest, state, _ = play_with_careful_liars(liars, praised)
    groups = state.policy.inner.group
    assert np.bincount(groups[honest]).max() >= len(honest) - 1


def test_who_tells_different_stories_is_caught():
    config, _, state, _ = play_with_careful_liars(0.1, 4, label_concentration=100.0, rounds=8)
    (liar,) = np.flatnonzero(config_members(config).is_liar)
    (caught,) = state.caught
    assert caught.server == liar
    assert caught.round in (2, 6), "where everybody hears everybody"
    assert "in contradiction to servers" in caught.reason


@pytest.mark.parametrize("liars", [2, 4])
def test_no_verdicts_of_a_minority_split_those_who_agree(liars):
    """Whatever a minority of ten says, each about all others."""
    rng = np.random.default_rng(liars)
    known = ~np.eye(10, dtype=bool)
    for _ in range(200):
        verdict = np.where(known, rng.uniform(0.6, 1.0, (10, 10)), 0.0)
        verdict[:liars] = np.where(known[:liars], rng.choice([-1.0, 1.0], (liars, 10)), 0.0)
        assert len(set(find_groups(verdict, known)[liars:])) == 1


def test_a_run_names_who_was_caught_also_after_a_pause(tmp_path, capsys):
    settings = {**QUICK, "rounds": 4, "servers": 5, "world": {"liars": 0.2, "attack": "false-reports"}}
    config = resolve({**settings, "rounds": 2, "horizon": 4})
    (liar,) = np.flatnonzero(config_members(config).is_liar)
    run(config, out=tmp_path / "run")
    result = resume(tmp_path / "run", {"rounds": 4})
    (caught,) = result.summary["caught"]
    assert caught == {"server": liar, "round": 0, "reason": caught["reason"]}
    (note,) = [each for each in result.summary["notes"] if each.startswith("Caught")]
    assert f"server {liar} in round 1 (it reported" in note
    show_command(tmp_path / "run")
    assert note in capsys.readouterr().out
    show_command(tmp_path / "run", as_json=True)
    assert json.loads(capsys.readouterr().out)["caught"] == [caught]
    assert not {liar} & {row[end] for row in result.links for end in ("receiver", "sender") if row["t"] > 0}
