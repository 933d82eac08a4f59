"""Adam, the merge and distances on an NVIDIA GPU: every number is read and written once."""

# mypy: ignore-errors
# ruff: noqa: N803
# (mypy: this is Triton's language, not Python's. ruff: capitals are compile-time constants, as everywhere in Triton.)

import torch
from torch import Tensor

from hatdfed.fleets.kernels.triton.parts import jit, tl
from hatdfed.fleets.kernels.triton.stage import triton_available
from hatdfed.fleets.stacked.model import Step
from hatdfed.server.guard import compute_norms
from hatdfed.server.optimisers import Adam

BLOCK = 1024
MOST_SMALL = 1 << 15  # numbers of a tensor whose step takes less time on the GPU than its launch on the host


class TritonVectors:
    """See `vectors.Vectors`."""

    def adam_in_place(self, adam: Adam, step: Step) -> None:
        """One launch for each large parameter tensor, and one for all small ones."""
        shares = (1 - adam.beta_1, 1 - adam.beta_2, adam.epsilon)
        servers = (step.rates.step, step.rates.second, step.active)
        small = {}
        for start, gradient in step.gradients.items():
            g = gradient.flatten(1)
            size = g.shape[1]
            if size < MOST_SMALL:
                small[start] = g
                continue
            m, v, p = (rows[:, start : start + size] for rows in (step.first, step.second, step.params))
            apart = (p.stride(0), g.stride(0), m.stride(0), v.stride(0))
            _adam[(-(-size // BLOCK), len(g))](p, g, m, v, *servers, size, *apart, *shares, BLOCK=BLOCK)
        if small:
            table = [[g.data_ptr(), g.stride(0), start, g.shape[1]] for start, g in small.items()]
            places = torch.tensor(table).to(step.params.device, non_blocking=True)
            blocks = -(-max(size for *_, size in table) // BLOCK)
            p, m, v = step.params, step.first, step.second
            apart = (p.stride(0), m.stride(0), v.stride(0))
            _adam_small[(blocks, len(p), len(small))](p, places, m, v, *servers, *apart, *shares, BLOCK=BLOCK)

    def weighted_rows(self, weights: Tensor, own: Tensor, sent: Tensor, sender: Tensor, out: Tensor) -> Tensor:
        """A model without weight is not even read."""
        servers, size = own.shape
        _merge[(-(-size // BLOCK), servers)](
            weights.contiguous(), own, sent, sender.contiguous(), out, size, weights.shape[1],
            own.stride(0), sent.stride(0), out.stride(0), BLOCK=BLOCK,
        )  # fmt: skip
        return compute_norms(out)


def restore_rows(rows: Tensor, earlier: Tensor, is_lost: Tensor) -> None:
    """See `vectors.restore_rows`; a row that is not lost is not even read."""
    servers, size = rows.shape
    _restore[(-(-size // BLOCK), servers)](
        is_lost.view(torch.uint8), rows, earlier, size, rows.stride(0), earlier.stride(0), BLOCK=BLOCK
    )


def consensus_distance(models: Tensor) -> Tensor:  # [R, n, P] -> [R]
    """See `hatdfed.server.consensus`; sums of every block of parameters first, then of all blocks."""
    runs, servers, size = models.shape
    blocks = -(-size // BLOCK)
    apart = torch.empty(blocks, runs, servers, device=models.device)
    length = torch.empty(blocks, runs, device=models.device)
    _distance[(blocks, runs)](
        models, apart, length, size, servers, runs, models.stride(0), models.stride(1), BLOCK=BLOCK
    )
    apart, length = (sums.sum(dim=0, dtype=torch.float64).sqrt_() for sums in (apart, length))
    return apart.mean(dim=1) / length


def supports(tensor: Tensor) -> bool:
    """Whether these kernels can work on a tensor that lies on a GPU."""
    return triton_available() and tensor.dtype == torch.float32


@jit
def _adam(
    model, gradient, first, second, step_rate, second_rate, active, size,
    model_apart, gradient_apart, first_apart, second_apart, share_1, share_2, epsilon, BLOCK: tl.constexpr,
):  # fmt: skip
    server = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    moves = place < tl.where(tl.load(active + server) > 0, size, 0)
    g = tl.load(gradient + server * gradient_apart + place, mask=moves, other=0.0)
    step, second_scale = tl.load(step_rate + server), tl.load(second_rate + server)
    _move(
        model + server * model_apart + place, first + server * first_apart + place,
        second + server * second_apart + place, g, moves, step, second_scale, share_1, share_2, epsilon,
    )  # fmt: skip


@jit
def _adam_small(
    model, places, first, second, step_rate, second_rate, active, model_apart, first_apart, second_apart,
    share_1, share_2, epsilon, BLOCK: tl.constexpr,
):  # fmt: skip
    """Several tensors: `places` [tensors, 4] tells where a gradient is, its stride, where it starts, and its size."""
    server = tl.program_id(1).to(tl.int64)
    here = places + 4 * tl.program_id(2)
    gradient = tl.load(here).to(tl.pointer_type(tl.float32))
    gradient_apart, start, size = tl.load(here + 1), tl.load(here + 2), tl.load(here + 3)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    moves = place < tl.where(tl.load(active + server) > 0, size, 0)
    g = tl.load(gradient + server * gradient_apart + place, mask=moves, other=0.0)
    step, second_scale = tl.load(step_rate + server), tl.load(second_rate + server)
    place = place + start
    _move(
        model + server * model_apart + place, first + server * first_apart + place,
        second + server * second_apart + place, g, moves, step, second_scale, share_1, share_2, epsilon,
    )  # fmt: skip


@jit
def _move(model, first, second, g, moves, step_rate, second_rate, share_1, share_2, epsilon):
    m = tl.load(first, mask=moves, other=0.0)
    v = tl.load(second, mask=moves, other=0.0)
    m += (g - m) * share_1
    v += (g * g - v) * share_2
    step = step_rate * m / (tl.sqrt(v * second_rate) + epsilon)
    tl.store(model, tl.load(model, mask=moves, other=0.0) - step, mask=moves)
    tl.store(first, m, mask=moves)
    tl.store(second, v, mask=moves)


@jit
def _merge(
    weights, own, sent, sender, out, size, slots, own_apart, sent_apart, out_apart, BLOCK: tl.constexpr
):  # fmt: skip
    server = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    share = tl.load(weights + server * slots)
    counts = place < tl.where(share != 0, size, 0)  # a model without weight may hold anything
    total = tl.load(own + server * own_apart + place, mask=counts, other=0.0) * share
    for slot in range(1, slots):
        weight = tl.load(weights + server * slots + slot)
        row = tl.load(sender + server * slots + slot).to(tl.int64)
        total += (
            tl.load(sent + row * sent_apart + place, mask=place < tl.where(weight != 0, size, 0), other=0.0) * weight
        )
    tl.store(out + server * out_apart + place, total, mask=inside)


@jit
def _restore(is_lost, rows, earlier, size, rows_apart, earlier_apart, BLOCK: tl.constexpr):
    server = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    moves = place < tl.where(tl.load(is_lost + server) != 0, size, 0)
    value = tl.load(earlier + server * earlier_apart + place, mask=moves, other=0.0)
    tl.store(rows + server * rows_apart + place, value, mask=moves)


@jit
def _distance(models, apart, length, size, servers, runs, run_apart, server_apart, BLOCK: tl.constexpr):
    block, run = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    place = block * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    here = models + run * run_apart + place
    mean = tl.zeros((BLOCK,), dtype=tl.float32)
    for server in range(servers):
        mean += tl.load(here + server * server_apart, mask=inside, other=0.0)
    mean /= servers
    tl.store(length + block * runs + run, tl.sum(mean * mean))
    for server in range(servers):  # these are still in the cache
        away = tl.load(here + server * server_apart, mask=inside, other=0.0) - mean
        tl.store(apart + (block * runs + run) * servers + server, tl.sum(away * away))
