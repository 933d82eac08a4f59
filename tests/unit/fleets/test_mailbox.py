import numpy as np
import pytest
import torch
from tests.alone import mailbox_simulation, run_alone

from hatdfed.core.links import LinkTable, Topology
from hatdfed.core.policies.base import certain
from hatdfed.core.round import RoundPlan
from hatdfed.data.datasets import load_dataset
from hatdfed.errors import ConfigError
from hatdfed.setup.layers import resolve

DATASET = load_dataset("synthetic", options={"train": 1000, "validation": 200, "test": 200})
LINKS = LinkTable.all_of(4)


def simulation(method="hat-dfed", **settings):
    fixed = {"dataset": "synthetic", "network": "linear", "servers": 4, "validation_images": 100}
    return mailbox_simulation(resolve({"method": method, **fixed, **settings}), DATASET, run="test")


def plan_for(links, t=0, mixing=None):
    return RoundPlan(t, certain(LINKS, LINKS.from_dense(Topology.from_pairs(4, links).links), mixing))


def test_a_round_may_be_repeated_until_the_next_one_and_gives_the_same_result():
    fleet = simulation().fleet
    first = fleet.run_round(plan_for([(0, 1), (2, 3)]))
    models = fleet.models
    again = fleet.run_round(plan_for([(0, 1), (2, 3)]))
    assert torch.equal(fleet.models, models)
    assert [r.accuracy for r in first.servers] == [r.accuracy for r in again.servers]
    other = fleet.run_round(plan_for([(3, 0)]))
    assert not torch.equal(fleet.models, models)
    assert other.delivered(LINKS).sum() == 1


def test_reports_say_who_was_heard_and_what_it_weighed():
    report = simulation().fleet.run_round(plan_for([(0, 1), (0, 2), (3, 0)]))
    np.testing.assert_array_equal(LINKS.pairs(np.flatnonzero(report.delivered(LINKS))), [[0, 1], [0, 2], [3, 0]])
    for server in report.servers:
        assert server.importance.sum() == pytest.approx(1, abs=1e-6)
    importance = LINKS.to_dense(report.importance(LINKS), np.nan)
    assert importance[0, 1] == report.servers[0].importance[1]
    assert np.isnan(importance[0, 3])
    assert set(report.servers[0].scores) == {"loss"}


@pytest.mark.parametrize("codec", ["float32", "float16", "int8", "int4"])
def test_the_utility_prices_a_link_at_what_the_ledger_says_was_spent_on_it(codec):
    world = simulation(codec=codec)
    coordinator, state = world.coordinator, world.coordinator.start(np.zeros(4))
    plan = coordinator.plan(state)
    report = world.fleet.run_round(plan)
    spent = {(row.receiver, row.sender): row.joules for row in report.energy if row.cause == "link"}
    used = coordinator.facts(state, plan, report, coordinator.context(state)).link_joules[plan.draw.places]
    assert used.tolist() == pytest.approx([spent[i, j] for i, j in plan.draw.topology.pairs.tolist()], rel=1e-12)
    assert (coordinator.message_share == 1) == (codec == "float32")


def test_a_flipped_byte_is_refused_counted_and_left_out_of_the_merge():
    whole, broken = simulation().fleet, simulation().fleet

    def flip(data):
        damaged = bytearray(data)
        damaged[len(damaged) // 2] ^= 1
        return bytes(damaged)

    broken._channel = flip
    plan = plan_for([(0, 1), (2, 1), (3, 2)])
    report = broken.run_round(plan)
    assert broken.refused == {"damaged": 3}
    assert not report.delivered(LINKS).any()
    links = [row for row in report.energy if row.cause == "link"]
    assert len(links) == 3, "what was sent is paid for, delivered or not"
    alone = simulation().fleet
    alone.run_round(plan_for([]))
    assert torch.equal(broken.models, alone.models)
    whole.run_round(plan)
    assert not torch.equal(whole.models, alone.models)


def test_a_model_of_another_run_is_refused():
    mine, theirs = (
        simulation().fleet,
        mailbox_simulation(
            resolve({"dataset": "synthetic", "network": "linear", "servers": 4, "validation_images": 100}),
            DATASET,
            run="x",
        ).fleet,
    )
    letters = []
    theirs._channel = lambda data: letters.append(data) or data
    theirs.run_round(plan_for([(0, 1)]))
    mine._channel = lambda data: letters[0]
    mine.run_round(plan_for([(0, 1)]))
    assert mine.refused == {"foreign": 1}


def test_full_mesh_with_plain_averaging_makes_all_models_equal():
    sim = simulation("full")
    run_alone(sim.coordinator, sim.fleet, rounds=2)
    spread = (sim.fleet.models - sim.fleet.models.mean(dim=0)).abs().max()
    assert spread < 1e-6


def test_the_ring_keeps_the_mean_of_all_models_through_the_merge():
    sim = simulation("d-psgd", device_online_probability=0.0)
    before = sim.fleet.models.mean(dim=0)
    run_alone(sim.coordinator, sim.fleet, rounds=3)
    torch.testing.assert_close(sim.fleet.models.mean(dim=0), before, rtol=1e-5, atol=1e-6)


def test_without_links_and_devices_nothing_changes_and_nothing_is_spent():
    sim = simulation("local", device_online_probability=0.0)
    before = sim.fleet.models
    spent = []
    run_alone(sim.coordinator, sim.fleet, rounds=2, sinks=[lambda _, record: spent.extend(record.report.energy)])
    assert torch.equal(sim.fleet.models, before)
    assert sum(row.joules for row in spent) == 0


def test_half_precision_halves_the_link_energy_and_nothing_else():
    def spent(codec):
        report = simulation(codec=codec).fleet.run_round(plan_for([(0, 1), (2, 3)]))
        return {
            cause: sum(r.joules for r in report.energy if r.cause == cause) for cause in ("upload", "training", "link")
        }

    whole, half = spent("float32"), spent("float16")
    assert half["link"] == pytest.approx(whole["link"] / 2)
    assert (half["upload"], half["training"]) == (whole["upload"], whole["training"])


def test_a_snapshot_brings_everything_back():
    sim, other = simulation(), simulation(seed=9)
    state = run_alone(sim.coordinator, sim.fleet, rounds=3)
    snapshot = {name: array.copy() for name, array in sim.fleet.snapshot().items()}
    run_alone(sim.coordinator, sim.fleet, rounds=5, state=state)
    fresh = simulation()
    fresh.fleet.restore(snapshot)
    run_alone(fresh.coordinator, fresh.fleet, rounds=5, state=state)
    assert torch.equal(fresh.fleet.models, sim.fleet.models)
    assert not torch.equal(other.fleet.models, sim.fleet.models)


def test_methods_of_one_seed_meet_the_same_world():
    worlds = [simulation(method) for method in ("hat-dfed", "rnd", "full")]
    first = worlds[0]
    for other in worlds[1:]:
        np.testing.assert_array_equal(first.coordinator.prices.link_joules, other.coordinator.prices.link_joules)
        for mine, theirs in zip(first.fleet._sources, other.fleet._sources, strict=True):
            assert torch.equal(mine.work(3).batches[0].x, theirs.work(3).batches[0].x)
        assert torch.equal(first.fleet.models, simulation("d-psgd").fleet.models)


def test_a_common_start_is_common():
    assert torch.equal(*simulation(common_init=True).fleet.models[:2])
    assert not torch.equal(*simulation().fleet.models[:2])


def test_push_sum_never_loses_mass_even_when_messages_are_refused():
    sim = simulation("rnd", aggregator={"name": "push-sum"})
    calls = []

    def every_third_is_lost(data):
        calls.append(data)
        return data if len(calls) % 3 else data[:-1]

    sim.fleet._channel = every_third_is_lost
    run_alone(sim.coordinator, sim.fleet, rounds=4)
    masses = [scalars[1] for name, scalars in sim.fleet.snapshot().items() if name.endswith("scalars")]
    assert sum(sim.fleet.refused.values()) > 3
    assert sum(masses) == pytest.approx(4)
    assert len(set(masses)) > 1


def test_an_aggregator_that_needs_a_plan_is_refused_without_one():
    with pytest.raises(
        ConfigError, match="Use one of base-2-graph, epidemic-oracle, pairwise-averaging, regular-graph, ring"
    ):
        simulation("rnd", aggregator={"name": "by-plan"})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"policy": {"learning_rate": "fast"}}, "policy.learning_rate is 'fast'"),
        ({"policy": {"learning_rte": 0.1}}, "no setting 'learning_rte'. Did you mean learning_rate"),
        ({"policy": {"name": "ringg"}}, "Did you mean ring"),
        ({"aggregator": {"quality_share": 0.5}}, "no setting 'quality_share'"),
        ({"aggregator": {"loss_order": 3}}, "aggregator.loss_order is 3"),
        ({"codec": "float8"}, "Did you mean float"),
        ({"network": "big"}, "network is 'big'"),
    ],
)
def test_a_component_that_cannot_be_built_gets_one_sentence(settings, message):
    with pytest.raises(ConfigError) as caught:
        simulation(**settings)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_planned_weights_are_read_by_the_receivers_row():
    mixing = np.zeros((4, 4))
    mixing[0, 1] = 0.8  # 0 receives from 1 with 0.8, nobody else listens
    fleet = simulation("d-psgd", device_online_probability=0.0).fleet
    before = fleet.models
    fleet.run_round(plan_for([(0, 1)], mixing=LINKS.from_dense(mixing)))
    torch.testing.assert_close(fleet.models[0], 0.2 * before[0] + 0.8 * before[1])
    assert torch.equal(fleet.models[1:], before[1:])
