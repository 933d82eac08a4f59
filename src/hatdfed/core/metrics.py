"""Metrics that a run measures besides accuracy and loss: functions of what a model gives out and what is true.

The setting `metrics` names them. They are measured for every server, on validation data after every round and on test
data after the last one. They are recorded; nothing is decided by them.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hatdfed.errors import HatdfedError
from hatdfed.registry import Registry

Outputs = NDArray[np.float64]
Metric = Callable[[Outputs, NDArray[Any]], float | None]

MOST_METRICS = 16  # of one run
LONGEST_NAME = 40  # letters
_BINS = 15  # of confidences


def macro_f1(outputs: Outputs, targets: NDArray[Any]) -> float:  # [n, C], [n]
    """F1 of each class, averaged over the classes that occur among targets or predictions.

    >>> macro_f1(np.eye(3)[[0, 0, 1, 1]], np.array([0, 1, 1, 1]))
    0.7333333333333334
    """
    confusion = _count_confusion(outputs, targets)
    either = confusion.sum(axis=0) + confusion.sum(axis=1)
    return float((2 * np.diag(confusion)[either > 0] / either[either > 0]).mean())


def balanced_accuracy(outputs: Outputs, targets: NDArray[Any]) -> float:  # [n, C], [n]
    """Share of each class that is classified correctly, averaged over the classes that occur among targets."""
    confusion = _count_confusion(outputs, targets)
    there = confusion.sum(axis=1)
    return float((np.diag(confusion)[there > 0] / there[there > 0]).mean())


def calibration_error(outputs: Outputs, targets: NDArray[Any]) -> float:  # [n, C], [n]
    """Expected calibration error: |accuracy − confidence| in 15 bins of equal width, weighted by their samples.

    C. Guo et al. On calibration of modern neural networks. ICML 2017.
    """
    shares = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    confidence = (shares / shares.sum(axis=1, keepdims=True)).max(axis=1)
    is_right = outputs.argmax(axis=1) == targets
    bins = np.minimum((confidence * _BINS).astype(np.int64), _BINS - 1)
    gaps = np.bincount(bins, weights=is_right - confidence, minlength=_BINS)
    return float(np.abs(gaps).sum() / len(targets))


def _count_confusion(outputs: Outputs, targets: NDArray[Any]) -> NDArray[np.int64]:  # -> [C, C], the row is true
    classes = outputs.shape[1]
    return np.bincount(targets * classes + outputs.argmax(axis=1), minlength=classes**2).reshape(classes, classes)


def _takes_outputs_and_targets(thing: Any) -> bool:
    if not callable(thing) or isinstance(thing, type):
        return False
    try:
        inspect.signature(thing).bind(None, None)
    except TypeError:
        return False
    except ValueError:  # a function of C without a signature
        return True
    return True


METRICS: Registry[Metric] = Registry(
    "hatdfed.metrics",
    {"macro_f1": macro_f1, "balanced_accuracy": balanced_accuracy, "calibration_error": calibration_error},
    wanted="a function of outputs and targets",
    fits=_takes_outputs_and_targets,
)


def compute_metric(name: str, outputs: Outputs, targets: NDArray[Any]) -> float | None:
    """One metric of one server's outputs; None where the function says that it is not defined.

    Raises a sentence that names the metric if the function fails, or returns anything but one finite number.
    """
    try:
        found: Any = METRICS[name](outputs, targets)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise HatdfedError(
            f"Metric {name!r} failed on outputs of shape {list(outputs.shape)} and targets of shape "
            f"{list(targets.shape)} ({reason:.300}). Correct the function, or take it off the setting `metrics`."
        ) from error
    if found is None:
        return None
    number = np.asarray(found)
    if number.ndim or number.dtype.kind not in "fiub":
        shown = f"an array of shape {list(number.shape)}" if number.ndim else repr(found)[:100]
        raise HatdfedError(f"Metric {name!r} returned {shown}, but must return one number, or None if it has none.")
    if not math.isfinite(number):
        raise HatdfedError(
            f"Metric {name!r} returned {float(number)}, which is not finite. Return None where it is not defined."
        )
    return float(number)
