"""Distances of models to their mean: exact where they lie together, near where only sketches are known."""

import numpy as np
import pytest
import torch

import hatdfed.server.consensus as consensus
from hatdfed.core.round import SKETCH_SIZE, estimate_consensus_distance
from hatdfed.server.consensus import consensus_distance, sketch

STANDARD_ERROR = SKETCH_SIZE**-0.5


def around(size, spread, servers=5, seed=0):
    """Models at random around a common one."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, generator=generator) + spread * torch.randn(servers, size, generator=generator)


def by_numpy(models):
    models = models.double().numpy()
    mean = models.mean(axis=0)
    return np.linalg.norm(models - mean, axis=1).mean() / np.linalg.norm(mean)


def estimated(models):
    return estimate_consensus_distance(list(sketch(models).numpy()))


def test_the_exact_distance_by_hand():
    assert float(consensus_distance(torch.tensor([[4.0, 4.0], [2.0, 4.0]]))) == pytest.approx(1 / 5)


@pytest.mark.parametrize("at_once", [7, 64, 1 << 18])
def test_pieces_of_any_size_give_the_same_distance(monkeypatch, at_once):
    monkeypatch.setattr(consensus, "_NUMBERS_ON_CPU", at_once)
    models = around(1000, 0.1)
    assert float(consensus_distance(models)) == pytest.approx(by_numpy(models), rel=1e-6)


def test_models_that_hardly_differ_are_not_lost_in_rounding():
    models = around(20_000, 1e-5)
    assert float(consensus_distance(models)) == pytest.approx(by_numpy(models), rel=1e-3)


def test_several_runs_at_once_have_each_its_own_distance():
    runs = torch.stack([around(500, spread, seed=7) for spread in (0.1, 0.5)])
    expected = [by_numpy(models) for models in runs]
    assert consensus_distance(runs).tolist() == pytest.approx(expected, rel=1e-6)


def test_a_model_that_is_not_finite_makes_the_distance_unknown():
    models = around(50, 0.1)
    models[2, 3] = torch.inf
    assert not np.isfinite(float(consensus_distance(models)))
    assert estimated(models) is None


def test_a_sketch_is_linear_and_the_same_alone_as_in_company():
    models = around(200_000, 0.1)  # more than is sketched at once
    together = sketch(models)
    assert together.shape == (5, SKETCH_SIZE)
    torch.testing.assert_close(sketch(models[3:4])[0], together[3])
    torch.testing.assert_close(sketch(models.mean(dim=0)[None])[0], together.mean(dim=0), atol=1e-3, rtol=1e-4)


def test_a_sketch_is_the_same_on_every_machine():
    """Edges and coordinators of other versions count on these signs."""
    signs = sketch(torch.eye(12, 600)).sum(dim=1).int().tolist()
    assert signs == [-1, -1, -1, 1, -1, 1, 1, 1, -1, 1, -1, -1]


@pytest.mark.parametrize("spread", [0.001, 0.1, 3.0])
@pytest.mark.parametrize("size", [3000, 100_000])
def test_the_estimate_has_the_error_that_is_told(size, spread):
    errors = []
    for seed in range(30):
        models = around(size, spread, seed=seed)
        errors.append(estimated(models) / by_numpy(models) - 1)
    assert np.sqrt(np.mean(np.square(errors))) < 1.3 * STANDARD_ERROR
    assert max(map(abs, errors)) < 4 * STANDARD_ERROR


def test_layers_whose_columns_differ_in_size_do_not_spoil_the_estimate():
    """The parameters of one input lie 512 apart: were that the size of a sketch, all of them would fall together."""
    scale = torch.zeros(512).index_fill_(0, torch.arange(8), 1.0).repeat(64)
    errors = [
        estimated(models) / by_numpy(models) - 1
        for models in (scale * around(512 * 64, 0.1, seed=s) for s in range(30))
    ]
    assert np.sqrt(np.mean(np.square(errors))) < 1.5 * STANDARD_ERROR


def test_a_model_smaller_than_a_sketch_is_sketched_exactly():
    models = around(100, 0.3)
    assert estimated(models) == pytest.approx(by_numpy(models), rel=1e-5)
