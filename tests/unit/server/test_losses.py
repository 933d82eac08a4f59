"""Local losses: what they add, and that both fleets mean the same by it."""

import math

import pytest
import torch

from hatdfed.errors import ConfigError
from hatdfed.server.losses import LOSSES, CrossEntropy, LabelPrior


def test_cross_entropy_adds_nothing():
    assert torch.equal(CrossEntropy().offset(torch.tensor([3, 0, 7])), torch.zeros(3))


def test_the_label_prior_adds_the_logarithm_of_smoothed_shares():
    offset = LabelPrior(smoothing=1.0).offset(torch.tensor([6, 0, 1]))
    torch.testing.assert_close(offset, torch.tensor([math.log(0.7), math.log(0.1), math.log(0.2)]))


def test_even_labels_change_no_gradient():
    logits = torch.randn(4, 5, requires_grad=True)
    labels = torch.tensor([0, 1, 2, 3])
    plain = torch.autograd.grad(torch.nn.functional.cross_entropy(logits, labels), logits)[0]
    offset = LabelPrior().offset(torch.full((5,), 20))
    adjusted = torch.autograd.grad(torch.nn.functional.cross_entropy(logits + offset, labels), logits)[0]
    torch.testing.assert_close(plain, adjusted)


def test_a_label_that_the_server_lacks_is_pushed_down_less():
    logits = torch.zeros(1, 3, requires_grad=True)
    offset = LabelPrior().offset(torch.tensor([50, 50, 0]))
    plain = torch.autograd.grad(torch.nn.functional.cross_entropy(logits, torch.tensor([0])), logits)[0]
    adjusted = torch.autograd.grad(torch.nn.functional.cross_entropy(logits + offset, torch.tensor([0])), logits)[0]
    assert 0 < adjusted[0, 2] < plain[0, 2] / 10


@pytest.mark.parametrize("name", LOSSES.built_in)
def test_many_servers_at_once_are_each_as_alone(name):
    counts = torch.randint(0, 30, (6, 4), generator=torch.Generator().manual_seed(0))
    loss = LOSSES[name]()
    torch.testing.assert_close(loss.offset(counts), torch.stack([loss.offset(row) for row in counts]))


@pytest.mark.parametrize(
    "settings", [{"strength": -1}, {"strength": math.nan}, {"smoothing": 0}, {"smoothing": math.nan}]
)
def test_settings_that_cannot_work(settings):
    with pytest.raises(ConfigError):
        LabelPrior(**settings)
