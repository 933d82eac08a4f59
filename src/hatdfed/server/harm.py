"""How much a received model contradicts the receiver's own data, where its sender should know better.

A model that has never seen a label does badly on it. That is ignorance, not contradiction: such a model may be just
what the receiver needs. So samples of labels that the sender does not have do not count, and those of labels that it
has little of count less. All labels that it has enough of count alike: a model that always says the label that its
sender has most of knows nothing. What is left is measured against what the receiver knows.

A sample counts by the probability that a model gives to its label, exp(−loss), not by the loss: the loss of a model
that is wrong and sure of it has no bound, so a few samples would decide.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from hatdfed.core.report_check import MOST_HARM
from hatdfed.server.inbox import Probe

SHARE_STEPS = 255  # label shares travel as bytes
_LEAST_SHARE = 0.02  # of a label among the sender's data: a model learns little from fewer images
_GOOD_SHARE = 0.1  # from which on a label counts in full
_LEAST_KNOWLEDGE = 0.1  # a server that knows less cannot say how much of it would be lost


class Harm(NamedTuple):
    """What a server's own data say about the models in its inbox."""

    harm: Tensor  # [D] probability lost against the own model, as a share of what the server knows; 1: like a guess
    evidence: Tensor  # [D] samples that it rests on; 0: nothing can be said
    knowledge: Tensor  # [D] of the receiver: 0 if its own model is as good as a guess, 1 if it is always right and sure


def measure_harm(probe: Probe, guess_loss: float) -> Harm:
    """Judge the models of an inbox, of which the first is the server's own."""
    relevance = torch.ones_like(probe.losses) if probe.relevance is None else probe.relevance
    weight = torch.where(probe.valid & (relevance >= _LEAST_SHARE), relevance.clamp(max=_GOOD_SHARE), 0.0)
    total = weight.sum(dim=-1)
    right = torch.exp(-torch.nan_to_num(probe.losses, nan=torch.inf))  # probability of the true label
    guess = math.exp(-guess_loss)
    lost = torch.where(weight > 0, weight * (right[:1] - right), 0.0).sum(dim=-1) / total.clamp(min=_LEAST_SHARE)
    samples = total.square() / weight.square().sum(dim=-1).clamp(min=_LEAST_SHARE**2)
    knowledge = (probe._replace(losses=right).mean[:1] - guess) / (1 - guess)
    harm = (lost / ((1 - guess) * knowledge.clamp(min=_LEAST_KNOWLEDGE))).clamp(-MOST_HARM, MOST_HARM)
    harm = torch.where(((weight > 0) & ~torch.isfinite(probe.losses)).any(dim=-1), MOST_HARM, harm)
    evidence = samples * (weight.amax(dim=-1) / _GOOD_SHARE).clamp(max=1)
    return Harm(harm, evidence, knowledge.expand_as(harm))


def share_labels(label_counts: Tensor) -> Tensor:  # [..., C] -> [..., C] uint8
    """Label shares as they travel with a model, in steps of 1/255; a label that is there has at least one step."""
    shares = label_counts.double() / label_counts.sum(dim=-1, keepdim=True).clamp(min=1)
    steps = (shares * SHARE_STEPS).round().clamp(min=0)
    return torch.where(label_counts > 0, steps.clamp(min=1), 0.0).to(torch.uint8)


def find_relevance(label_shares: Tensor, labels: Tensor) -> Tensor:  # [D, C] uint8, [Q] -> [D, Q]
    """The share that each sample's label has among the data of each model's sender; 1 for the own model."""
    received = label_shares[1:, labels].float() / SHARE_STEPS
    return torch.cat([torch.ones_like(labels, dtype=received.dtype)[None], received])
