"""Who moves long rows of numbers: C on a CPU, Triton on a GPU, plain torch where neither can be had."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from hatdfed.fleets.kernels.native.vectors import NativeVectors, native_vectors
from hatdfed.fleets.kernels.triton import dropout as triton_dropout
from hatdfed.fleets.kernels.triton import vectors as triton_vectors
from hatdfed.fleets.stacked.model import Rates, Step
from hatdfed.server import consensus, dropout, guard
from hatdfed.server.optimisers import Adam, Optimiser, Sgd


class Vectors(Protocol):
    """In place, for S rows that may lie apart."""

    def adam_in_place(self, adam: Adam, step: Step) -> None:
        """One step of Adam for the servers that are active."""

    def weighted_rows(self, weights: Tensor, own: Tensor, sent: Tensor, sender: Tensor, out: Tensor) -> Tensor:
        """out[i] = w[i, 0]·own[i] + Σ w[i, d]·sent[sender[i, d]]; a model without weight counts for nothing.

        Returns the norms of the sums, [S].
        """


class TorchVectors:
    """Torch operations, on any device."""

    def adam_in_place(self, adam: Adam, step: Step) -> None:
        """Bias-corrected moments."""
        share_1, share_2 = ((1 - beta) * step.active[:, None] for beta in (adam.beta_1, adam.beta_2))
        length = (step.rates.step * step.active)[:, None]
        for start, gradient in step.gradients.items():
            g = gradient.flatten(1)
            m, v, p = (rows[:, start : start + g.shape[1]] for rows in (step.first, step.second, step.params))
            m.lerp_(g, share_1)
            v.lerp_(g.square(), share_2)
            scale = (v * step.rates.second[:, None]).sqrt_().add_(adam.epsilon)
            p.sub_((m / scale).mul_(length))

    def weighted_rows(self, weights: Tensor, own: Tensor, sent: Tensor, sender: Tensor, out: Tensor) -> Tensor:
        """Slot by slot."""
        out.zero_()
        for slot in range(weights.shape[1]):
            share, models = weights[:, slot, None], sent.index_select(0, sender[:, slot]) if slot else own
            out.add_(torch.where(share != 0, models * share, 0.0))  # 0 times what it may hold need not be 0
        return guard.compute_norms(out)


def consensus_distance(models: Tensor) -> Tensor:  # [R, n, P] -> [R]
    """Mean of ‖x_i − x̄‖ / ‖x̄‖ over the n models of each run, by the fastest that can work on them."""
    if models.is_cuda and triton_vectors.supports(models):
        distance: Tensor = triton_vectors.consensus_distance(models)
        return distance
    if isinstance(native := vectors_for(models), NativeVectors) and models.stride(-1) == 1:
        return native.consensus_distance(models)
    return consensus.consensus_distance(models)


def compute_norms(models: Tensor) -> Tensor:  # [S, P] -> [S]
    """Norms of models, for the guard, by the fastest that can compute them."""
    if isinstance(native := vectors_for(models), NativeVectors) and models.stride(-1) == 1:
        return native.norms(models)
    return guard.compute_norms(models)


def dropout_factors(x: Tensor, seeds: Tensor, **place: Any) -> Tensor:  # [S, batch, units], [S] -> as x
    """0 for a unit of x that is dropped, and what scales up one that is kept.

    `place` is what `hatdfed.server.dropout.make_keep_mask` takes: step, layer, batch, units and probability.
    """
    if x.is_cuda and triton_vectors.supports(x):
        factors: Tensor = triton_dropout.dropout_factors(seeds, **place)
        return factors
    if isinstance(native := vectors_for(x), NativeVectors):
        return native.dropout_factors(seeds, **place)
    kept: Tensor = dropout.make_keep_mask(seeds, **place)
    return kept.to(x.dtype) / (1 - float(place["probability"]))


def vectors_for(tensor: Tensor) -> Vectors:
    """The fastest that can work on `tensor`."""
    if tensor.is_cuda and triton_vectors.supports(tensor):
        return triton_vectors.TritonVectors()
    if tensor.device.type == "cpu" and tensor.dtype == torch.float32 and (native := native_vectors()) is not None:
        return native
    return TorchVectors()


def restore_rows(rows: Tensor, earlier: Tensor, is_lost: Tensor) -> None:  # [S, P], [S, P], [S]
    """Put back the earlier rows where they are lost; on a GPU without waiting for it."""
    if rows.is_cuda and triton_vectors.supports(rows):
        triton_vectors.restore_rows(rows, earlier, is_lost)
    elif bool(is_lost.any()):
        rows[is_lost] = earlier[is_lost]


def copy_rows(rows: Tensor, out: Tensor) -> None:  # [S, P], [S, P]
    """Copy aligned rows of two buffers of the same layout, with the padding between them, as one block."""
    out.as_strided(*_whole_rows(out)).copy_(rows.as_strided(*_whole_rows(rows)))


def _whole_rows(rows: Tensor) -> tuple[tuple[int, int], tuple[int, int]]:
    return (rows.shape[0], rows.stride(0)), (rows.stride(0), 1)


def step_in_place(optimiser: Optimiser, step: Step) -> None:
    """Move parameters and moments of the servers that are active; the others stay as they are."""
    if isinstance(optimiser, Adam):
        vectors_for(step.params).adam_in_place(optimiser, step)
    elif isinstance(optimiser, Sgd):
        for start, gradient in step.gradients.items():
            place = slice(start, start + gradient[0].numel())
            params, velocity = step.params[:, place], step.first[:, place]
            _sgd_in_place(optimiser, params, gradient.flatten(1), velocity, step.rates, step.active)
    else:
        raise TypeError(f"no stacked form of {type(optimiser).__name__}")


def _sgd_in_place(sgd: Sgd, params: Tensor, gradient: Tensor, velocity: Tensor, rates: Rates, active: Tensor) -> None:
    direction = gradient
    if sgd.momentum:
        direction = velocity * sgd.momentum + gradient
        velocity.copy_(torch.where(active[:, None] > 0, direction, velocity))
    params.sub_(direction * (rates.step * active)[:, None])
