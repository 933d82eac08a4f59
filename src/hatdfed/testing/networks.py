"""What every network must satisfy."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from hatdfed.core.task import CLASSIFICATION, NEXT_TOKEN, TaskKind
from hatdfed.server.learner import Learner
from hatdfed.server.networks import NetworkMaker, Shape
from hatdfed.server.optimisers import Adam
from hatdfed.server.tasks import make_task
from hatdfed.server.work import Batch


class NetworkLaws:
    """Tests that every network must pass."""

    shapes: Sequence[Shape] = ((1, 8, 8), (3, 32, 32))
    num_classes: int = 7
    task: str = CLASSIFICATION  # or next-token, for a network that reads token ids

    def maker(self) -> NetworkMaker:
        """Return the network under test."""
        raise NotImplementedError

    def _learners(self) -> list[tuple[Shape, Learner]]:
        task = make_task(TaskKind(self.task, self.num_classes))
        return [(s, Learner(partial(self.maker(), s, self.num_classes), Adam(), task=task)) for s in self.shapes]

    def _make_batch(self, shape: Shape) -> Batch:
        generator = torch.Generator().manual_seed(0)
        if self.task == NEXT_TOKEN:
            tokens = torch.randint(self.num_classes, (14, *shape), generator=generator)
            return Batch(tokens, tokens.roll(-1, dims=1))
        return Batch(torch.randn(14, *shape, generator=generator), torch.arange(14) % self.num_classes)

    def test_it_answers_with_one_number_a_class(self) -> None:
        for shape, learner in self._learners():
            batch = self._make_batch(shape)
            outputs = learner.logits(learner.init(0), batch.x)
            assert outputs.shape == (*batch.y.shape, self.num_classes)
            assert torch.isfinite(outputs).all()

    def test_it_learns_a_small_batch(self) -> None:
        for shape, learner in self._learners():
            batch, params = self._make_batch(shape), learner.init(0)
            trained, _ = learner.fit(params, learner.optimiser.init(learner.num_trainable), [batch] * 30, seed=0)
            assert torch.isfinite(trained).all()
            assert float(learner.losses(trained, batch).mean()) < float(learner.losses(params, batch).mean())

    def test_training_is_repeatable(self) -> None:
        shape, learner = self._learners()[0]
        batch, start = self._make_batch(shape), learner.optimiser.init(learner.num_trainable)
        first, second = (learner.fit(learner.init(0), start, [batch], seed=1)[0] for _ in range(2))
        assert torch.equal(first, second)

    def test_the_same_seed_gives_the_same_model(self) -> None:
        for _, learner in self._learners():
            assert torch.equal(learner.init(3), learner.init(3))
            assert not torch.equal(learner.init(3), learner.init(4))
