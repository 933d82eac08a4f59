"""Recurrent networks."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor

from hatdfed.errors import ConfigError
from hatdfed.server.networks.shapes import Shape, TokenEmbedding

_UNITS, _EMBEDDING = 128, 64


def lstm(shape: Shape, num_outputs: int) -> nn.Module:
    """An LSTM of 128 units over series [T, features], read out at the end, or over token ids [L], at every position.

    S. Hochreiter, J. Schmidhuber. Long short-term memory. Neural Computation, 1997.
    """
    if len(shape) == 2:
        return nn.Sequential(Lstm(shape[1], _UNITS), _Last(), nn.Linear(_UNITS, num_outputs))
    if len(shape) == 1:
        embedding = TokenEmbedding(num_outputs, _EMBEDDING)
        return nn.Sequential(embedding, Lstm(_EMBEDDING, _UNITS), nn.Linear(_UNITS, num_outputs))
    raise ConfigError(
        f"network lstm is for series of steps and features or for token ids, but a sample has the shape {list(shape)}. "
        "Choose another one, such as --set network=mlp."
    )


class Lstm(nn.Module):
    """Long short-term memory with forget gates that begin open.

    It is computed by torch's own LSTM, or step by step where it is lifted by `torch.vmap`, which cannot lift torch's.
    """

    def __init__(self, features: int, units: int) -> None:
        super().__init__()
        self.units = units
        self.inputs = nn.Linear(features, 4 * units)
        self.recurrent = nn.Linear(units, 4 * units, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[n, T, features] -> [n, T, units]: what the cells put out at every step."""
        if any(map(is_functorch_wrapped_tensor, (x, self.inputs.weight))):
            return self._by_step(x)
        input_weights, recurrent_weights, bias = map(
            _in_order_of_torch, (self.inputs.weight, self.recurrent.weight, self.inputs.bias)
        )
        bias = bias + self._open_forget_gates(bias)
        # One block of memory, as cuDNN wants it.
        parts = [input_weights, recurrent_weights, bias, torch.zeros_like(bias)]
        block = torch.split(torch.cat([part.flatten() for part in parts]), [part.numel() for part in parts])
        weights = [flat.view_as(part) for flat, part in zip(block, parts, strict=True)]
        start = x.new_zeros(1, x.shape[0], self.units)  # a traced module takes any number of samples
        outputs, _, _ = torch.lstm(x, (start, start), weights, True, 1, 0.0, self.training, False, True)
        return outputs

    def _open_forget_gates(self, bias: Tensor) -> Tensor:
        """1 for each forget gate, in torch's order."""
        return torch.cat([torch.full_like(part, float(gate == 1)) for gate, part in enumerate(bias.chunk(4))])

    def _by_step(self, x: Tensor) -> Tensor:
        hidden = cell = x.new_zeros(x.shape[0], self.units)
        outputs = []
        for driven in self.inputs(x).unbind(dim=1):
            enter, forget, leave, candidate = (driven + self.recurrent(hidden)).chunk(4, dim=1)
            cell = torch.sigmoid(forget + 1) * cell + torch.sigmoid(enter) * torch.tanh(candidate)
            hidden = torch.sigmoid(leave) * torch.tanh(cell)
            outputs.append(hidden)
        return torch.stack(outputs, dim=1)


def _in_order_of_torch(gates: Tensor) -> Tensor:
    """Rows of enter, forget, leave and candidate as enter, forget, candidate and leave."""
    enter, forget, leave, candidate = gates.chunk(4)
    return torch.cat([enter, forget, candidate, leave])


class _Last(nn.Module):
    """[n, T, units] -> [n, units] at the last step."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, -1]
