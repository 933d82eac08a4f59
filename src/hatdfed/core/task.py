"""What is learned from a data set, as a plain value: the losses and scores are in `hatdfed.server.tasks`."""

from __future__ import annotations

from dataclasses import dataclass

CLASSIFICATION, NEXT_TOKEN, REGRESSION, MULTI_LABEL = "classification", "next-token", "regression", "multi-label"
IGNORED = -100  # a target of next-token prediction that counts nowhere, such as padding; the number that torch uses


@dataclass(frozen=True)
class TaskKind:
    """The task of a data set: its name and what networks must give out for it."""

    name: str
    num_outputs: int
    """Classes, tokens of the vocabulary, target values or labels."""
    target_mean: tuple[float, ...] = ()
    """Of each value that a regression predicts, over the training data; `make_dataset` computes both."""
    target_std: tuple[float, ...] = ()

    @property
    def has_classes(self) -> bool:
        """Whether every sample has one class label: what label skew by class, label prior and label shares need."""
        return self.name == CLASSIFICATION

    @property
    def num_classes(self) -> int:
        """Number of class labels; 0 where samples have none."""
        return self.num_outputs if self.has_classes else 0
