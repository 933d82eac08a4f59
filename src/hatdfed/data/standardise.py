"""Samples as tensors, the same on all servers: standardised images and features, token ids as they are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hatdfed.core.task import MULTI_LABEL, REGRESSION, TaskKind
from hatdfed.data.datasets.base import Examples, find_feature_axis, is_image
from hatdfed.server.work import Batch


def make_tensors(examples: Examples, task: TaskKind, mean: Sequence[float], std: Sequence[float]) -> Batch:
    """Convert samples and targets to what networks and tasks take; `mean` and `std` are those of the data set."""
    return Batch(_standardise_inputs(examples, mean, std), _standardise_targets(examples, task))


def _standardise_inputs(examples: Examples, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    x = torch.tensor(np.ascontiguousarray(examples.x))
    if not x.is_floating_point() and not is_image(examples.x):
        return x.long()
    values = x.float() / 255 if is_image(examples.x) else x.float()
    shape = [1] * x.ndim
    shape[find_feature_axis(x.ndim)] = -1
    centre, spread = (torch.tensor(each).view(shape) for each in (mean, std))
    return (values - centre) / spread


def _standardise_targets(examples: Examples, task: TaskKind) -> Tensor:
    y = torch.tensor(np.ascontiguousarray(examples.y))
    if task.name == REGRESSION:
        values = y.double().view(len(y), -1)
        return ((values - torch.tensor(task.target_mean)) / torch.tensor(task.target_std)).float()
    return y.float() if task.name == MULTI_LABEL else y.long()
