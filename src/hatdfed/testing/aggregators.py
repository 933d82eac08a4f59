"""What every aggregator must satisfy."""

from __future__ import annotations

import torch

from hatdfed.server.aggregation import Aggregator, Inbox, Probe
from hatdfed.server.merge_laws import pad, random_inbox


class AggregatorLaws:
    """Tests that every aggregator must pass."""

    trials: int = 30

    def aggregator(self) -> Aggregator:
        """Return the aggregator under test."""
        raise NotImplementedError

    def _cases(self) -> list[tuple[Probe, Inbox]]:
        return [random_inbox(seed, slots=1 + seed % 6) for seed in range(self.trials)]

    def test_weights_are_shares_of_what_is_present(self) -> None:
        for probe, inbox in self._cases():
            weights = self.aggregator()(probe, inbox).importance
            assert abs(float(weights.sum()) - 1) < 1e-5
            assert (weights >= 0).all()
            assert (weights[~inbox.present] == 0).all()

    def test_padding_changes_nothing(self) -> None:
        for probe, inbox in self._cases():
            plain, more = self.aggregator()(probe, inbox), self.aggregator()(*pad(probe, inbox))
            torch.testing.assert_close(more.model, plain.model, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(more.importance[:-1], plain.importance, rtol=1e-5, atol=1e-6)

    def test_a_constant_stays_constant(self) -> None:
        for probe, inbox in self._cases():
            same = inbox._replace(models=torch.full_like(inbox.models, -3.25))
            torch.testing.assert_close(self.aggregator()(probe, same).model, same.models[0], rtol=1e-4, atol=1e-4)

    def test_a_server_that_heard_nobody_keeps_its_model(self) -> None:
        for probe, inbox in self._cases():
            alone = inbox._replace(present=torch.arange(len(inbox.present)) == 0)
            torch.testing.assert_close(self.aggregator()(probe, alone).model, inbox.models[0], rtol=1e-5, atol=1e-5)

    def test_merging_leaves_the_inbox_alone(self) -> None:
        for probe, inbox in self._cases():
            given = [*inbox, probe.losses, probe.valid, *(probe.comparison or ())]
            before = [part.clone() for part in given]
            self.aggregator()(probe, inbox)
            assert all(torch.equal(mine, theirs) for mine, theirs in zip(before, given, strict=True))
