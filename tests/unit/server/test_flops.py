"""How much work a network is."""

import pytest
import torch
from torch import nn

from hatdfed.server.flops import count_forward_flops


def test_a_linear_layer_takes_two_operations_for_each_weight():
    flops = count_forward_flops(nn.Linear(30, 7), torch.zeros(1, 30))
    assert flops.operations == 2 * 30 * 7
    assert flops.is_counted


def test_a_convolution_is_counted_at_every_place():
    flops = count_forward_flops(nn.Conv2d(3, 8, 3, padding=1), torch.zeros(1, 3, 10, 10))
    assert flops.operations == 2 * 3 * 3 * 3 * 8 * 10 * 10


def test_attention_and_embeddings_can_be_counted():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    flops = count_forward_flops(nn.Sequential(nn.Embedding(5, 8), layer), torch.zeros(1, 4, dtype=torch.int64))
    assert flops.is_counted
    assert flops.operations >= 4 * 2 * (4 * 8 * 8 + 2 * 8 * 16)


def test_recurrent_layers_can_be_counted():
    assert count_forward_flops(nn.LSTM(8, 16, batch_first=True), torch.zeros(1, 5, 8)).operations == 2 * 5 * 4 * 16 * (
        8 + 16
    )


class Scaled(nn.Module):
    """Nothing that torch counts."""

    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.ones(9))

    def forward(self, x):
        return self.factor * x


class Hidden(nn.Linear):
    """Fails while somebody looks into it."""

    def forward(self, x):
        if torch.utils._python_dispatch._get_current_dispatch_mode() is not None:
            raise RuntimeError("no")
        return super().forward(x)


@pytest.mark.parametrize(("module", "parameters"), [(Scaled(), 9), (Hidden(9, 1, bias=False), 9)])
def test_what_cannot_be_counted_is_estimated_from_the_parameters(module, parameters):
    flops = count_forward_flops(module, torch.zeros(1, 9))
    assert flops.operations == 2 * parameters
    assert not flops.is_counted
