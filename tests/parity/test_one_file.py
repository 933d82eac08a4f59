"""The algorithm told in one file and the library's: the same numbers from the same data, links and draws."""

import dataclasses
import importlib.util
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from hatdfed.core.drawing.budgeted import cap_to_budget, sequential_rounding
from hatdfed.core.energy.energy_model import EnergyPrices
from hatdfed.core.links import LinkTable, num_servers_of
from hatdfed.core.policies.base import certain
from hatdfed.core.policies.link_bandit import BanditState, LinkBandit, reward_estimate, theorem_learning_rate
from hatdfed.core.round import RoundReport
from hatdfed.core.utility import LinkUtility, RoundFacts
from hatdfed.data.datasets import load_dataset
from hatdfed.fleets.mailbox import MailboxFleet
from hatdfed.randomness import stream
from hatdfed.server.aggregation import Importance, Inbox, Probe
from hatdfed.server.learner import Learner
from hatdfed.server.networks import linear
from hatdfed.server.optimisers import Adam
from hatdfed.setup.build.coordinator import make_coordinator, make_prices
from hatdfed.setup.build.program import initial_seed, make_program
from hatdfed.setup.build.world import make_world
from hatdfed.setup.layers import resolve
from hatdfed.testing import feedback_for, policy_context

PATH = Path(__file__).resolve().parents[2] / "examples" / "hat_dfed_in_one_file.py"
SEEDS = range(40)


def load_one_file():
    spec = importlib.util.spec_from_file_location("hat_dfed_in_one_file", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


one_file = load_one_file()


def by_link(column):
    """A column of all links, as the one file writes it: a value for each pair (receiver, sender)."""
    pairs = LinkTable.all_of(num_servers_of(len(column))).pairs(np.arange(len(column)))
    return dict(zip(map(tuple, pairs.tolist()), column.tolist(), strict=True))


def pairs(draw):
    return {(i, j) for i, j in draw.topology.pairs.tolist()}


def assert_same(mine, column, *, tolerance=1e-9):
    theirs = by_link(column)
    assert mine.keys() == theirs.keys()
    np.testing.assert_allclose(list(mine.values()), list(theirs.values()), rtol=0, atol=tolerance)


def relative(log_weights):
    """Only differences mean anything."""
    top = max(log_weights.values())
    return {link: weight - top for link, weight in log_weights.items()}


@pytest.mark.parametrize("seed", SEEDS)
def test_the_same_probabilities(seed):
    rng = stream(seed, "one-file", "cap")
    num_links = int(rng.integers(2, 60))
    log_weights = rng.normal(0, rng.choice([0.1, 1, 5, 400]), num_links)
    for budget in {1, num_links // 2, num_links - 1, num_links}:
        mine = one_file.cap(dict(enumerate(log_weights)), budget)
        np.testing.assert_allclose(list(mine.values()), cap_to_budget(log_weights, budget), rtol=0, atol=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_same_links_from_the_same_random_numbers(seed):
    rng = stream(seed, "one-file", "rounding")
    num_links = int(rng.integers(2, 60))
    probability = cap_to_budget(rng.normal(0, 2, num_links), int(rng.integers(1, num_links)))
    mine = one_file.round_links(dict(enumerate(probability)), stream(seed, "draw").random)
    assert mine == set(np.flatnonzero(sequential_rounding(probability, stream(seed, "draw"))))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_same_utilities(seed):
    rng = stream(seed, "one-file", "utility")
    size, alpha = int(rng.integers(2, 9)), float(rng.random())
    gain = np.zeros(size) if seed == 0 else rng.normal(0, 0.05, size)
    upload, compute = rng.uniform(0, 30, size), rng.uniform(0, 30, size)
    prices = EnergyPrices(30, 1024.0, 1e-3, np.full(size, 0.5), rng.uniform(1e-5, 1e-4, (size, size)), 4e5)
    links = LinkTable.all_of(size)
    joules, every = prices.joules_of(links), np.ones(len(links), dtype=bool)
    facts = RoundFacts(gain, upload, compute, prices, links, joules, every, certain(links, every), RoundReport(()))
    mine = one_file.utility(gain, upload + compute, by_link(joules), alpha)
    assert_same(mine, LinkUtility(gain_share=alpha)(facts))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_same_estimates_and_weights(seed):
    rng = stream(seed, "one-file", "weights")
    size = int(rng.integers(2, 9))
    context, policy = policy_context(size), LinkBandit()
    state = BanditState(rng.normal(0, 2, len(context.links)))
    draw = policy.propose(state, context, rng)
    feedback = feedback_for(draw, rng)
    worth, drawn, probability = by_link(feedback.utility), pairs(draw), by_link(draw.propensity)
    mine = one_file.estimate(worth, drawn, probability)
    assert_same(mine, reward_estimate(feedback.utility, draw.drawn, draw.propensity))

    rate = theorem_learning_rate(size, context.horizon)
    moved = one_file.update_weights(by_link(state.log_weights), mine, rate)
    theirs = by_link(policy.update(state, draw, feedback, context).log_weights)
    assert moved == pytest.approx(relative(theirs), abs=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_same_weights_in_a_merge_and_the_same_mean(seed):
    rng = stream(seed, "one-file", "merge")
    models, samples, beta = int(rng.integers(1, 7)), int(rng.integers(1, 17)), float(rng.random())
    losses = torch.tensor(rng.exponential(rng.choice([0.1, 2, 30]), (models, samples)))
    counts = torch.tensor(rng.integers(0, 60, models) if seed else np.zeros(models, dtype=int))
    held = [torch.nn.Linear(3, 2, dtype=torch.float64) for _ in range(models)]
    flat = torch.stack([torch.cat([model.weight.detach().flatten(), model.bias.detach()]) for model in held])
    nothing = torch.full((models,), torch.nan)
    inbox = Inbox(flat, counts, nothing, torch.ones(models), torch.ones(models, dtype=torch.bool))
    merged = Importance(quality_share=beta)(Probe(losses, torch.ones(samples, dtype=torch.bool)), inbox)

    weights = one_file.importance(losses, counts, beta)
    torch.testing.assert_close(weights, merged.importance, rtol=0, atol=1e-9)
    state = one_file.merge(held, weights)
    torch.testing.assert_close(torch.cat([state["weight"].flatten(), state["bias"]]), merged.model, rtol=0, atol=1e-9)


class World(NamedTuple):
    """The library's world, its two halves, and where the models can be taken out."""

    config: object
    sources: list
    prices: EnergyPrices
    coordinator: object
    fleet: MailboxFleet
    learner: Learner


def library_world(maker, seed):
    config = resolve(
        {
            "dataset": "synthetic",
            "dataset_options": {"classes": 10, "train": 600, "validation": 200, "test": 50},
            "network": "linear",
            "rounds": 5,
            "servers": 4,
            "seed": seed,
            "devices": 12,
            "device_online_probability": 0.1,  # now and then nobody comes
            "batch_size": 16,
            "validation_images": 200,
        }
    )
    dataset = load_dataset(config.dataset, options=config.dataset_options)
    learner = Learner(maker, Adam(config.learner.learning_rate))
    program = dataclasses.replace(make_program(config, dataset), learner=learner)
    world = make_world(config, dataset)
    prices = make_prices(config, bits_per_sample=dataset.bits_per_sample, num_params=learner.num_params)
    seeds = [initial_seed(config, server) for server in range(config.servers)]
    fleet = MailboxFleet(program, world.sources, prices, world.test, initial_seeds=seeds)
    return World(config, world.sources, prices, make_coordinator(config, prices), fleet, learner)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("maker", [partial(linear, (1, 8, 8), 10), one_file.small_cnn], ids=["linear", "small-cnn"])
def test_a_whole_run_gives_the_same_models_utilities_and_weights(maker, seed):
    world = library_world(maker, seed)
    coordinator, fleet, learner, validation = world.coordinator, world.fleet, world.learner, world.sources[0].validation
    models = [maker() for _ in world.sources]
    for model, params in zip(models, fleet.models, strict=True):
        model.load_state_dict(learner.state_dict(params), strict=False)  # batch norm's counter is not in there
    optimisers = [torch.optim.Adam(model.parameters(), world.config.learner.learning_rate) for model in models]
    prices = one_file.Prices(
        upload=world.prices.upload(0, 0, 1, 5).joules,
        sample=[world.prices.training(0, server, 1).joules for server in range(len(models))],
        link=by_link(world.prices.joules_of(LinkTable.all_of(world.prices.num_servers))),
    )
    state = coordinator.start(fleet.validation_accuracy())
    played = one_file.run(
        models,
        optimisers,
        prices,
        world.config.rounds,
        works=lambda t: [source.work(t) for source in world.sources],
        draw=lambda t, probability: pairs(coordinator.plan(state).draw),
        validation=validation,
    )
    idle = 0
    for accuracies, joules, probability, worth, log_weights in played:
        plan = coordinator.plan(state)
        report = fleet.run_round(plan)
        state, record = coordinator.learn(state, plan, report)

        for model, params in zip(models, fleet.models, strict=True):
            mine, theirs = one_file.answer(model, validation.x), learner.logits(params, validation.x)
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-4)
        assert accuracies == pytest.approx(report.accuracy.tolist())
        assert joules == pytest.approx(sum(row.joules for row in report.energy))
        assert_same(probability, plan.draw.propensity, tolerance=1e-6)
        assert_same(worth, record.utility, tolerance=1e-6)
        assert log_weights == pytest.approx(relative(by_link(state.policy.log_weights)), abs=1e-6)
        idle += sum(server.num_samples == 0 for server in report.servers)
    assert state.t == world.config.rounds
    assert idle > 0  # the round of a server without data was among them
