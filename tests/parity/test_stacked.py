"""The stacked fleet against the reference: the same topologies, energies and models as mailboxes, for every method."""

import dataclasses
from functools import partial

import numpy as np
import pytest
import torch
from tests.alone import mailbox_simulation, run_alone
from tests.parity.same_rounds import assert_same_rounds
from torch import nn

from hatdfed.core import loop
from hatdfed.core.links import LinkTable, Topology
from hatdfed.core.policies.base import certain
from hatdfed.core.round import RoundPlan
from hatdfed.data.datasets import load_dataset
from hatdfed.data.datasets.base import Examples
from hatdfed.fleets.kernels.model import KernelModel
from hatdfed.fleets.kernels.stages import TorchStages, stage_kernels
from hatdfed.fleets.mailbox import MailboxFleet
from hatdfed.fleets.stacked.fleet import StackedFleet
from hatdfed.fleets.stacked.rows import Execution, RunServers
from hatdfed.server.learner import Learner
from hatdfed.server.networks import NETWORKS
from hatdfed.server.optimisers import Sgd
from hatdfed.server.robust import ClippedGossip, Median, MultiKrum, TrimmedMean, Ubar
from hatdfed.setup.build.placement import Placement
from hatdfed.setup.build.program import initial_seed, make_actors
from hatdfed.setup.build.simulation import make_batch
from hatdfed.setup.build.world import make_pools, make_world
from hatdfed.setup.layers import resolve
from hatdfed.setup.methods import METHODS

DATASET = load_dataset("synthetic", options={"train": 800, "validation": 150, "test": 60})
CPU = torch.device("cpu")
ROUNDS = 4  # hat-dfed-plus is silent in the first, draws in the second and takes all links in the last two


def settings(method="hat-dfed", **more):
    # Few devices come, so batches are ragged and some servers have none at all.
    fixed = {"dataset": "synthetic", "network": "small-cnn", "servers": 6, "rounds": ROUNDS, "validation_images": 100}
    return resolve({"method": method, **fixed, "device_online_probability": 0.08, **more})


def tiny_cnn(shape, num_classes):
    """Dropout, a ReLU in the head, a convolution with and one without a bias."""
    channels, height, width = shape
    return nn.Sequential(
        nn.Conv2d(channels, 5, 3, padding=1, bias=False),
        nn.BatchNorm2d(5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(5, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Sequential(nn.Linear(16 * (height // 4) * (width // 4), 20), nn.Dropout(0.25)),
        nn.ReLU(),
        nn.Linear(20, 12, bias=False),
        nn.Dropout(0.1),
        nn.Linear(12, num_classes),
    )


def stacked_alone(config, *, rows_at_once=4, kernels=None, **changes):
    world = make_world(config, DATASET)
    coordinator, program = make_actors(config, DATASET)
    program = dataclasses.replace(program, **changes)
    member = RunServers(
        program, world.sources, coordinator.prices, [initial_seed(config, i) for i in range(config.servers)], world.test
    )
    model = KernelModel(program.learner, DATASET.train.x.shape[1:], CPU, kernels)
    fleet = StackedFleet([member], Execution(CPU, rows_at_once, rows_at_once + 1), model)
    return coordinator, fleet.fleets[0]


def mailboxes(config, **changes):
    coordinator, program = make_actors(config, DATASET)
    seeds = [initial_seed(config, i) for i in range(config.servers)]
    program = dataclasses.replace(program, **changes)
    world = make_world(config, DATASET)
    return coordinator, MailboxFleet(
        program, world.sources, coordinator.prices, world.test, initial_seeds=seeds, codec_name=config.codec
    )


def played(coordinator, fleet, rounds=ROUNDS):
    records = []
    run_alone(coordinator, fleet, rounds=rounds, sinks=[lambda _, record: records.append(record)])
    return records


def logits(learner, models):
    x = make_pools(DATASET).test.x
    return torch.stack([learner.logits(model, x) for model in models])


def assert_parity(config, *more_kernels):
    """With the kernels of this machine, and with others if given; the reference, which takes longest, plays once."""
    reference, box = mailboxes(config)
    expected, learner = played(reference, box, config.rounds), box._program.learner
    answers = logits(learner, box.models)
    for kernels in (None, *more_kernels):
        coordinator, member = stacked_alone(config, kernels=kernels)
        assert_same_rounds(played(coordinator, member, config.rounds), expected)
        torch.testing.assert_close(logits(learner, member.models), answers, rtol=0, atol=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_every_method(method):
    """Whole numbers on the wire: eight bits would make a level of a difference in the last digit now and then."""
    assert_parity(settings(method, codec="float32"))


@pytest.mark.parametrize("method", ["hat-dfed", "sgp", "dac", "pens", "d-psgd"])
@pytest.mark.parametrize("network", ["linear", "tiny"])
def test_other_networks_and_plain_torch(method, network, monkeypatch):
    monkeypatch.setitem(NETWORKS.built_in, "tiny", tiny_cnn)
    config = settings(method, network=network, device_online_probability=0.4, rounds=3)
    shapes = stacked_alone(config)[1].fleet.rows.model.network.blueprint.stages
    assert_parity(config, TorchStages(tuple(stage.shape for stage in shapes)))


@pytest.mark.parametrize("method", ["hat-dfed", "sgp", "d-psgd"])
def test_half_precision_on_the_wire(method):
    """Rounding to half precision may turn a difference in the last digit into one in the fourth, so only a round."""
    config = settings(method, codec="float16", rounds=1)
    reference, box = mailboxes(config)
    coordinator, member = stacked_alone(config)
    assert_same_rounds(played(coordinator, member, 1), played(reference, box, 1), tolerance=1e-3)


@pytest.mark.parametrize("method", ["hat-dfed", "sgp", "d-psgd"])
def test_label_prior_schedule_and_finish(method):
    schedule = {"every": 2, "finish_rounds": 1}
    assert_parity(settings(method, loss={"name": "label-prior"}, schedule=schedule))


@pytest.mark.parametrize("method", ["hat-dfed", "sgp"])
def test_a_cool_down_from_one_start(method):
    assert_parity(settings(method, learner={"cool_down": 1.0}, common_init=True))


@pytest.mark.parametrize(("codec", "level"), [("int8", 2e-3), ("int4", 4e-2)])
def test_a_codec_with_memory_remembers_only_what_was_sent(codec, level):
    """Few bits turn a difference in the last digit into a level now and then, so models are near, not equal."""
    config = settings("rnd", codec=codec, schedule={"every": 2}, link_share=0.2, rounds=2)
    reference, box = mailboxes(config)
    coordinator, member = stacked_alone(config)
    ours, theirs = played(coordinator, member, 2), played(reference, box, 2)
    assert [record.draw.topology for record in ours] == [record.draw.topology for record in theirs]
    assert [record.report.energy for record in ours] == [record.report.energy for record in theirs]
    silent = [not theirs[1].draw.topology.receivers(server) for server in range(config.servers)]
    assert 0 < sum(silent) < config.servers
    for server, memory in enumerate(member.fleet.rows.memories):
        mine = box._servers[server].codec_memory
        assert bool((memory == 0).all()) == bool((mine == 0).all()) == silent[server]
        torch.testing.assert_close(memory, mine, rtol=0, atol=level)
    torch.testing.assert_close(member.models, box.models, rtol=0, atol=level)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_stochastic_gradient_descent(momentum):
    learner = {"optimiser": "sgd", "learning_rate": 0.02, "momentum": momentum}
    assert_parity(settings("sgp", learner=learner, device_online_probability=0.5))


@pytest.mark.parametrize(
    ("optimiser", "more"), [("AdamW", {"weight_decay": 0.1}), ("NAdam", {}), ("adagrad", {}), ("adam", {"eps": 1e-4})]
)
def test_optimisers_of_torch_on_kernels_of_our_own(optimiser, more):
    learner = {"optimiser": optimiser, "optimiser_settings": more, "cool_down": 0.5}
    assert_parity(settings("sgp", learner=learner, device_online_probability=0.5))


def test_several_batches_in_a_pass_and_topped_up_probes():
    assert_parity(settings("hat-dfed-released", samples_per_round=60, batch_size=7, device_online_probability=0.4))


def plan_of(topology):
    links = LinkTable.all_of(topology.num_servers)
    return RoundPlan(0, certain(links, links.from_dense(topology.links)))


@pytest.mark.parametrize("rule", [Median(), TrimmedMean(), MultiKrum(), ClippedGossip(), Ubar()], ids=repr)
def test_a_rule_that_is_no_average_sees_the_models(rule):
    # Plain gradient steps: Adam divides tiny gradients by their size, so rounding would differ from machine to machine.
    plain = {"optimiser": "sgd", "learning_rate": 0.02}
    config = settings("rnd", link_share=0.5, device_online_probability=0.5, learner=plain)
    reference, box = mailboxes(config, aggregator=rule)
    coordinator, member = stacked_alone(config, aggregator=rule)
    assert_same_rounds(played(coordinator, member), played(reference, box))
    torch.testing.assert_close(member.models, box.models, rtol=0, atol=1e-5)


def test_a_model_that_is_not_finite_is_refused_counted_and_its_mass_stays_at_home():
    config = settings("sgp", rounds=2)
    fleets = [mailboxes(config), stacked_alone(config)]
    for _, fleet in fleets:
        snapshot = {name: array.copy() for name, array in fleet.snapshot().items()}
        snapshot["2.params"][7] = np.inf
        fleet.restore(snapshot)
    reports = [[record.report for record in played(*pair, rounds=2)] for pair in fleets]
    for one, other in zip(*reports, strict=True):
        for mine, theirs in zip(one.servers, other.servers, strict=True):
            np.testing.assert_array_equal(mine.senders, theirs.senders)
    first = reports[0][0].servers  # in the next round it has a model again, made of what arrived
    assert all(i == 2 or 2 not in report.senders for i, report in enumerate(first))
    assert fleets[0][1].refused == fleets[1][1].refused
    assert fleets[1][1].refused["not-finite"] > 0
    assert fleets[1][1].refused["own-not-finite"] == 1
    masses = [[fleet.snapshot()[f"{i}.scalars"][1] for i in range(6)] for _, fleet in fleets]
    np.testing.assert_allclose(masses[0], masses[1], rtol=1e-12)
    assert sum(masses[1]) == pytest.approx(6)


MIXED = (
    settings("hat-dfed", seed=1),
    settings("hat-dfed-literal", seed=1, gain_share=0.9, link_share=0.5),
    settings("sgp", seed=2, servers=4, label_concentration=2.0, rounds=3),
    settings("hat-dfed", seed=1, quality_share=1.0, device_online_probability=0.9, codec="float16"),
    settings("dac", seed=2, validation_images=60, energy={"link_kbit_per_joule": [1.0, 2.0]}),
    settings("pens", seed=5, feedback="test", common_init=True),
)


def kept_in(records):
    return lambda _, record: records.append(record)


@pytest.fixture(scope="module")
def batch_of_runs():
    batch = make_batch(MIXED, DATASET, Placement("stacked", "cpu"), names=["x"] * len(MIXED))
    records = [[] for _ in MIXED]
    players = [
        loop.RunInPlay(
            sim.coordinator, sim.coordinator.start(sim.fleet.validation_accuracy()), config.rounds, [kept_in(mine)]
        )
        for sim, config, mine in zip(batch.simulations, MIXED, records, strict=True)
    ]
    loop.run(players, batch.fleets)
    return batch, records


@pytest.mark.parametrize("number", range(len(MIXED)))
def test_runs_in_one_fleet_are_what_each_is_alone(batch_of_runs, number):
    batch, records = batch_of_runs
    sim = mailbox_simulation(MIXED[number], DATASET)
    alone = played(sim.coordinator, sim.fleet, MIXED[number].rounds)
    assert [r.draw.topology for r in records[number]] == [r.draw.topology for r in alone]
    assert [r.report.energy for r in records[number]] == [r.report.energy for r in alone]
    if MIXED[number].codec == "float32":
        assert_same_rounds(records[number], alone)
        learner = sim.fleet._program.learner
        theirs = logits(learner, sim.fleet.models)
        torch.testing.assert_close(logits(learner, batch.simulations[number].fleet.models), theirs, rtol=0, atol=1e-4)


def test_a_label_that_no_training_image_has(monkeypatch):
    kept = DATASET.train.y < DATASET.task.num_outputs - 1
    train = Examples(DATASET.train.x[kept], DATASET.train.y[kept])
    monkeypatch.setattr("tests.parity.test_stacked.DATASET", DATASET._replace(train=train))
    assert_parity(settings("hat-dfed-plus", codec="float32"))


def test_the_same_bits_every_time():
    config = settings(device_online_probability=0.5)
    first, second = stacked_alone(config), stacked_alone(config)
    one, other = played(*first), played(*second)
    assert torch.equal(first[1].models, second[1].models)
    assert [r.report.energy for r in one] == [r.report.energy for r in other]


def test_a_run_can_change_fleets_in_the_middle():
    config = settings("sgp", rounds=4, device_online_probability=0.5)
    reference, box = mailboxes(config)
    state = run_alone(reference, box, rounds=2)
    coordinator, member = stacked_alone(config)
    member.restore(box.snapshot())
    assert torch.equal(member.models, box.models)
    run_alone(coordinator, member, rounds=4, state=state)
    run_alone(reference, box, rounds=4, state=state)
    torch.testing.assert_close(member.models, box.models, rtol=0, atol=1e-4)
    back = mailboxes(config)[1]
    back.restore(member.snapshot())
    assert torch.equal(back.models, member.models)


def test_a_repeated_plan_is_not_played_again():
    coordinator, member = stacked_alone(settings())
    plan = coordinator.plan(coordinator.start(np.zeros(6)))
    first = member.run_round(plan)
    models = member.models
    assert member.run_round(plan) is first
    assert torch.equal(member.models, models)


def test_runs_of_different_pools_are_refused():
    config = settings()
    members = []
    for _ in range(2):
        coordinator, program = make_actors(config, DATASET)
        world = make_world(config, DATASET)
        members.append(RunServers(program, world.sources, coordinator.prices, [1] * 6, world.test))
    with pytest.raises(ValueError, match="share one pool"):
        StackedFleet(members, Execution(CPU, 4))


def test_an_optimiser_without_a_stacked_form_says_so():
    class Own(Sgd):
        pass

    @dataclasses.dataclass(frozen=True)
    class Other:
        def init(self, num_trainable):
            return Sgd().init(num_trainable)

        def step(self, params, gradient, state):
            return params, state

    config = settings(device_online_probability=0.9)
    maker = partial(NETWORKS["linear"], tuple(DATASET.train.x.shape[1:]), DATASET.task.num_outputs)
    stacked_alone(config, learner=Learner(maker, Own()))
    coordinator, member = stacked_alone(config, learner=Learner(maker, Other()))
    with pytest.raises(TypeError, match="no stacked form of Other"):
        played(coordinator, member)


def test_kernels_are_chosen_by_device(monkeypatch):
    shapes = [stage.shape for stage in stacked_alone(settings())[1].fleet.rows.model.network.blueprint.stages]
    monkeypatch.setenv("HATDFED_NATIVE", "0")
    assert stage_kernels(shapes, CPU).name == "torch"


def test_a_server_that_diverged_recovers_from_others_as_with_mailboxes():
    """Its own model has no weight when it had no data: then it does not matter what is in it."""

    def config_of(seed):
        return settings("rnd", aggregator={"name": "by-samples"}, device_online_probability=0.03, seed=seed)

    def samples(seed):
        sources = make_world(config_of(seed), DATASET).sources
        return [source.plan(0).num_samples for source in sources[:2]]

    seed = next(seed for seed in range(50) if samples(seed)[0] > 0 and samples(seed)[1] == 0)
    plan = plan_of(Topology.from_pairs(6, [(1, 0)]))
    for _, fleet in (mailboxes(config_of(seed)), stacked_alone(config_of(seed))):
        snapshot = {name: array.copy() for name, array in fleet.snapshot().items()}
        snapshot["1.params"][3] = np.nan
        fleet.restore(snapshot)
        fleet.run_round(plan)
        assert torch.isfinite(fleet.models).all()


def test_a_model_that_everybody_hears_is_judged_by_everybody():
    member = stacked_alone(settings(servers=12))[1]
    box = mailboxes(settings(servers=12))[1]
    plan = plan_of(Topology.from_pairs(12, [(i, 3) for i in range(12) if i != 3] + [(3, 0)]))
    mine, theirs = member.run_round(plan), box.run_round(plan)
    for one, other in zip(mine.servers, theirs.servers, strict=True):
        np.testing.assert_allclose(one.importance, other.importance, atol=1e-5)


def test_a_snapshot_does_not_change_while_the_fleet_plays_on():
    coordinator, member = stacked_alone(settings(device_online_probability=0.5))
    snapshot = member.snapshot()
    before = {name: array.copy() for name, array in snapshot.items()}
    played(coordinator, member, rounds=2)
    assert all(np.array_equal(snapshot[name], before[name]) for name in before)
