"""What every network must satisfy."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from hatdfed.server.learner import Learner
from hatdfed.server.networks import NetworkMaker, Shape
from hatdfed.server.optimisers import Adam
from hatdfed.server.work import Batch


class NetworkLaws:
    """Tests that every network must pass."""

    shapes: Sequence[Shape] = ((1, 8, 8), (3, 32, 32))
    num_classes: int = 7

    def maker(self) -> NetworkMaker:
        """Return the network under test."""
        raise NotImplementedError

    def _learners(self) -> list[tuple[Shape, Learner]]:
        return [(s, Learner(partial(self.maker(), s, self.num_classes), Adam())) for s in self.shapes]

    def test_it_answers_with_one_number_a_class(self) -> None:
        for shape, learner in self._learners():
            assert learner.logits(learner.init(0), torch.zeros(3, *shape)).shape == (3, self.num_classes)

    def test_it_learns_a_small_batch(self) -> None:
        for shape, learner in self._learners():
            generator = torch.Generator().manual_seed(0)
            batch = Batch(torch.randn(14, *shape, generator=generator), torch.arange(14) % self.num_classes)
            params = learner.init(0)
            trained, _ = learner.fit(params, learner.optimiser.init(learner.num_trainable), [batch] * 30, seed=0)
            assert torch.isfinite(trained).all()
            assert float(learner.losses(trained, batch).mean()) < float(learner.losses(params, batch).mean())

    def test_the_same_seed_gives_the_same_model(self) -> None:
        for _, learner in self._learners():
            assert torch.equal(learner.init(3), learner.init(3))
            if not learner.frozen:  # adapters may begin with zeros
                assert not torch.equal(learner.init(3), learner.init(4))
