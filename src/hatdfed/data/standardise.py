"""Samples as tensors, the same on all servers: standardised images and features, token ids as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hatdfed.core.task import MULTI_LABEL, REGRESSION, TaskKind
from hatdfed.data.datasets.base import Examples, SampleFormat, find_feature_axis
from hatdfed.server.work import Batch


def make_tensors(examples: Examples, form: SampleFormat) -> Batch:
    """Convert samples and targets to what networks and tasks take."""
    return Batch(standardise_inputs(examples.x, form), _standardise_targets(examples, form.task))


def standardise_inputs(samples: NDArray[Any], form: SampleFormat) -> Tensor:  # [n, …]
    """Convert raw samples to what networks take."""
    x = torch.tensor(np.ascontiguousarray(samples))
    if not form.mean:
        return x.long()
    values = x.float() / 255 if form.has_images else x.float()
    shape = [1] * x.ndim
    shape[find_feature_axis(x.ndim)] = -1
    mean, std = (torch.tensor(each).view(shape) for each in (form.mean, form.std))
    return (values - mean) / std


def _standardise_targets(examples: Examples, task: TaskKind) -> Tensor:
    y = torch.tensor(np.ascontiguousarray(examples.y))
    if task.name == REGRESSION:
        values = y.double().view(len(y), task.num_outputs)
        return ((values - torch.tensor(task.target_mean)) / torch.tensor(task.target_std)).float()
    return y.float() if task.name == MULTI_LABEL else y.long()
