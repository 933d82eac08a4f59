"""Data in the forms that users have them, as arrays: files, folders, tensors, data sets and frames of other libraries.

Other libraries are recognised by what their objects can do, and none is imported.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hatdfed.data.own.image_folder import read_image_folder
from hatdfed.data.own.images import read_npz
from hatdfed.errors import DataError, naming_failures

Array = NDArray[Any]
_NAMES = ("x", "y", "groups", "x_test", "y_test")
_TARGETS = ("label", "labels", "target", "y")  # usual names of the column that is to be learned
_TOKENS = "input_ids"  # what tokenizers call their column
_MOST_CATEGORIES = 100  # of a column of text: more is no category, but a name or a sentence


class OwnArrays(NamedTuple):
    """A user's data as arrays, not yet checked."""

    x: Array
    y: Array | None = None  # None: the next token of each one in x
    groups: Array | None = None  # [n] the person or place that each sample comes from
    x_test: Array | None = None
    y_test: Array | None = None
    name: str = "arrays"

    def digest(self, *said: str) -> str:
        """Stands for the contents, and for what is `said` about them."""
        found = hashlib.sha256("\0".join(said).encode())
        for name, array in zip(_NAMES, self[:-1], strict=True):
            if array is not None:
                found.update(f"{name} {array.dtype.str} {array.shape}".encode())
                found.update(np.ascontiguousarray(array).tobytes())
        return found.hexdigest()[:12]


def gather_arrays(given: Any, *, target: str | None = None, groups: str | None = None) -> OwnArrays:
    """Arrays from an .npz file, a folder of images, arrays or tensors, or a data set or frame of another library.

    `target` names the column of a frame that is to be learned, `groups` the one that says where a sample comes from.
    """
    for fits, gather in _FORMS:
        if fits(given):
            return gather(given, target, groups)
    raise DataError(
        f"Data of type {type(given).__name__} cannot be used. Give arrays (x, y), an .npz file, a folder of images, a "
        "torch or Hugging Face data set, or a pandas frame."
    )


def as_array(value: Any, what: str) -> Array:
    """A numpy array from an array, a tensor or nested lists of numbers."""
    if getattr(value, "requires_grad", False):
        raise DataError(f"{what} is a tensor that requires grad, but data are no parameters. Give {what}.detach().")
    if np.ma.is_masked(value):
        raise DataError(f"{what} is a masked array with masked values. Give {what}.filled(…), or leave them out.")
    try:
        if hasattr(value, "detach") and hasattr(value, "cpu"):
            value = value.cpu()
            value = (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()
        return np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{what} cannot be made an array ({reason:.200}). Give arrays of one shape.") from None


def _gather_path(given: Any, target: str | None, groups: str | None) -> OwnArrays:
    path = Path(given)
    if path.is_dir():
        return OwnArrays(*read_image_folder(path), name=path.resolve().name)
    if path.suffix != ".npz":
        raise DataError(f"{path} is neither an .npz file nor a folder of images. Save arrays with numpy.savez.")
    if path.exists() and not path.is_file():
        raise DataError(f"{path} is not a plain file. Save arrays with numpy.savez.")
    return _from_named(read_npz(path, _NAMES[:1], _NAMES[1:]), path.stem)


def _gather_mapping(given: Any, target: str | None, groups: str | None) -> OwnArrays:
    if unknown := [name for name in given if name not in _NAMES]:
        raise DataError(f"There is no use for the array {unknown[0]!r}. Name arrays {', '.join(_NAMES)}.")
    if given.get("x") is None:
        raise DataError("There is no array 'x'. Give {'x': samples, 'y': targets}.")
    arrays = {name: as_array(value, name) for name, value in given.items() if value is not None}
    return _from_named(arrays, "arrays")


def _from_named(arrays: Mapping[str, Array], name: str) -> OwnArrays:
    y, groups, x_test, y_test = (arrays.get(each) for each in _NAMES[1:])
    return OwnArrays(arrays["x"], y, groups, x_test, y_test, name)


def _gather_pair(given: Any, target: str | None, groups: str | None) -> OwnArrays:
    if len(given) not in (2, 3):
        raise DataError(f"{len(given)} arrays were given, but (x, y) or (x, y, groups) were wanted.")
    return _gather_mapping(dict(zip(_NAMES, given, strict=False)), target, groups)


def _gather_samples(given: Any, target: str | None, groups: str | None) -> OwnArrays:
    return OwnArrays(as_array(given, "x"))


def _gather_items(given: Any, target: str | None, groups: str | None) -> OwnArrays:
    """The items of a `torch.utils.data.Dataset`: pairs of a sample and its target, or samples alone."""
    items = [_get_item(given, place) for place in range(len(given))]
    if not items:
        raise DataError(f"The data set {type(given).__name__} is empty. Give at least one sample.")
    if not all(isinstance(item, tuple | list) for item in items):
        return OwnArrays(_stack(items, "x"), name=type(given).__name__)
    if {len(item) for item in items} != {2}:
        raise DataError(
            f"Items of {type(given).__name__} have {len(items[0])} parts, but must be pairs of a sample and its target."
        )
    samples, targets = zip(*items, strict=True)
    return OwnArrays(_stack(samples, "x"), _stack(targets, "y"), name=type(given).__name__)


def _get_item(given: Any, place: int) -> Any:
    with naming_failures(f"Item {place} of the data set {type(given).__name__}"):
        return given[place]


def _stack(values: Any, what: str) -> Array:
    arrays = [as_array(value, what) for value in values]
    if len({array.shape for array in arrays}) > 1:
        shapes = sorted({array.shape for array in arrays})
        raise DataError(f"{what} has samples of shapes {list(shapes[0])} and {list(shapes[-1])}. Make all alike.")
    return np.stack(arrays)


def _gather_frame(given: Any, target: str | None, groups: str | None) -> OwnArrays:
    """A pandas frame: numbers are features, other columns are one-hot coded."""
    for name in given.columns:
        if missing := int(given[name].isna().sum()):
            raise DataError(f"Column {str(name)!r} has {missing} cells without a value. Fill or drop these rows.")
    columns = {str(name): np.asarray(given[name]) for name in given.columns}
    return _gather_columns(columns, target, groups, "frame")


def _gather_hugging_face(given: Any, target: str | None, groups: str | None) -> OwnArrays:
    """A Hugging Face data set: token ids, one column of samples, or a table of numbers and categories."""
    columns = {name: _column(given[name], name) for name in given.column_names}
    target = target or next((name for name in _TARGETS if name in columns), None)
    wide = [name for name, column in columns.items() if column.ndim > 1 and name != target]
    samples = _TOKENS if _TOKENS in columns else wide[0] if len(wide) == 1 else None
    if samples is None:
        return _gather_columns(columns, target, groups, "dataset")
    y = None if target is None else _find(columns, target)
    origin = None if groups is None else _find(columns, groups)
    return OwnArrays(columns[samples], None if y is None else _code_target(y), origin, name="dataset")


def _column(values: Any, name: str) -> Array:
    values = list(values)
    return np.asarray(values) if values and isinstance(values[0], str) else _stack(values, name)


def _gather_columns(columns: dict[str, Array], target: str | None, groups: str | None, name: str) -> OwnArrays:
    if target is None:
        raise DataError(
            f"The columns are {', '.join(columns)}. Say which one is to be learned, by dataset_options.target."
        )
    y = _code_target(_find(columns, target))
    origin = None if groups is None else _find(columns, groups).astype(str)
    features = [_code_feature(key, column) for key, column in columns.items() if key not in (target, groups)]
    if not features:
        raise DataError(f"There is no column besides the target {target!r}. Give at least one feature.")
    return OwnArrays(np.concatenate(features, axis=1), y, origin, name=name)


def _find(columns: dict[str, Array], name: str) -> Array:
    if name not in columns:
        raise DataError(f"There is no column {name!r}, but {', '.join(columns)}.")
    return columns[name]


def _code_target(column: Array) -> Array:
    """Numbers as they are; categories by their place in alphabetical order."""
    if column.dtype.kind in "biuf":
        return column
    return np.unique(column.astype(str), return_inverse=True)[1]


def _code_feature(name: str, column: Array) -> NDArray[np.float32]:  # [n] -> [n, values]
    if column.ndim != 1:
        raise DataError(f"Column {name!r} holds arrays, but a table has one value in each cell.")
    if column.dtype.kind in "biuf":
        return column.astype(np.float32)[:, None]
    if column.dtype.kind == "M":
        raise DataError(f"Column {name!r} holds times. Make numbers of them, such as hours, or leave it out.")
    categories, place = np.unique(column.astype(str), return_inverse=True)
    if len(categories) > _MOST_CATEGORIES:
        raise DataError(
            f"Column {name!r} has {len(categories)} different texts, more than the {_MOST_CATEGORIES} that are coded "
            "as categories. Leave it out, or make numbers of it."
        )
    return np.eye(len(categories), dtype=np.float32)[place]


def _is_path(given: Any) -> bool:
    return isinstance(given, str | Path)


def _is_frame(given: Any) -> bool:
    return hasattr(given, "columns") and hasattr(given, "iloc")


def _is_hugging_face(given: Any) -> bool:
    return all(hasattr(given, name) for name in ("features", "with_format", "column_names"))


def _is_one_array(given: Any) -> bool:
    return hasattr(given, "dtype") and hasattr(given, "shape")


def _is_pair(given: Any) -> bool:
    return isinstance(given, tuple | list)


def _has_items(given: Any) -> bool:
    return hasattr(given, "__getitem__") and hasattr(given, "__len__") and not isinstance(given, bytes)


_FORMS: tuple[tuple[Callable[[Any], bool], Callable[[Any, str | None, str | None], OwnArrays]], ...] = (
    (_is_path, _gather_path),
    (_is_frame, _gather_frame),
    (_is_hugging_face, _gather_hugging_face),
    (lambda given: isinstance(given, Mapping), _gather_mapping),
    (_is_pair, _gather_pair),
    (_is_one_array, _gather_samples),
    (_has_items, _gather_items),
)
