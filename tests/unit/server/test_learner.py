import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from hatdfed.server.learner import Learner
from hatdfed.server.networks import NETWORKS
from hatdfed.server.optimisers import Adam, Sgd
from hatdfed.server.work import Batch

MAKE = partial(NETWORKS["small-cnn"], (1, 8, 8), 10)


def batches(count=4, size=12):
    generator = torch.Generator().manual_seed(0)
    return [
        Batch(torch.randn(size, 1, 8, 8, generator=generator), torch.randint(0, 10, (size,), generator=generator))
        for _ in range(count)
    ]


def without_bias_before_batch_norm():
    """There the bias has a gradient of pure round-off, which Adam turns into whole steps: no two sums agree on it."""
    convolution = nn.Conv2d(1, 8, 3, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))


def loaded(learner, params, make=MAKE):
    module = make()
    module.load_state_dict(learner.state_dict(params), strict=False)
    return module


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (Adam(1e-3), partial(torch.optim.Adam, lr=1e-3)),
        (Sgd(1e-2), partial(torch.optim.SGD, lr=1e-2)),
        (Sgd(1e-2, momentum=0.9), partial(torch.optim.SGD, lr=1e-2, momentum=0.9)),
    ],
    ids=["adam", "sgd", "momentum"],
)
def test_training_a_flat_vector_is_training_the_module(ours, theirs):
    learner = Learner(without_bias_before_batch_norm, ours)
    params = learner.init(0)
    module = loaded(learner, params, without_bias_before_batch_norm).train()
    optimiser = theirs(module.parameters())
    for batch in batches():
        optimiser.zero_grad()
        F.cross_entropy(module(batch.x), batch.y).backward()
        optimiser.step()
    fitted, state = learner.fit(params, ours.init(learner.num_trainable), batches(), seed=0)
    expected = module.state_dict()
    for name, tensor in learner.state_dict(fitted).items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-4, atol=1e-5)
    assert state.step == 4


def test_fit_changes_neither_the_model_nor_the_state_it_is_given():
    learner = Learner(MAKE, Adam())
    params, state = learner.init(0), learner.optimiser.init(learner.num_trainable)
    before = params.clone(), copy.deepcopy(state)
    learner.fit(params, state, batches(), seed=0)
    assert torch.equal(params, before[0])
    assert torch.equal(state.first, before[1].first)


def test_running_statistics_travel_and_the_step_counter_does_not():
    learner = Learner(MAKE, Adam())
    names = learner.state_dict(learner.init(0))
    assert "1.running_mean" in names
    assert "1.num_batches_tracked" not in names
    assert learner.num_params == learner.num_trainable + 2 * (16 + 32)
    fitted, _ = learner.fit(learner.init(0), learner.optimiser.init(learner.num_trainable), batches(), seed=0)
    assert not torch.equal(learner.state_dict(fitted)["1.running_mean"], names["1.running_mean"])


def test_xavier_weights_lie_in_their_range_and_biases_are_zero():
    learner = Learner(MAKE, Adam())
    weights = learner.state_dict(learner.init(3))
    bound = (6 / (128 + 64)) ** 0.5
    assert weights["9.weight"].abs().max() <= bound
    assert weights["9.weight"].abs().max() > 0.9 * bound
    assert (weights["9.bias"] == 0).all()
    assert (weights["1.weight"] == 1).all()


def test_initialisation_belongs_to_the_seed_and_leaves_global_randomness_alone():
    learner = Learner(MAKE, Adam(), xavier=False)
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    assert torch.equal(learner.init(1), learner.init(1))
    assert not torch.equal(learner.init(1), learner.init(2))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_dropout_belongs_to_the_seed_of_the_work():
    learner = Learner(lambda: nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10)), Sgd(0.1))
    params, state = learner.init(0), learner.optimiser.init(learner.num_trainable)
    fits = [learner.fit(params, state, batches(), seed=seed)[0] for seed in (1, 1, 2)]
    assert torch.equal(fits[0], fits[1])
    assert not torch.equal(fits[0], fits[2])


def test_losses_and_accuracy_agree_with_the_module():
    learner = Learner(MAKE, Adam())
    params, batch = learner.init(0), batches(1, 250)[0]
    logits = loaded(learner, params).eval()(batch.x)
    torch.testing.assert_close(learner.losses(params, batch), F.cross_entropy(logits, batch.y, reduction="none"))
    assert learner.accuracy(params, batch) == pytest.approx((logits.argmax(1) == batch.y).float().mean().item())
