"""Push-sum, wire included, against numbers known for a digraph on which it matters.

Server 2 sends to two others and everybody else to one, so plain averaging is biased towards some servers. Each server
has its own goal b and the loss (z − b)² / 2; with one common step size the best compromise is the mean of the goals.
"""

import math
from typing import NamedTuple

import numpy as np
import pytest
import torch

from hatdfed.core.energy.energy_model import EnergyPrices
from hatdfed.core.links import LinkTable, Topology
from hatdfed.core.policies.base import certain
from hatdfed.core.round import RoundPlan
from hatdfed.fleets.mailbox import MailboxFleet
from hatdfed.randomness import stream
from hatdfed.server.aggregation import PushSum, Uniform
from hatdfed.server.codecs import CODECS
from hatdfed.server.measured_metrics import Evaluation
from hatdfed.server.optimisers import Sgd
from hatdfed.server.parameter_roles import SentPart
from hatdfed.server.program import EdgeProgram
from hatdfed.server.work import Batch, HeldOut, Work

SENDS_TO = {0: [1], 1: [2], 2: [0, 3], 3: [4], 4: [0]}
GOALS = (1, 2, 3, 4, 5)
FIXED_POINT = [3.0535, 2.8367, 2.7847, 2.9619, 3.3632]
TOPOLOGY = Topology.from_pairs(5, [(receiver, sender) for sender in SENDS_TO for receiver in SENDS_TO[sender]])


class Quadratic:
    """Learns one number: the labels of its batches."""

    num_params = num_trainable = 1
    sent = SentPart.whole(1)
    frozen_digest = ""
    largest_norm = math.inf
    optimiser = Sgd(learning_rate=0.1)

    def init(self, seed):
        return torch.tensor([float(seed)])

    def fit(self, params, state, batches, *, seed, step_scale=1.0, offset=None, spend=False, on_loss=None):
        for batch in batches:
            moved, state = self.optimiser.step(params, params - batch.y, state)
            params = torch.lerp(params, moved, step_scale)
        return params, state

    def losses(self, params, batch):
        return (params - batch.y).square() / 2

    def correct(self, params, batch):
        return self.losses(params, batch) < 0.5

    def accuracy(self, params, batch):
        return float(self.correct(params, batch).double().mean())

    def evaluate(self, params, batch, metrics):
        return Evaluation(self.accuracy(params, batch), float(self.losses(params, batch).double().mean()), {})

    def similarity(self, models):
        return torch.cosine_similarity(models[:1], models, dim=1)


class DeafToTheStep(Quadratic):
    """The near miss: the biased variable's step, taken on the unbiased one as it is."""

    def fit(self, params, state, batches, *, seed, step_scale=1.0, offset=None, spend=False, on_loss=None):
        return super().fit(params, state, batches, seed=seed)


class Forgetful(PushSum):
    """The near miss: senders' shares are the weights, but what arrived is not remembered."""

    def __call__(self, probe, inbox):
        return super().__call__(probe, inbox)._replace(mass=1.0)


class Goal(NamedTuple):
    """A server's data: one label, and whether to train on it."""

    value: float
    train: bool

    @property
    def validation(self):
        return Batch(torch.zeros(1, 1), torch.tensor([float(self.value)]))

    def work(self, t, *_):
        return Work((self.validation,) * self.train, int(self.train), 1, self.validation, self.validation, seed=t)


def fleet_of(start, *, train, aggregator=None, learner=None, channel=bytes):
    program = EdgeProgram(learner or Quadratic(), aggregator or PushSum(), CODECS["float32"])
    prices = EnergyPrices(1, 1.0, 1.0, np.ones(5), np.ones((5, 5)), 32.0)
    sources = [Goal(value, train) for value in GOALS]
    test = HeldOut(sources[0].validation, np.ones((5, 1)))
    return MailboxFleet(program, sources, prices, test, initial_seeds=start, run="parity", channel=channel)


def play(fleet, rounds, first=0, topology=TOPOLOGY):
    links = LinkTable.all_of(5)
    for t in range(first, first + rounds):
        fleet.run_round(RoundPlan(t, certain(links, links.from_dense(topology.links))))
        assert masses(fleet).sum() == pytest.approx(5, abs=1e-12)
    return fleet.models[:, 0].double().numpy()


def masses(fleet):
    snapshot = fleet.snapshot()
    return np.array([snapshot[f"{i}.scalars"][1] for i in range(5)])


def test_plain_averaging_ends_at_the_mean_with_the_known_masses():
    fleet = fleet_of(GOALS, train=False)
    np.testing.assert_allclose(play(fleet, 1), [3, 1.5, 2.4, 3.6, 4.5], atol=1e-6)
    np.testing.assert_allclose(masses(fleet), [4 / 3, 1, 5 / 6, 5 / 6, 1], atol=1e-12)
    np.testing.assert_allclose(play(fleet, 59, first=1), 3, atol=1e-5)
    np.testing.assert_allclose(masses(fleet), [4 / 3, 4 / 3, 1, 2 / 3, 2 / 3], atol=1e-8)


def test_without_mass_or_with_the_links_reversed_the_average_is_another():
    assert np.abs(play(fleet_of(GOALS, train=False, aggregator=Uniform()), 60) - 3).min() > 0.05
    reverse = fleet_of(GOALS, train=False)
    assert not np.allclose(play(reverse, 1, topology=Topology(TOPOLOGY.links.T)), [3, 1.5, 2.4, 3.6, 4.5], atol=1e-3)
    play(reverse, 59, first=1, topology=Topology(TOPOLOGY.links.T))
    assert not np.allclose(masses(reverse), [4 / 3, 4 / 3, 1, 2 / 3, 2 / 3], atol=1e-3)


def test_training_gives_the_known_models_round_by_round():
    fleet = fleet_of([0] * 5, train=True)
    expected = [
        [0.3, 0.15, 0.24, 0.36, 0.45],
        [0.585808, 0.345, 0.419357, 0.70656, 0.855818],
        [0.85983, 0.557458, 0.568179, 0.997143, 1.253128],
    ]
    for t, models in enumerate(expected):
        np.testing.assert_allclose(play(fleet, 1, first=t), models, atol=2e-6)


def test_training_ends_at_the_known_point_whose_mean_is_that_of_the_goals():
    models = play(fleet_of([0] * 5, train=True), 150)
    np.testing.assert_allclose(models, FIXED_POINT, atol=1e-4)
    assert models.mean() == pytest.approx(3.0, abs=1e-4)


@pytest.mark.parametrize(
    ("mistake", "mean"),
    [({"aggregator": Uniform()}, 2.7753), ({"aggregator": Forgetful()}, 2.8616), ({"learner": DeafToTheStep()}, 2.632)],
)
def test_near_misses_end_elsewhere(mistake, mean):
    assert play(fleet_of([0] * 5, train=True, **mistake), 150).mean() == pytest.approx(mean, abs=1e-4)


def test_messages_that_get_lost_bend_nothing():
    luck = stream(0, "lost")
    fleet = fleet_of(GOALS, train=False, channel=lambda data: data if luck.random() < 0.7 else data[:-1])
    np.testing.assert_allclose(play(fleet, 100), 3, atol=1e-5)
    assert fleet.refused["damaged"] > 100
