"""The centralised reference: models are averages of all, and joules are those of a star."""

import numpy as np
import pytest

from hatdfed.core.policies.base import NoState
from hatdfed.core.policies.parameter_server import ParameterServer
from hatdfed.data.datasets import load_dataset
from hatdfed.errors import ConfigError
from hatdfed.setup.build.placement import Placement
from hatdfed.setup.build.simulation import make_batch
from hatdfed.setup.layers import resolve
from hatdfed.testing import policy_context

N = 5
DATASET = load_dataset("synthetic", options={"train": 1000, "validation": 200, "test": 200})
SETTINGS = {"dataset": "synthetic", "network": "linear", "servers": N, "rounds": 3, "validation_images": 100}


def simulate(fleet, method, **more):
    config = resolve({"method": method, **SETTINGS, **more})
    return make_batch([config], DATASET, Placement(fleet, "cpu"), ["test"]).simulations[0]


def first_round(simulation):
    coordinator = simulation.coordinator
    plan = coordinator.plan(coordinator.start(np.zeros(N)))
    return plan, simulation.fleet.run_round(plan)


def propose(**more):
    return ParameterServer().propose(NoState(), policy_context(N, **more), np.random.default_rng(0))


@pytest.mark.parametrize("fleet", ["mailbox", "stacked"])
def test_every_server_gets_the_mean_of_all_trained_models_weighted_by_samples(fleet):
    alone, central = simulate(fleet, "local"), simulate(fleet, "fedavg")
    _, report = first_round(alone)
    trained, weights = alone.fleet.models.double().numpy(), report.num_samples / report.num_samples.sum()
    assert len(set(report.num_samples)) > 1  # otherwise weights would not matter
    first_round(central)
    for model in central.fleet.models.double().numpy():
        np.testing.assert_allclose(model, weights @ trained, atol=1e-6)


@pytest.mark.parametrize("fleet", ["mailbox", "stacked"])
def test_links_cost_the_joules_and_bits_of_a_star_around_its_cheapest_server(fleet):
    simulation = simulate(fleet, "fedavg", energy={"overhead_bits": 1000})
    plan, report = first_round(simulation)
    joules = simulation.coordinator.prices.link_joules
    stars = joules.sum(axis=0) + joules.sum(axis=1)
    rows = [row for row in report.energy if row.cause == "link"]
    assert plan.draw.host == stars.argmin()
    assert sum(row.joules for row in rows) == pytest.approx(stars.min(), rel=1e-9)
    assert sum(row.bits > 0 for row in rows) == plan.draw.num_messages == 2 * (N - 1)


def test_honest_servers_are_not_caught_and_the_record_counts_messages():
    simulation = simulate("mailbox", "fedavg")
    coordinator = simulation.coordinator
    state = coordinator.start(np.zeros(N))
    plan = coordinator.plan(state)
    state, record = coordinator.learn(state, plan, simulation.fleet.run_round(plan))
    assert not record.caught
    assert record.draw.num_messages == 2 * (N - 1)


def test_a_round_lasts_until_the_host_has_received_all_models_and_sent_the_average():
    simulation = simulate("mailbox", "fedavg")
    coordinator = simulation.coordinator
    state = coordinator.start(np.zeros(N))
    plan = coordinator.plan(state)
    _, record = coordinator.learn(state, plan, simulation.fleet.run_round(plan))
    time, latency, host = record.time, coordinator.clock.machines.latency_seconds, plan.draw.host
    others = np.arange(N) != host
    collected = max(time.ready[host], (time.ready + time.sending + latency)[others].max())
    assert time.seconds == pytest.approx(collected + time.sending[host] + latency[host])


def test_the_host_is_the_cheapest_of_the_servers_that_are_present():
    prices = np.full((N, N), 5.0)
    prices[1], prices[3] = 1.0, 2.0
    assert propose(prices=prices).host == 1
    active = np.arange(N) != 1
    draw = propose(prices=prices, active=active)
    assert draw.host == 3
    assert draw.topology.num_links == 4 * 3
    assert draw.num_messages == 2 * 3


def test_a_server_without_a_link_to_the_host_is_left_out():
    reachable = ~np.eye(N, dtype=bool)
    reachable[4] = False
    draw = propose(reachable=reachable)
    assert draw.host != 4
    assert not draw.topology.links[:, 4].any()


def test_without_a_partner_nothing_is_sent():
    draw = propose(active=np.arange(N) == 2)
    assert draw.host is None
    assert draw.num_messages == 0


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"codec": "int8"}, "codec"),
        ({"world": {"link_loss": [0.0, 0.1]}}, "world.link_loss"),
        ({"budget_joules": 10.0}, "budget_joules"),
        ({"schedule": {"finish_rounds": 1}}, "schedule.finish_rounds"),
        ({"aggregator": {"name": "importance"}}, "aggregator.name"),
    ],
)
def test_what_is_not_simulated_for_it_is_refused_by_name(more, named):
    with pytest.raises(ConfigError, match=rf"^{named} is"):
        resolve({"method": "fedavg", **SETTINGS, **more})
