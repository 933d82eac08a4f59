"""Adam and the merge: torch operations, C and the server-by-server optimiser say the same."""

import os

import numpy as np
import pytest
import torch

from hatdfed.fleets.kernels.native.vectors import native_vectors
from hatdfed.fleets.kernels.triton import vectors as triton_vectors
from hatdfed.fleets.kernels.triton.stage import triton_available
from hatdfed.fleets.kernels.triton.vectors import TritonVectors
from hatdfed.fleets.kernels.vectors import TorchVectors, compute_norms, restore_rows, step_in_place, vectors_for
from hatdfed.fleets.stacked.model import Rates, Step, step_rates
from hatdfed.randomness import torch_seed
from hatdfed.server import guard
from hatdfed.server.consensus import consensus_distance
from hatdfed.server.dropout import make_keep_mask
from hatdfed.server.optimisers import Adam, OptimiserState, Sgd

SERVERS, STARTS, SHAPES = 4, (0, 30, 40_030), ((5, 6), (40_000,), (7,))
SIZE = 40_037


def forms():
    native = [native_vectors()] if native_vectors() else []
    # Triton's interpreter takes tensors of the CPU; on a GPU the fleet's own tests use these kernels.
    interpreted = os.environ.get("TRITON_INTERPRET") == "1" and triton_available()
    return [TorchVectors(), *native, *([TritonVectors()] if interpreted else [])]


def rows(generator):
    """Rows that lie apart, as a fleet has them."""
    return torch.randn(SERVERS, SIZE + 27, generator=generator)[:, :SIZE]


@pytest.fixture
def world():
    generator = torch.Generator().manual_seed(5)
    gradients = {
        start: torch.randn(SERVERS, *shape, generator=generator) for start, shape in zip(STARTS, SHAPES, strict=True)
    }
    return rows(generator), gradients, rows(generator), rows(generator).abs()


@pytest.mark.parametrize("form", forms(), ids=lambda form: type(form).__name__)
def test_adam_is_the_one_of_a_single_server(form, world):
    params, gradients, first, second = world
    steps, scale = np.array([0, 3, 9, 1]), np.array([1.0, 2.0, 0.5, 1.0])
    active = torch.tensor([1.0, 1.0, 1.0, 0.0])
    rates = Rates(*torch.from_numpy(step_rates(Adam(), steps, scale)))
    moved = [tensor.clone() for tensor in (params, first, second)]
    form.adam_in_place(Adam(), Step(moved[0], gradients, moved[1], moved[2], rates, active))
    flat = torch.cat([part.flatten(1) for part in gradients.values()], dim=1)
    for i in range(SERVERS):
        state = OptimiserState(int(steps[i]), first[i], second[i])
        target, after = Adam().step(params[i], flat[i], state)
        target = torch.lerp(params[i], target, float(scale[i]))
        expected = (target, after.first, after.second) if active[i] else (params[i], first[i], second[i])
        for mine, theirs in zip(moved, expected, strict=True):
            torch.testing.assert_close(mine[i], theirs, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("form", forms(), ids=lambda form: type(form).__name__)
def test_a_merge_is_a_weighted_sum_that_ignores_what_has_no_weight(form):
    generator = torch.Generator().manual_seed(1)
    own, sent = rows(generator), rows(generator)
    sent[3] = torch.nan
    own[3] = torch.inf
    weights = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.2, 0.3, 0.5], [0.0, 1.0, 0.0]])
    sender = torch.tensor([[0, 1, 3], [1, 3, 3], [2, 0, 1], [3, 2, 3]])
    out = torch.full((SERVERS, SIZE + 5), 9.0)[:, :SIZE]
    norms = form.weighted_rows(weights, own, sent, sender, out)
    expected = torch.stack(
        [0.5 * own[0] + 0.5 * sent[1], own[1], 0.2 * own[2] + 0.3 * sent[0] + 0.5 * sent[1], sent[2]]
    )
    torch.testing.assert_close(out, expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(norms.double(), expected.double().norm(dim=1), rtol=1e-6, atol=0)


@pytest.mark.parametrize("form", forms(), ids=lambda form: type(form).__name__)
@pytest.mark.parametrize("place", [0, SIZE // 2, SIZE - 1])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, 3e38])
def test_a_merge_tells_which_sums_are_finite(form, place, value):
    own, sent = torch.ones(2, SERVERS, SIZE)
    own[1, place] = sent[0, place] = value  # 3e38 is finite, the sum of two such numbers is not
    weights, sender = torch.ones(SERVERS, 2), torch.zeros(SERVERS, 2, dtype=torch.int64)
    weights[0, 1] = weights[3, 1] = 0
    norms = form.weighted_rows(weights, own, sent, sender, torch.empty(SERVERS, SIZE))
    assert torch.isfinite(norms).tolist() == [True, False, value == 3e38, True]


def test_threads_do_not_change_a_bit(world):
    native = native_vectors()
    if native is None:
        pytest.skip("no C compiler here")
    params, gradients, first, second = world
    rates = Rates(*torch.from_numpy(step_rates(Adam(), np.zeros(SERVERS, dtype=int), np.ones(SERVERS))))
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        moved = [tensor.clone() for tensor in (params, first, second)]
        native.adam_in_place(Adam(), Step(moved[0], gradients, moved[1], moved[2], rates, torch.ones(SERVERS)))
        results.append(moved)
    torch.set_num_threads(1)
    assert all(torch.equal(a, b) for moved in results[1:] for a, b in zip(moved, results[0], strict=True))


def test_gradient_descent_without_momentum_needs_no_moments(world):
    params, gradients, *_ = world
    moved, nothing = params.clone(), torch.zeros(SERVERS, 0)
    rates = Rates(*torch.from_numpy(step_rates(Sgd(0.1), np.zeros(SERVERS, dtype=int), np.ones(SERVERS))))
    step_in_place(Sgd(0.1), Step(moved, gradients, nothing, nothing, rates, torch.ones(SERVERS)))
    flat = torch.cat([part.flatten(1) for part in gradients.values()], dim=1)
    torch.testing.assert_close(moved, params - 0.1 * flat)


def test_without_a_compiler_torch_does_it(monkeypatch):
    monkeypatch.setattr("hatdfed.fleets.kernels.vectors.native_vectors", lambda: None)
    assert isinstance(vectors_for(torch.zeros(2, 2)), TorchVectors)


@pytest.mark.parametrize("place", [0, SIZE // 2, SIZE - 1])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_model_with_one_bad_number_is_not_finite(place, value):
    models = torch.full((SERVERS, SIZE + 27), 3e38)[:, :SIZE]  # finite, though their sum in float32 is not
    models[2, place] = value
    for norms in (compute_norms(models), guard.compute_norms(models)):
        assert torch.isfinite(norms).tolist() == [True, True, False, True]


RESTORING = [restore_rows, *([triton_vectors.restore_rows] if len(forms()) > 2 else [])]


@pytest.mark.parametrize("restore", RESTORING)
@pytest.mark.parametrize("is_lost", [[False] * 4, [False, True, False, True], [True] * 4])
def test_rows_that_are_lost_are_those_from_before(restore, is_lost):
    generator = torch.Generator().manual_seed(8)
    now, earlier, lost = rows(generator), rows(generator), torch.tensor(is_lost)
    now[lost] = torch.nan
    expected = torch.where(lost[:, None], earlier, now)
    restore(now, earlier, lost)
    assert torch.equal(now, expected)


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1" or not triton_available(), reason="needs Triton")
def test_a_gpu_finds_the_same_distance_to_the_mean_model():
    generator = torch.Generator().manual_seed(3)
    models = (
        torch.randn(2, 1, SIZE, generator=generator)
        + 0.1 * torch.randn(2, 3, SIZE + 27, generator=generator)[..., :SIZE]
    )
    torch.testing.assert_close(triton_vectors.consensus_distance(models), consensus_distance(models), rtol=1e-5, atol=0)


@pytest.mark.skipif(native_vectors() is None, reason="needs a C compiler")
@pytest.mark.parametrize("probability", [0.25, 0.1, 0.7])
@pytest.mark.parametrize("step", [0, 1, 5000])
def test_c_drops_the_same_units(probability, step):
    seeds = torch.tensor([0, 1, 2**63 - 1, -5, *(torch_seed(7, "dropout", t) for t in range(3))])
    place = {"step": step, "layer": 3, "batch": 9, "units": 2000, "probability": probability}  # more than one block
    factors = native_vectors().dropout_factors(seeds, **place)
    assert torch.equal(factors, make_keep_mask(seeds, **place).float() / (1 - probability))
    part = native_vectors().dropout_factors(seeds[::2], **place)
    assert torch.equal(part, factors[::2])
