"""Training policies decide the same in every fleet, and go on where they were."""

import numpy as np
import pytest
from tests.alone import mailbox_simulation
from tests.parity.same_rounds import assert_same_rounds
from tests.parity.test_sharded import DATASET, played, settings, whole

ROUNDS = 6
POLICIES = [
    {"name": "every", "rounds": 2, "staggered": True, "ask_every": 2},
    {"name": "skip-train", "budget_rounds": 2},
    {"name": "marginal-gain", "warm_up": 0.0},
    {"name": "by-price", "cheap": 3, "dear": 1},
]


def training(chosen):
    return settings("rnd", rounds=ROUNDS, training=chosen, uploads={"keep": "samples"}, energy={"training_per": "pass"})


@pytest.mark.parametrize("chosen", POLICIES, ids=lambda chosen: chosen["name"])
def test_mailboxes_and_stacks_decide_the_same(chosen):
    config = training(chosen)
    simulation = mailbox_simulation(config, DATASET)
    expected, _ = played(simulation.coordinator, simulation.fleet, ROUNDS)
    records, _ = played(*whole(config), ROUNDS)
    assert_same_rounds(records, expected, tolerance=1e-4)
    assert len({each.num_samples for record in records for each in record.report.servers}) > 1


@pytest.mark.parametrize("chosen", POLICIES, ids=lambda chosen: chosen["name"])
def test_what_was_learned_goes_on_with_the_run(chosen):
    config = training(chosen)
    expected, _ = played(*whole(config), ROUNDS)
    coordinator, fleet = whole(config)
    _, state = played(coordinator, fleet, 3)
    rest, _ = played(coordinator, fleet, ROUNDS, state=state)
    assert_same_rounds(rest, expected[3:], tolerance=0.0)


def test_no_training_policy_means_no_decision():
    coordinator, _ = whole(settings("rnd"))
    assert coordinator.plan(coordinator.start(np.zeros(9))).effort is None


def test_servers_that_are_away_rest_whatever_the_policy_says():
    config = settings("rnd", training={"name": "every", "rounds": 1}, churn=0.5, seed=3)
    coordinator, _ = whole(config)
    state = coordinator.start(np.zeros(9))
    context, effort = coordinator.context(state), coordinator.plan(state).effort
    assert 0 < context.active.sum() < 9
    assert ((effort.passes > 0) == context.active).all()
