"""A model of a few numbers that is trained without data: what matters here is who has it."""

from types import SimpleNamespace

import torch

from hatdfed.deploy.edge.setup import EdgeSetup
from hatdfed.runs.process_memory import tidy_freed_memory
from hatdfed.server.aggregation import Uniform
from hatdfed.server.codecs.base import Plain
from hatdfed.server.measured_metrics import Evaluation
from hatdfed.server.optimisers import OptimiserState
from hatdfed.server.parameter_roles import SentPart
from hatdfed.server.program import EdgeProgram
from hatdfed.server.work import Batch, Work

SIZE = 6


class _NoOptimiser:
    def init(self, num_trainable):
        return OptimiserState(0, torch.zeros(0), torch.zeros(0))


class TinyLearner:
    """The part of `Learner` that an edge needs."""

    num_params = num_trainable = SIZE
    layout = {"weight": (0, torch.Size([SIZE]))}  # noqa: RUF012
    sent = SentPart.whole(SIZE)
    roles = {"weight": "shared"}  # noqa: RUF012
    optimiser = _NoOptimiser()
    largest_norm = 1e6
    private = None

    def init(self, seed):
        return torch.full((SIZE,), float(seed % 97))

    def fit(self, params, state, batches, *, seed, **_):
        return params + float(1 + seed % 7), state

    def accuracy(self, params, batch):
        """Some number between 0 and 1 that depends on the model."""
        return float((params.sum() / 1000) % 1)

    def evaluate(self, params, batch, metrics):
        return Evaluation(self.accuracy(params, batch), 1 - self.accuracy(params, batch), {})


_EMPTY = Batch(torch.zeros(0), torch.zeros(0))
_PROGRAM = EdgeProgram(TinyLearner(), Uniform(), Plain(torch.float32))


def make_tiny_setup(config, index):
    """What an edge needs for rounds."""
    return EdgeSetup(_PROGRAM, _Source(index), 13 * index + 1, 8, None)


class _Source:
    validation = _EMPTY

    def __init__(self, index):
        self._index = index

    def work(self, t, *_):
        return Work((_EMPTY,), 10, 2, _EMPTY, _EMPTY, seed=31 * t + self._index)


def make_inline_executor(*_, **__):
    """In place of a thread."""
    return SimpleNamespace(submit=_submit, shutdown=lambda **_: None)


def _submit(work, *arguments):
    if work is not tidy_freed_memory:
        work(*arguments)
