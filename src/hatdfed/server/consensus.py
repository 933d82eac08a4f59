"""Consensus distance: exact where all models are in one memory, from sketches where they are on different machines."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (the usual name)
from torch import Tensor

from hatdfed.core.round import SKETCH_SIZE
from hatdfed.randomness import stream

_NUMBERS_ON_CPU, _NUMBERS_ON_GPU = 1 << 18, 1 << 25  # at once: as many as fit into a cache, and as keep a GPU busy
_PIECE = 256 * SKETCH_SIZE  # parameters of a model that are sketched at once: their signs take little memory


def consensus_distance(models: Tensor) -> Tensor:  # [..., n, P] -> [...]
    """Compute the mean of ‖x_i − x̄‖ / ‖x̄‖ over n models; nan where the mean is 0 or a model is not finite.

    Processes some parameters at a time, to save memory, and fetches nothing from the device.
    """
    apart = torch.zeros(models.shape[:-1], dtype=torch.float64, device=models.device)
    length = torch.zeros(models.shape[:-2], dtype=torch.float64, device=models.device)
    at_once = _NUMBERS_ON_CPU if models.device.type == "cpu" else _NUMBERS_ON_GPU
    for piece in torch.split(models, max(1, at_once // apart.numel()), dim=-1):
        mean = piece.mean(dim=-2, keepdim=True)
        apart += (piece - mean).square_().sum(dim=-1)
        length += mean.square_().sum(dim=(-2, -1))
    return apart.sqrt().mean(dim=-1) / length.sqrt()


def sketch(models: Tensor) -> Tensor:  # [n, P] -> [n, SKETCH_SIZE]
    """Sum the parameters with random signs, the same for every server; parameter p is part of sum p mod k.

    Squared norms are preserved in expectation over the signs.
    """
    sums = torch.zeros(len(models), SKETCH_SIZE, device=models.device)
    # Raw bits, because numpy promises them to be the same in all its versions, and so on all machines.
    bits = stream(0, "model-sketch").bit_generator
    for piece in torch.split(models, _PIECE, dim=1):
        drawn = bits.random_raw(-(-piece.shape[1] // 64)).astype("<u8").view(np.uint8)
        signs = 1 - 2 * torch.from_numpy(np.unpackbits(drawn)[: piece.shape[1]]).to(models.device, torch.float32)
        signed = F.pad(piece * signs, (0, -piece.shape[1] % SKETCH_SIZE))
        sums += signed.view(len(models), -1, SKETCH_SIZE).sum(dim=1)
    return sums
