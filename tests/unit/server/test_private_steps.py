"""Private training: what one sample can do is bounded, noise has the right size, and without both nothing changes."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from hatdfed.errors import ConfigError
from hatdfed.server.learner import Learner
from hatdfed.server.networks import NETWORKS, PRIVATE_NETWORK
from hatdfed.server.optimisers import Adam, Sgd
from hatdfed.server.private_steps import (
    PrivateSteps,
    clip_and_sum,
    refuse_mixing_layers,
    repeatable_noise,
    secret_noise,
)
from hatdfed.server.work import Batch

SHAPE = (1, 8, 8)
MAKE = partial(NETWORKS[PRIVATE_NETWORK], SHAPE, 10)
LINEAR = partial(NETWORKS["linear"], SHAPE, 10)


def batch(size=12, seed=0, scale=1.0):
    rng = torch.Generator().manual_seed(seed)
    x = scale * torch.randn(size, *SHAPE, generator=rng)
    return Batch(x, torch.randint(0, 10, (size,), generator=rng))


def fit(learner, batches, seed=1, **more):
    params = learner.init(0)
    trained, _ = learner.fit(params, learner.optimiser.init(learner.num_trainable), batches, seed=seed, **more)
    return trained - params


def step(clip, noise, batches, make=LINEAR, **more):
    """What one step of SGD with learning rate 1 adds to the model."""
    return fit(Learner(make, Sgd(1.0), private=PrivateSteps(clip, noise)), batches, **more)


@pytest.mark.parametrize("make", [MAKE, LINEAR])
@pytest.mark.parametrize("optimiser", [Adam(1e-3), Sgd(1e-2, momentum=0.9)])
@pytest.mark.parametrize("offset", [None, torch.linspace(-1, 1, 10)])
def test_a_huge_clip_without_noise_is_plain_training(make, optimiser, offset):
    some = [batch(seed=seed) for seed in range(4)]
    plain = fit(Learner(make, optimiser), some, offset=offset)
    private = fit(Learner(make, optimiser, private=PrivateSteps(1e9, 0.0)), some, offset=offset)
    assert float((plain - private).norm()) < 1e-3 * float(plain.norm())


def test_no_sample_moves_a_sum_by_more_than_the_clip():
    gradients = {"a": torch.randn(6, 3, 4), "b": 100 * torch.randn(6, 5)}
    gradients["a"][2] = 1e-3
    gradients["b"][2] = 1e-3
    for i in range(6):
        alone = clip_and_sum({name: part[i : i + 1] for name, part in gradients.items()}, 0.7)
        norm = float(torch.cat([part.reshape(-1) for part in alone.values()]).norm())
        expected = 0.7 if i != 2 else 1e-3 * 17**0.5
        assert norm == pytest.approx(expected, rel=1e-5)
    total = clip_and_sum(gradients, 0.7)
    parts = [clip_and_sum({name: part[i : i + 1] for name, part in gradients.items()}, 0.7) for i in range(6)]
    torch.testing.assert_close(total["a"], sum(part["a"] for part in parts))


def test_a_step_is_bounded_whatever_the_samples_are():
    one = batch(size=5, scale=1e4)
    assert float(step(0.5, 0.0, [one]).norm()) <= 0.5 * 1.00001
    replaced = Batch(torch.cat([one.x[:4], -one.x[4:]]), one.y)
    assert float((step(0.5, 0.0, [one]) - step(0.5, 0.0, [replaced])).norm()) <= 2 * 0.5 / 5 * 1.00001


def test_a_gradient_that_is_not_finite_counts_as_zero():
    gradients = {"a": torch.tensor([[1.0, 0.0], [torch.inf, 1.0], [torch.nan, 1.0]])}
    torch.testing.assert_close(clip_and_sum(gradients, 10.0)["a"], torch.tensor([1.0, 0.0]))


def test_the_noise_has_the_declared_size():
    same = [batch(size=20)]
    clean = step(2.0, 0.0, same)
    noise = torch.cat([step(2.0, 3.0, same, seed=seed) - clean for seed in range(20)])
    assert float(noise.std()) == pytest.approx(3.0 * 2.0 / 20, rel=0.03)
    assert abs(float(noise.mean())) < 0.01


def test_large_networks_are_trained_in_parts_with_the_same_result(monkeypatch):
    whole = step(0.3, 1.0, [batch()])
    monkeypatch.setattr("hatdfed.server.private_steps._NUMBERS_AT_ONCE", 2000)
    torch.testing.assert_close(step(0.3, 1.0, [batch()]), whole)


def test_noise_is_repeatable_in_simulations_and_secret_on_edges():
    one, again = (repeatable_noise(5).standard_normal(4) for _ in range(2))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, repeatable_noise(6).standard_normal(4))
    assert not np.array_equal(secret_noise(5).standard_normal(4), secret_noise(5).standard_normal(4))


@pytest.mark.parametrize("name", ["small-cnn", "paper-cnn"])
def test_batch_norm_is_refused_with_a_network_that_works(name):
    with pytest.raises(ConfigError, match=f"{name} has BatchNorm2d.*Use network {PRIVATE_NETWORK}"):
        refuse_mixing_layers(NETWORKS[name](SHAPE, 10), name, PRIVATE_NETWORK)
    refuse_mixing_layers(MAKE(), PRIVATE_NETWORK, "")
    refuse_mixing_layers(nn.InstanceNorm2d(3), "own", "")
    with pytest.raises(ConfigError, match="own has InstanceNorm2d"):
        refuse_mixing_layers(nn.InstanceNorm2d(3, track_running_stats=True), "own", "")


def test_dropout_is_refused_because_its_masks_are_those_of_a_batch():
    with pytest.raises(ConfigError, match="own has Dropout, which works on a whole batch"):
        refuse_mixing_layers(nn.Sequential(nn.Linear(64, 16), nn.Dropout(0.5)), "own", "")
    refuse_mixing_layers(nn.Dropout(0.0), "own", "")
