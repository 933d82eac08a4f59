"""Optimisers of torch as functions of a flat vector."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (the usual name)
from torch import nn

import hatdfed
from hatdfed.errors import ConfigError
from hatdfed.server.learner import Learner
from hatdfed.server.optimisers import ELEMENT_WISE, OptimiserState, make_torch_optimiser
from hatdfed.server.program import ServerState, server_arrays, server_from
from hatdfed.server.work import Batch

MAKE = partial(nn.Sequential, nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
SMALL = {"dataset": "digits", "network": "linear", "servers": 3, "rounds": 8, "method": "full"}


def batches(count=5):
    generator = torch.Generator().manual_seed(1)
    return [
        Batch(torch.randn(9, 6, generator=generator), torch.randint(3, (9,), generator=generator)) for _ in range(count)
    ]


@pytest.mark.parametrize(
    ("name", "momentum", "settings"),
    [
        *((name, 0.0, {}) for name in ELEMENT_WISE),
        ("sgd", 0.9, {"nesterov": True}),
        ("adamw", 0.0, {"amsgrad": True, "weight_decay": 0.1}),
        ("rmsprop", 0.9, {"centered": True}),
    ],
)
def test_training_a_flat_vector_is_what_torch_does(name, momentum, settings):
    ours = make_torch_optimiser(name, 0.01, momentum, settings)
    learner = Learner(MAKE, ours)
    params, module = learner.init(0), MAKE()
    module.load_state_dict(learner.state_dict(params))
    more = {"momentum": momentum} if momentum else {}
    theirs = ELEMENT_WISE[name](module.parameters(), lr=0.01, **settings, **more)
    for batch in batches():
        theirs.zero_grad()
        F.cross_entropy(module(batch.x), batch.y).backward()
        theirs.step()
    state = ours.init(learner.num_trainable)
    for batch in batches():  # between steps nothing but the plain value is kept
        params, state = learner.fit(params, state, [batch], seed=0)
        state = server_from(server_arrays(ServerState(params, state, torch.zeros(0)))).optimiser
    assert state.step == 5
    for key, tensor in learner.state_dict(params).items():
        torch.testing.assert_close(tensor, module.state_dict()[key], rtol=1e-4, atol=1e-6)


def test_a_step_leaves_its_arguments_unchanged():
    ours = make_torch_optimiser("nadam", 0.01, 0.0, {})
    params, gradient = torch.ones(4), torch.full((4,), 0.5)
    _, state = ours.step(params, gradient, ours.init(4))
    kept = state.first.clone()
    moved, after = ours.step(params, gradient, state)
    assert torch.equal(params, torch.ones(4))
    assert torch.equal(state.first, kept)
    assert not torch.equal(moved, params)
    assert isinstance(after, OptimiserState)
    assert after.step == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimiser": "adamv"}, "learner.optimiser is 'adamv'"),
        (
            {"optimiser": "AdamW", "optimiser_settings": {"weight_deccay": 1}},
            "no setting 'weight_deccay'. Did you mean",
        ),
        ({"optimiser": "AdamW", "optimiser_settings": {"lr": 1}}, "which is set by learner.learning_rate"),
        (
            {"optimiser": "AdamW", "optimiser_settings": {"weight_decay": -1}},
            "'weight_decay': -1}: Invalid weight_decay",
        ),
        ({"optimiser": "AdamW", "optimiser_settings": {"betas": "no"}}, "torch.optim.AdamW cannot take"),
        (
            {"optimiser": "adagrad", "learning_rate": 1e300},
            "learning_rate is 1e+300, but must be less than or",
        ),
        ({"optimiser": "sgd", "optimiser_settings": {"foreach": True}}, "torch.optim.SGD has no setting 'foreach'"),
    ],
)
def test_wrong_names_and_arguments_get_one_sentence(settings, message):
    with pytest.raises(ConfigError) as caught:
        hatdfed.run(**SMALL, learner=settings)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_servers_learn_digits_with_adamw():
    result = hatdfed.run(**{**SMALL, "rounds": 30}, learner={"optimiser": "AdamW", "learning_rate": 0.01})
    assert result.config.learner.optimiser == "adamw"
    assert result.summary["avg_accuracy"] > 55
