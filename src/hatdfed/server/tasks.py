"""Tasks: what a network's outputs are compared with, how it is trained and how it is scored.

A task has a loss of each sample, which training minimises and by which received models are judged; a score of each
sample in [0, 1], whose mean is what records call accuracy and what the bandit learns from; and measures of each sample,
whose means become the task's own metrics. All functions take a batch of samples first, are differentiable or at least
free of branches on values, and so can be lifted over servers by `torch.vmap`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
import torch.nn.functional as F  # noqa: N812 (the usual name)
from torch import Tensor

from hatdfed.core.task import CLASSIFICATION, IGNORED, MULTI_LABEL, NEXT_TOKEN, REGRESSION, TaskKind
from hatdfed.errors import OWN_THING, require_one_of
from hatdfed.registry import Registry

_TEN_CLASSES = TaskKind(CLASSIFICATION, 10)
_WORST_ERROR = 4.0  # squared error of a standardised target from which on the score is 0
_MOST_LOSS = 700.0  # e to the power of more is no number


class Task(Protocol):
    """A task; made from a `TaskKind`, whose class labels decide what applies to it besides."""

    measures: ClassVar[tuple[str, ...]]  # columns of what `measure` returns
    metrics: ClassVar[tuple[str, ...]]  # what `summarise` returns

    @property
    def kind(self) -> TaskKind:
        """Its name and number of outputs."""

    @property
    def guess_loss(self) -> float:
        """Loss of a guess that knows nothing about the inputs."""

    def losses(self, outputs: Tensor, targets: Tensor, offset: Tensor | None = None) -> Tensor:  # [n, …] -> [n]
        """Loss of each sample; `offset` is added to the logits of classes, and means nothing without classes."""

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:  # [n, …] -> [n]
        """Score of each sample, from 0 (as bad as can be) to 1; boolean where it is all or nothing."""

    def measure(self, outputs: Tensor, targets: Tensor) -> Tensor:  # [n, …] -> [n, measures]
        """Measures of each sample, of which `summarise` takes the means."""

    def summarise(self, means: Sequence[float]) -> dict[str, float]:  # [measures]
        """The task's metrics, from the means of its measures over samples."""


@dataclass(frozen=True)
class Classification:
    """One of C classes: cross-entropy, and whether the most likely class is the right one."""

    kind: TaskKind = _TEN_CLASSES
    measures: ClassVar[tuple[str, ...]] = ()
    metrics: ClassVar[tuple[str, ...]] = ()

    @property
    def guess_loss(self) -> float:
        """Of equal probabilities."""
        return math.log(self.kind.num_outputs)

    def losses(self, outputs: Tensor, targets: Tensor, offset: Tensor | None = None) -> Tensor:
        """Cross-entropy of the logits [n, C] plus `offset` [C] with labels [n]."""
        return F.cross_entropy(outputs if offset is None else outputs + offset, targets, reduction="none")

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Which samples are classified correctly."""
        return outputs.argmax(dim=1) == targets

    def measure(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Nothing besides the score."""
        return outputs.new_zeros(len(outputs), 0)

    def summarise(self, means: Sequence[float]) -> dict[str, float]:
        """Nothing besides the score."""
        return {}


@dataclass(frozen=True)
class NextToken:
    """The token at each position of a sequence: mean cross-entropy, and the share of tokens that are right.

    Positions whose target is `IGNORED` do not count.
    """

    kind: TaskKind
    measures: ClassVar[tuple[str, ...]] = ("loss",)
    metrics: ClassVar[tuple[str, ...]] = ("perplexity",)

    @property
    def guess_loss(self) -> float:
        """Of equal probabilities for all tokens of the vocabulary."""
        return math.log(self.kind.num_outputs)

    def losses(self, outputs: Tensor, targets: Tensor, offset: Tensor | None = None) -> Tensor:
        """Cross-entropy of logits [n, L, V] with tokens [n, L], averaged over positions."""
        by_position = F.cross_entropy(outputs.transpose(1, 2), targets, reduction="none", ignore_index=IGNORED)
        return by_position.sum(dim=1) / _count_tokens(targets)

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Share of the sequence's tokens of which the most likely one is right."""
        return (outputs.argmax(dim=2) == targets).sum(dim=1) / _count_tokens(targets)

    def measure(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss."""
        return self.losses(outputs, targets)[:, None]

    def summarise(self, means: Sequence[float]) -> dict[str, float]:
        """Perplexity: e to the mean loss of a token, sequences weighing alike."""
        return {"perplexity": math.exp(min(_MOST_LOSS, means[0]))}


@dataclass(frozen=True)
class Regression:
    """K values: squared error of standardised targets, and how far within two standard deviations they are right.

    The score of a sample is 1 − squared error / 4, at least 0: 0 for a value that is two standard deviations of the
    training targets off, or more. Where none is further off, the mean score is 1 − (1 − R²) / 4, so that it orders
    models as R² does; a sample that is predicted badly costs no more than its own share, as in classification. With a
    bound at one standard deviation the order would be another one: many large errors would be forgiven.
    """

    kind: TaskKind
    measures: ClassVar[tuple[str, ...]] = ("squared_error", "absolute_error", "scaled_error")
    metrics: ClassVar[tuple[str, ...]] = ("rmse", "mae", "r2")

    @property
    def guess_loss(self) -> float:
        """Of the mean of the training targets: their variance."""
        return 1.0

    def losses(self, outputs: Tensor, targets: Tensor, offset: Tensor | None = None) -> Tensor:
        """Squared error of the outputs [n, K], averaged over the K values."""
        return (outputs - targets.view_as(outputs)).square().mean(dim=1)

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """1 − squared error / 4, averaged over the K values; 0 for each that is two standard deviations off."""
        error = (outputs - targets.view_as(outputs)).square()
        return torch.nan_to_num(1 - error / _WORST_ERROR, nan=0.0).clamp(min=0).mean(dim=1)

    def measure(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Errors in the units of the data, averaged over the K values, and the loss."""
        unit = outputs.new_tensor(self.kind.target_std or (1.0,))
        error = (outputs - targets.view_as(outputs)) * unit
        return torch.stack([error.square().mean(dim=1), error.abs().mean(dim=1), self.losses(outputs, targets)], dim=1)

    def summarise(self, means: Sequence[float]) -> dict[str, float]:
        """Root mean square error and mean absolute error in the units of the data, and R² by the training variance."""
        squared, absolute, scaled = means
        return {"rmse": math.sqrt(squared), "mae": absolute, "r2": 1 - scaled}


@dataclass(frozen=True)
class MultiLabel:
    """Any of K labels at once: binary cross-entropy, and how far the set of labels is right.

    The score is the Jaccard index: labels that are both predicted and true, as a share of those that are either. The
    share of right yes-or-no answers would be almost 1 for a model that never says yes where labels are rare.
    """

    kind: TaskKind
    measures: ClassVar[tuple[str, ...]] = ("true_positives", "wrong")
    metrics: ClassVar[tuple[str, ...]] = ("micro_f1",)

    @property
    def guess_loss(self) -> float:
        """Of the probability 1/2 for every label."""
        return math.log(2)

    def losses(self, outputs: Tensor, targets: Tensor, offset: Tensor | None = None) -> Tensor:
        """Binary cross-entropy of logits [n, K] with labels [n, K] of 0 and 1, averaged over labels."""
        return F.binary_cross_entropy_with_logits(outputs, targets, reduction="none").mean(dim=1)

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Jaccard index of the labels with probability above 1/2 and the true ones; 1 where there are neither."""
        said, true = outputs > 0, targets > 0.5
        either = (said | true).sum(dim=1)
        return torch.where(either > 0, (said & true).sum(dim=1) / either.clamp(min=1), 1.0)

    def measure(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Labels that are rightly said, and those that are wrongly said or left out."""
        said, true = outputs > 0, targets > 0.5
        return torch.stack([(said & true).sum(dim=1), (said ^ true).sum(dim=1)], dim=1).to(outputs.dtype)

    def summarise(self, means: Sequence[float]) -> dict[str, float]:
        """F1 over all labels of all samples; 1 where there are none and none are said."""
        right, wrong = means
        return {"micro_f1": 2 * right / (2 * right + wrong) if right + wrong else 1.0}


TASKS: Registry[type[Task]] = Registry(
    "hatdfed.tasks",
    {CLASSIFICATION: Classification, NEXT_TOKEN: NextToken, REGRESSION: Regression, MULTI_LABEL: MultiLabel},
    wanted="a class with the methods of Task",
    fits=lambda thing: isinstance(thing, type),
    methods=("losses", "scores", "measure", "summarise"),
)


def make_task(kind: TaskKind) -> Task:
    """The task of this kind."""
    require_one_of("task", kind.name, TASKS, OWN_THING)
    make: type = TASKS[kind.name]
    task: Task = make(kind)
    return task


def count_confusion(kind: TaskKind, outputs: Tensor, targets: Tensor) -> Tensor | None:  # [n, C], [n] -> [C, C]
    """Count the samples of each class (row) that are taken for each class (column); None where there are no classes."""
    if not kind.has_classes:
        return None
    pairs = targets * kind.num_classes + outputs.argmax(dim=1)
    return torch.bincount(pairs, minlength=kind.num_classes**2).view(kind.num_classes, kind.num_classes)


def _count_tokens(targets: Tensor) -> Tensor:  # [n, L] -> [n]
    return (targets != IGNORED).sum(dim=1).clamp(min=1)
