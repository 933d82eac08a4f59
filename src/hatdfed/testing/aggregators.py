"""What every aggregator must satisfy."""

from __future__ import annotations

import torch

from hatdfed.server.aggregation import Aggregator, Inbox, Probe
from hatdfed.server.inbox import Comparison


def random_inbox(seed: int, *, slots: int = 4, params: int = 5) -> tuple[Probe, Inbox]:
    """Draw an inbox with some models missing, and their losses on a probe of three samples."""
    generator = torch.Generator().manual_seed(seed)
    present = torch.rand(slots, generator=generator) < 0.7
    present[0] = True
    inbox = Inbox(
        models=torch.randn(slots, params, generator=generator),
        num_samples=torch.randint(0, 60, (slots,), generator=generator),
        mixing=torch.full((slots,), 1 / slots, dtype=torch.float64),
        mass=0.1 + torch.rand(slots, generator=generator, dtype=torch.float64),
        present=present,
    )
    losses = 3 * torch.rand(slots, 3, generator=generator)
    own, theirs, weight = torch.rand(3, slots, 3, generator=generator)
    comparison = Comparison(own, theirs, weight, torch.full((slots,), 0.1))
    return Probe(losses, torch.ones(3, dtype=torch.bool), comparison), inbox


def pad(probe: Probe, inbox: Inbox) -> tuple[Probe, Inbox]:
    """Add one slot and one sample of arbitrary values, both marked as absent."""
    more = Inbox(
        models=torch.cat([inbox.models, torch.full_like(inbox.models[:1], torch.nan)]),
        num_samples=torch.cat([inbox.num_samples, torch.tensor([99])]),
        mixing=torch.cat([inbox.mixing, torch.tensor([0.5], dtype=torch.float64)]),
        mass=torch.cat([inbox.mass, torch.tensor([5.0], dtype=torch.float64)]),
        present=torch.cat([inbox.present, torch.tensor([False])]),
    )
    losses = torch.cat([probe.losses, torch.full_like(probe.losses[:1], 3.0)])
    losses = torch.cat([losses, torch.full_like(losses[:, :1], 11.0)], dim=1)
    return Probe(losses, torch.cat([probe.valid, torch.tensor([False])]), _pad_comparison(probe.comparison)), more


def _pad_comparison(comparison: Comparison | None) -> Comparison | None:
    if comparison is None:
        return None
    pad = torch.nn.functional.pad
    own, theirs = (pad(table, (0, 1, 0, 1), value=0.5) for table in (comparison.own, comparison.theirs))
    weight = pad(pad(comparison.weight, (0, 1)), (0, 0, 0, 1), value=1.0)  # what is padding never counts
    return Comparison(own, theirs, weight, pad(comparison.guess, (0, 1), value=0.1))


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
