"""Whether arrays can be learned from, and which task they are for: the same for simulations and edges.

Every refusal is one sentence: what is wrong, what was found, what was wanted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.task import CLASSIFICATION, IGNORED, MULTI_LABEL, NEXT_TOKEN, REGRESSION, TaskKind
from hatdfed.data.datasets.base import Examples
from hatdfed.errors import DataError, require_one_of

Array = NDArray[Any]
BUILT_IN_TASKS = (CLASSIFICATION, NEXT_TOKEN, REGRESSION, MULTI_LABEL)
_MOST_TOKENS = 1 << 24  # a larger vocabulary is most likely something else than token ids
_MOST_CLASSES_SHARE = 0.5  # of the samples: more classes than that are most likely values
_MOST_DOUBTFUL = 20  # whole numbers among floating-point targets, up to which they may be class labels
_CURES = {
    "O": " If they are numbers, convert them, as with {what}.astype('float32').",
    "U": " Number categories from 0, as with numpy.unique({what}, return_inverse=True)[1].",
}
_CHANNELS = (1, 3, 4)  # of an image, by which its layout is recognised


def guess_task(x: Array, y: Array | None) -> str:
    """The task that these arrays look like; `x` and `y` are checked later."""
    if y is None or (x.dtype.kind in "iu" and x.ndim == 2 and y.shape == x.shape and x.shape[1] > 1):
        return NEXT_TOKEN
    if y.dtype.kind == "f":
        return REGRESSION
    return MULTI_LABEL if y.ndim == 2 and y.shape[1] > 1 else CLASSIFICATION


def make_examples(x: Array, y: Array | None, task: str | None = None) -> tuple[Examples, TaskKind]:
    """Check samples and targets, convert them to what data sets hold, and say which task they are for."""
    _check_numbers("x", x)
    if y is not None:
        _check_numbers("y", y)
    name = task or guess_task(x, y)
    require_one_of("task", name, BUILT_IN_TASKS)
    if task is None and y is not None:
        _refuse_doubtful_targets(y, name)
    inputs = _convert_inputs(x)
    if name == NEXT_TOKEN:
        return _make_sequences(inputs, y)
    if y is None:
        raise DataError(f"There is no y, but task {name} needs a target for every sample. Give x and y.")
    if len(x) != len(y):
        raise DataError(f"x has {len(x)} samples, but y has {len(y)}. Give one target for each sample.")
    targets, outputs = _CONVERT[name](y)
    return Examples(inputs, targets), TaskKind(name, outputs)


def check_inputs(x: Array) -> Array:
    """Check samples by themselves, and convert them to what data sets hold."""
    _check_numbers("x", x)
    return _convert_inputs(x)


def check_alike(
    examples: Examples, kind: TaskKind, shape: tuple[int, ...], task: TaskKind, dtype: np.dtype[Any]
) -> None:
    """Refuse samples that do not go with those of a data set of this shape, task and type."""
    if examples.x.shape[1:] != shape or examples.x.dtype.kind != dtype.kind:
        raise DataError(
            f"samples are {examples.x.dtype} of shape {list(examples.x.shape[1:])}, {dtype} of shape {list(shape)} "
            "were wanted"
        )
    if kind.name in (CLASSIFICATION, NEXT_TOKEN):
        if kind.has_classes and kind.num_outputs == task.num_outputs + 1 and examples.y.min() == 1:
            raise DataError(
                f"labels go from 1 to {task.num_outputs}, but must be numbered from 0. Subtract 1 from all of them"
            )
        if kind.num_outputs > task.num_outputs:
            raise DataError(
                f"{'labels' if kind.has_classes else 'tokens'} go up to {kind.num_outputs - 1}, up to "
                f"{task.num_outputs - 1} were wanted"
            )
    elif kind.num_outputs != task.num_outputs:
        raise DataError(f"y has {kind.num_outputs} values a sample, {task.num_outputs} were wanted")


def refuse_missing_classes(y: Array, kind: TaskKind) -> None:
    """Refuse labels that no sample has: of a whole data set they are a mistake, of one server's data they are not."""
    if not kind.has_classes:
        return
    there = np.unique(y)
    if there[0] == 1 and len(there) == kind.num_outputs - 1:
        raise DataError(
            f"Labels go from 1 to {kind.num_outputs - 1}, but must be numbered from 0. Subtract 1 from all of them."
        )
    if missing := kind.num_outputs - len(there):
        first = int(np.argmax(np.append(there, -1) != np.arange(len(there) + 1)))
        raise DataError(
            f"Labels go from {int(y.min())} to {int(y.max())}, but {missing} of these classes "
            f"{'has' if missing == 1 else 'have'} no sample, such as {first}. Number the classes that there are from 0 "
            "without gaps."
        )


def _refuse_doubtful_targets(y: Array, task: str) -> None:
    """Refuse class labels that look like targets of another task, where the user does not name the task."""
    if task == MULTI_LABEL and np.isin(y, (0, 1)).all() and (y.sum(axis=1) == 1).all():
        raise DataError(
            "y has exactly one 1 in every row, as one-hot class labels have. Give y.argmax(axis=1), or set task to "
            "multi-label."
        )
    if task != REGRESSION or y.ndim > 2 or (y != np.round(y)).any():
        return
    if 1 < len(np.unique(y)) <= min(_MOST_DOUBTFUL, len(y) // 4):
        raise DataError(
            f"y is {y.dtype} of shape {list(y.shape)}, but holds only a few different whole numbers, as class labels "
            "do. Convert labels to integers [n], or set task to regression."
        )


def _check_numbers(what: str, array: Array) -> None:
    if array.dtype.kind not in "biuf":
        found = {"O": "Python objects", "c": "complex numbers", "U": "text", "S": "text"}.get(array.dtype.kind)
        cure = _CURES.get(array.dtype.kind, "").format(what=what)
        raise DataError(f"{what} holds {found or array.dtype}, but must be an array of integers or real numbers.{cure}")
    if not array.size:
        raise DataError(f"{what} is empty: its shape is {list(array.shape)}. Give at least one sample.")
    if array.ndim == 0:
        raise DataError(f"{what} is a single number, but must have one entry for each sample.")
    if array.dtype.kind == "f" and not (is_finite := np.isfinite(array)).all():
        places = np.argwhere(~is_finite)
        first = places[0].tolist()
        if len(places) == 1:
            raise DataError(f"{what} has one value that is NaN or infinite, at {first}. Remove or replace it.")
        raise DataError(
            f"{what} has {len(places)} values that are NaN or infinite, the first at {first}. Remove or replace them."
        )


def _convert_inputs(x: Array) -> Array:
    if x.dtype.kind == "b":
        x = x.astype(np.float32)
    if x.dtype.kind == "f":
        return _as_floats("x", x if x.ndim > 1 else x[:, None])
    if x.ndim == 2:
        return _as_tokens("x", x)
    if x.dtype == np.uint8 and x.ndim in (3, 4):
        return _as_images(x)
    raise DataError(
        f"x is {x.dtype} of shape {list(x.shape)}, which is neither token ids [n, L] nor 8-bit images [n, C, H, W]. "
        "Convert features to float32, images to uint8."
    )


def _as_floats(what: str, array: Array) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        small = array.astype(np.float32)
    if not np.isfinite(small).all():
        raise DataError(f"{what} has values up to {np.abs(array).max():.3g}, too large for float32. Scale them.")
    return small


def _as_tokens(what: str, array: Array, least: int = 0) -> Array:
    low, high = int(array.min()), int(array.max())
    if low < least or high >= _MOST_TOKENS:
        raise DataError(
            f"{what} has integers from {low} to {high}, which are no token ids: those go from 0 to at most "
            f"{_MOST_TOKENS - 1}. Convert features to float32."
        )
    return np.ascontiguousarray(array)


def _as_images(x: Array) -> Array:  # -> [n, C, H, W]
    if x.ndim == 3:
        x = x[:, None]
    elif x.shape[3] in _CHANNELS and x.shape[1] not in _CHANNELS:
        x = x.transpose(0, 3, 1, 2)
    return np.ascontiguousarray(x)


def _make_sequences(x: Array, y: Array | None) -> tuple[Examples, TaskKind]:
    if y is None and (x.dtype.kind not in "iu" or x.ndim != 2):
        raise DataError(
            f"There is no y, and x is {x.dtype} of shape {list(x.shape)}, but next-token prediction needs token ids, "
            "integers [n, L]. Give x and y, or token ids."
        )
    if x.dtype.kind not in "iu" or x.ndim != 2:
        raise DataError(
            f"x is {x.dtype} of shape {list(x.shape)}, but next-token prediction needs token ids, integers [n, L]."
        )
    if y is None:
        if x.shape[1] < 2:
            raise DataError("x has sequences of one token, but the next one is to be learned. Give at least two.")
        x, y = np.ascontiguousarray(x[:, :-1]), x[:, 1:]
    if y.shape != x.shape or y.dtype.kind not in "iu":
        raise DataError(
            f"y is {y.dtype} of shape {list(y.shape)}, but must hold the next token of each one in x, integers "
            f"{list(x.shape)}."
        )
    targets = _as_tokens("y", y.astype(np.int64), least=IGNORED)
    if ((targets < 0) & (targets != IGNORED)).any() or not (targets >= 0).any():
        raise DataError(f"y has negative tokens, but only {IGNORED} may be negative: a position that does not count.")
    return Examples(x, targets), TaskKind(NEXT_TOKEN, int(max(x.max(), targets.max())) + 1)


def _convert_classes(y: Array) -> tuple[Array, int]:
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.dtype.kind == "f" or y.ndim != 1:
        raise DataError(
            f"y is {y.dtype} of shape {list(y.shape)}, but class labels are integers of shape [{len(y)}], from 0. "
            "Convert them, or choose another task."
        )
    if int(y.min()) < 0:
        raise DataError(f"Labels go from {y.min()} to {y.max()}, but must be numbered from 0.")
    if int(y.max()) >= _MOST_TOKENS:
        raise DataError(f"Labels go up to {y.max()}, but are the numbers of classes, from 0. Number the classes.")
    return y.astype(np.int64), int(y.max()) + 1


def refuse_odd_classes(y: Array, kind: TaskKind) -> None:
    """Refuse what is hardly a classification: one class only, or almost as many as there are samples."""
    if not kind.has_classes:
        return
    if kind.num_outputs < 2:
        raise DataError("All labels are 0, but a classification needs at least 2 classes.")
    if kind.num_outputs > max(2, _MOST_CLASSES_SHARE * len(y)):
        raise DataError(
            f"Labels go up to {kind.num_outputs - 1} for {len(y)} samples, which look like values, not like classes. "
            "Set task to regression, or number the classes from 0."
        )


def _convert_values(y: Array) -> tuple[Array, int]:
    if y.ndim > 2:
        raise DataError(f"y has the shape {list(y.shape)}, but a regression needs values [n] or [n, K].")
    values = _as_floats("y", y)
    return values, 1 if values.ndim == 1 else values.shape[1]


def _convert_labels(y: Array) -> tuple[Array, int]:
    if y.ndim != 2 or not np.isin(y, (0, 1)).all():
        raise DataError(
            f"y is {y.dtype} of shape {list(y.shape)} with values from {y.min()} to {y.max()}, but several labels at "
            "once are 0 or 1, [n, K]."
        )
    return y.astype(np.uint8), y.shape[1]


_CONVERT = {CLASSIFICATION: _convert_classes, REGRESSION: _convert_values, MULTI_LABEL: _convert_labels}
