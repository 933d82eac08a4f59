"""When computations become CUDA graphs; the graphs themselves where there is a GPU."""

import pytest
import torch

from hatdfed.fleets.stacked import cuda_graphs
from hatdfed.fleets.stacked.cuda_graphs import CudaGraphs

ON_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def double(x):
    return [2 * x]


@pytest.fixture
def captured(monkeypatch):
    """Stands for a capture; lists what was captured."""
    shapes = []

    def capture(compute, inputs, pool):
        shapes.append([tuple(tensor.shape) for tensor in inputs])
        return lambda given: [tensor + 100 for tensor in compute(*given)]

    monkeypatch.setattr(cuda_graphs, "_CapturedCall", capture)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    return shapes


def test_shapes_are_captured_when_they_come_again(captured):
    graphs, x = CudaGraphs(), torch.ones(3)
    assert graphs.call("double", double, [x])[0].tolist() == [2, 2, 2]
    assert not captured
    assert graphs.call("double", double, [torch.ones(4)])[0].tolist() == [2] * 4
    assert graphs.call("other", double, [x])[0].tolist() == [2] * 3
    assert not captured
    assert graphs.call("double", double, [x])[0].tolist() == [102] * 3
    assert graphs.call("double", double, [2 * x])[0].tolist() == [104] * 3
    assert captured == [[(3,)]]


def test_there_are_not_more_graphs_than_memory_is_for(captured):
    graphs = CudaGraphs()
    for size in [*range(20), *range(20)]:
        graphs.call("double", double, [torch.ones(size)])
    assert len(captured) == graphs.num_captured == 6


def test_what_cannot_be_captured_is_called_as_it_is(monkeypatch):
    def refuse(*_):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(cuda_graphs, "_CapturedCall", refuse)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    graphs, x = CudaGraphs(), torch.ones(2)
    for _ in range(3):
        assert graphs.call("double", double, [x])[0].tolist() == [2, 2]
    assert graphs.failure == "operation not permitted when stream is capturing"


@ON_GPU
def test_a_graph_gives_what_the_computation_gives():
    graphs = CudaGraphs()
    for factor in range(4):
        x = torch.arange(3.0, device="cuda") * factor
        assert graphs.call("double", double, [x])[0].tolist() == (2 * x).tolist()
    assert graphs.failure is None
    assert graphs.num_captured == 1
