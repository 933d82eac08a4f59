"""Recurrent networks, written step by step: torch's own LSTM cannot be lifted over servers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

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
    """Long short-term memory with forget gates that begin open."""

    def __init__(self, features: int, units: int) -> None:
        super().__init__()
        self.units = units
        self.inputs = nn.Linear(features, 4 * units)
        self.recurrent = nn.Linear(units, 4 * units, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[n, T, features] -> [n, T, units]: what the cells put out at every step."""
        hidden = cell = x.new_zeros(x.shape[0], self.units)  # a traced module takes any number of samples
        outputs = []
        for driven in self.inputs(x).unbind(dim=1):
            enter, forget, leave, candidate = (driven + self.recurrent(hidden)).chunk(4, dim=1)
            cell = torch.sigmoid(forget + 1) * cell + torch.sigmoid(enter) * torch.tanh(candidate)
            hidden = torch.sigmoid(leave) * torch.tanh(cell)
            outputs.append(hidden)
        return torch.stack(outputs, dim=1)


class _Last(nn.Module):
    """[n, T, units] -> [n, units] at the last step."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, -1]
