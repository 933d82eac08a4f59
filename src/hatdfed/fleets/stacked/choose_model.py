"""Which stacked form a network gets."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hatdfed.fleets.kernels.blueprint import read_blueprint
from hatdfed.fleets.kernels.model import KernelModel
from hatdfed.fleets.stacked.model import NotStackableError, StackedModel
from hatdfed.server.learner import Learner


def choose_model(learner: Learner, sample: Sequence[int], device: torch.device) -> StackedModel:
    """The fastest stacked form of the learner's network for samples of this shape; may raise `NotStackableError`."""
    return KernelModel(learner, sample, device)


def require_stackable(learner: Learner, sample: Sequence[int]) -> None:
    """Raise `NotStackableError`, which says what stands against it, where there is no stacked form."""
    if learner.private is not None:
        raise NotStackableError("privacy.clip needs the gradient of every image, and servers are trained one by one")
    if not learner.task.kind.has_classes:
        raise NotStackableError(f"the kernels are for classification, not for {learner.task.kind.name}")
    read_blueprint(learner.module, sample)
