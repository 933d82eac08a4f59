"""How much a received model contradicts the receiver's own data, where its sender should know better.

A model that has never seen a label does badly on it. That is ignorance, not contradiction: such a model may be just
what the receiver needs. So the two models are compared on samples of labels that both servers have, and only asked
which of these labels a sample has. A label counts by the root of its number of samples, so that the most frequent one
does not decide alone: a model that always says the label that its sender has most of should not pass. Labels that the
sender has little of count less. With one label in common there is nothing to tell apart, and the models choose among
all labels. What the receiver's own model knows of these labels is the measure.

A sample counts by the probability that a model gives to its label, not by the loss: the loss of a model that is wrong
and sure of it has no bound, so a few samples would decide.

In a task without class labels models are compared on all samples of the probe, by their scores.

A model that is much larger than the own one counts as most harmful, whatever it answers: its answers may be those of an
honest model, but in an average it would have the weight of many.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from hatdfed.core.report_check import MOST_HARM
from hatdfed.server.inbox import Comparison, Probe

SHARE_STEPS = 255  # label shares travel as bytes
_LEAST_SHARE = 0.03  # of a label among a server's data: a model learns little from fewer images
_GOOD_SHARE = 0.1  # from which on a label counts in full
_MOST_SIZE = 3.0  # norm of a model, times that of the own; norms grow by less than 2 in long runs (`guard`)
_LEAST_KNOWLEDGE = 0.1  # a server that knows less of the labels in common cannot judge


class Harm(NamedTuple):
    """What a server's own data say about the models in its inbox."""

    harm: Tensor  # [D] what is lost against the own model, as a share of what the server knows; 1: like a guess
    evidence: Tensor  # [D] samples that it rests on; 0: nothing can be said
    knowledge: Tensor  # [D] of the receiver: 0 if its own model is as good as a guess, 1 if it is always right and sure


def measure_harm(probe: Probe, guess_loss: float) -> Harm:
    """Judge the models of an inbox, of which the first is the server's own."""
    if probe.comparison is None:
        raise ValueError("harm is measured by a comparison of models")
    own, theirs, weight, guess, size = probe.comparison
    total = weight.sum(dim=-1)
    known, left = ((weight * right).sum(dim=-1) / total.clamp(min=1e-9) - guess for right in (own, theirs))
    can_judge = known > _LEAST_KNOWLEDGE * (1 - guess)
    harm = torch.where(can_judge, (known - left) / known, 0.0).clamp(-MOST_HARM, MOST_HARM)
    is_absurd = ((weight > 0) & ~torch.isfinite(probe.losses)).any(dim=-1) | (size > _MOST_SIZE)
    samples = total.square() / weight.square().sum(dim=-1).clamp(min=1e-9)
    evidence = torch.where(can_judge, samples, 0.0)
    evidence = torch.where(size > _MOST_SIZE, probe.size[..., None].to(evidence.dtype), evidence)
    harm = torch.where(is_absurd, MOST_HARM, harm)
    return Harm(harm, evidence, _measure_knowledge(probe, guess_loss).expand_as(harm))


def _measure_knowledge(probe: Probe, guess_loss: float) -> Tensor:  # -> [1]
    """What the server's own model knows of all its data."""
    guess = math.exp(-guess_loss)
    right = torch.exp(-torch.nan_to_num(probe.losses, nan=torch.inf))  # probability of the true label
    return (probe._replace(losses=right).mean[:1] - guess) / (1 - guess)


def compare_on_common_labels(
    logits: Tensor, labels: Tensor, valid: Tensor, label_shares: Tensor
) -> Comparison:  # [D, Q, C], [Q], [Q], [D, C] uint8
    """Compare the first model, which is the server's own, with each, given the label shares of their servers.

    What is returned says nothing about their sizes.
    """
    shares = label_shares.float() / SHARE_STEPS
    common = (shares >= _LEAST_SHARE) & (shares[:1] >= _LEAST_SHARE)  # [D, C]
    among = common | (common.sum(dim=-1, keepdim=True) < 2)
    own, theirs = (_find_probability(each, labels, among) for each in (logits[:1].expand_as(logits), logits))
    numbers = torch.arange(shares.shape[-1], device=labels.device)
    counts = ((labels[:, None] == numbers) & valid[:, None]).sum(dim=0)  # [C]
    each = torch.where(common, shares.clamp(max=_GOOD_SHARE), 0.0) / counts.clamp(min=1).sqrt()  # sample of a label
    weight = torch.where(valid, each[:, labels], 0.0)
    guess = 1 / among.sum(dim=-1)
    return Comparison(own, theirs, weight, guess, torch.ones_like(guess))


def compare_scores(scores: Tensor, guess: Tensor, valid: Tensor) -> Comparison:  # [D, Q], [Q], [Q]
    """Compare the first model with each by the scores of a task without classes; `guess` are those of a guess."""
    theirs = torch.nan_to_num(scores.float())
    weight = valid.to(theirs.dtype).expand_as(theirs)
    chance = (guess * valid).sum() / valid.sum().clamp(min=1)
    guesses = chance.to(theirs.dtype).expand(len(theirs))
    return Comparison(theirs[:1].expand_as(theirs), theirs, weight, guesses, torch.ones_like(guesses))


def compare_sizes(own: Tensor, theirs: Tensor) -> Tensor:  # norms: [...], [...] -> [...]
    """The norms of models, times that of the own one; 1 where the own one is 0, which is no measure."""
    return torch.where(own > 0, theirs / own, 1.0)


def _find_probability(logits: Tensor, labels: Tensor, among: Tensor) -> Tensor:  # [D, Q, C], [Q], [D, C] -> [D, Q]
    """The probability of each sample's label among some labels; 0 where it is none of them, or no number."""
    chosen = torch.where(among[:, None], logits, -torch.inf).softmax(dim=-1)
    return torch.nan_to_num(chosen.gather(2, labels[None, :, None].expand(len(logits), -1, 1)).squeeze(2))


def share_labels(label_counts: Tensor) -> Tensor:  # [..., C] -> [..., C] uint8
    """Label shares as they travel with a model, in steps of 1/255; a label that is there has at least one step."""
    shares = label_counts.double() / label_counts.sum(dim=-1, keepdim=True).clamp(min=1)
    steps = (shares * SHARE_STEPS).round().clamp(min=0)
    return torch.where(label_counts > 0, steps.clamp(min=1), 0.0).to(torch.uint8)
