"""Computations of fixed shapes as CUDA graphs: a GPU gets all that they launch in one call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor

Computation = Callable[..., Sequence[Tensor]]

_WARM_UP = 2  # calls before a capture, in which libraries choose their kernels and set up what they need
_MOST_GRAPHS = 6  # each keeps its memory


class CudaGraphs:
    """Calls computations as CUDA graphs, which are captured when the same shapes come for the second time.

    What a call returns is overwritten by the next one. A computation that cannot be captured is called as it is.
    """

    def __init__(self) -> None:
        self._seen: Counter[Hashable] = Counter()
        self._graphs: dict[Hashable, _CapturedCall] = {}
        self._pool: object = None
        self.failure: str | None = None  # why nothing is captured any more

    @property
    def num_captured(self) -> int:
        """Graphs so far."""
        return len(self._graphs)

    def call(self, key: Hashable, compute: Computation, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """What `compute(*inputs)` returns; `key` tells computations apart, their shapes need not be part of it."""
        whole = (key, *((tuple(tensor.shape), tensor.dtype) for tensor in inputs))
        self._seen[whole] += 1
        if whole not in self._graphs and self._seen[whole] > 1 and self.failure is None:
            self._capture(whole, compute, inputs)
        graph = self._graphs.get(whole)
        return compute(*inputs) if graph is None else graph(inputs)

    def _capture(self, key: Hashable, compute: Computation, inputs: Sequence[Tensor]) -> None:
        if len(self._graphs) >= _MOST_GRAPHS:
            return
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()  # shared: no two graphs run at the same time
        try:
            self._graphs[key] = _CapturedCall(compute, inputs, self._pool)
        except RuntimeError as error:
            self.failure = str(error).strip().splitlines()[0]


class _CapturedCall:
    """One graph, and the tensors that it reads from."""

    def __init__(self, compute: Computation, inputs: Sequence[Tensor], pool: object) -> None:
        self._inputs = [_empty_like(tensor) for tensor in inputs]
        self._fill(inputs)
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP):
                compute(*self._inputs)
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool):  # type: ignore[arg-type]
            self._outputs = compute(*self._inputs)

    def __call__(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        self._fill(inputs)
        self._graph.replay()
        return self._outputs

    @torch.no_grad()
    def _fill(self, inputs: Sequence[Tensor]) -> None:
        for place, tensor in zip(self._inputs, inputs, strict=True):
            place.copy_(tensor)


def _empty_like(tensor: Tensor) -> Tensor:
    """Of rows that lie apart, as those of models do, with the same gaps: they keep rows aligned."""
    if tensor.ndim == 2 and tensor.stride(1) == 1 and tensor.stride(0) >= tensor.shape[1]:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)
