"""The laws of merging, and which of them a rule breaks.

A rule of a user's own is tried on made-up inboxes before a run, whichever fleet plays it. Weights are checked in every
round: a rule may break a law only for some inboxes. `hatdfed.testing.AggregatorLaws` are the same laws as tests.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from hatdfed.errors import ConfigError
from hatdfed.server.inbox import Aggregator, AveragingRule, Comparison, Inbox, Merged, Probe

_TRIALS = 6
_OFF_BY = 1e-3  # how far sums of float32 weights may be from 1


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
    comparison = Comparison(own, theirs, weight, torch.full((slots,), 0.1), torch.ones(slots))
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
    guess, size = pad(comparison.guess, (0, 1), value=0.1), pad(comparison.size, (0, 1), value=9.0)
    return Comparison(own, theirs, weight, guess, size)


def check_rule(rule: Aggregator) -> None:
    """Refuse a rule that breaks a law on made-up inboxes, and say which."""
    for seed in range(_TRIALS):
        probe, inbox = random_inbox(seed, slots=1 + seed % 6)
        before = [part.clone() for part in inbox]
        merged = _merge(rule, probe, inbox)
        if not all(torch.equal(mine, theirs) for mine, theirs in zip(before, inbox, strict=True)):
            raise _broken(rule, "leaves the inbox as it is, but it wrote into it. Make a copy (.clone()) first")
        if not merged.importance.isfinite().all() or not merged.model.isfinite().all():
            raise _broken(
                rule, "makes finite numbers of finite numbers, but its weights or its model hold NaN or infinity"
            )
        check_weights(rule, merged.importance[None].numpy(), inbox.present[None].numpy())
        more = _merge(rule, *pad(probe, inbox))
        if not torch.allclose(more.model, merged.model, rtol=1e-4, atol=1e-4):
            raise _broken(
                rule,
                "reads no padding, but a slot that is not present changed the merged model. Use "
                "torch.where(inbox.present, …, 0) or `weighted`",
            )
    if isinstance(rule, AveragingRule):
        _check_vectorised(rule)


def _check_vectorised(rule: Aggregator) -> None:
    """Refuse an averaging rule that a stacked fleet cannot use: which fleet plays a run must not matter."""
    several = [random_inbox(seed) for seed in range(2)]
    inboxes = Inbox(*(torch.stack(parts) for parts in zip(*(inbox for _, inbox in several), strict=True)))
    try:
        torch.vmap(lambda inbox: rule(several[0][0], inbox))(inboxes)
    except RuntimeError as error:
        raise describe_unliftable(rule, error) from error


def _merge(rule: Aggregator, probe: Probe, inbox: Inbox) -> Merged:
    try:
        merged = rule(probe, inbox)
    except Exception as error:  # noqa: BLE001 (it is somebody else's rule)
        reason = (str(error).splitlines() or ["no reason given"])[0]
        raise ConfigError(
            f"The aggregator {_name(rule)} cannot merge an inbox ({type(error).__name__}: {reason:.200})."
        ) from None
    if not isinstance(merged, Merged) or not all(isinstance(part, torch.Tensor) for part in merged):
        raise _broken(rule, f"returns Merged with three tensors, but it returned {type(merged).__name__}")
    slots, wanted = len(inbox.present), inbox.models[0]
    if merged.model.shape != wanted.shape or merged.importance.shape != (slots,):
        raise _broken(
            rule,
            f"returns a model [P] and weights [D], here {list(wanted.shape)} and [{slots}], but it returned "
            f"{list(merged.model.shape)} and {list(merged.importance.shape)}",
        )
    if merged.model.dtype != wanted.dtype:
        raise _broken(
            rule, f"keeps the type of the models, {wanted.dtype}, but it returned {merged.model.dtype}. Convert it back"
        )
    return merged


def check_weights(rule: Aggregator, weights: NDArray[np.floating], present: NDArray[np.bool_]) -> None:  # [n, D]
    """Refuse weights that are no shares of the models present; rows are servers, and finite."""
    sums = weights.sum(axis=1)
    if (off := np.abs(sums - 1) > _OFF_BY).any():
        raise _broken(
            rule,
            f"gives weights that sum to 1, but they sum to {sums[off][0]:.4g}. Divide them by their sum over the "
            "models present",
        )
    if (weights < 0).any():
        raise _broken(rule, f"gives weights of at least 0, but one is {weights.min():.4g}")
    if weights[~present].any():
        raise _broken(rule, "gives no weight to what is not present, but it did. Use torch.where(inbox.present, …, 0)")


def describe_unliftable(rule: Aggregator, error: Exception) -> ConfigError:
    """The error of a rule that cannot be vectorised over servers."""
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return ConfigError(
        f"The aggregator {_name(rule)} inherits AveragingRule, but cannot be vectorised over servers ({reason:.200}). "
        "Use torch.where instead of branches on values, or inherit Rule."
    )


def _broken(rule: Aggregator, law: str) -> ConfigError:
    return ConfigError(f"The aggregator {_name(rule)} breaks a law of merging: a rule {law}.")


def _name(rule: Aggregator) -> str:
    return type(rule).__name__
