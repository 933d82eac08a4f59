"""States as values that survive JSON, bit for bit.

A state is a NamedTuple of arrays, numbers, strings, None, tuples and further such NamedTuples. It is written without
type names and read back in the shape of a template, so a file can never make us build an object we did not expect.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hatdfed.errors import RunFolderError

T = TypeVar("T")
Fit = Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]


def to_jsonable(value: Any) -> Any:
    """`value` in terms that `json.dumps` writes exactly."""
    if isinstance(value, np.ndarray):
        data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return {"dtype": value.dtype.str, "shape": list(value.shape), "base64": data}
    if isinstance(value, np.generic):
        return value.item()
    if hasattr(value, "_fields"):
        return {name: to_jsonable(getattr(value, name)) for name in value._fields}
    if isinstance(value, tuple):
        return [to_jsonable(part) for part in value]
    return value


def from_jsonable(data: Any, like: T, *, fit: Fit = lambda array, like: array) -> T:
    """The value behind `data`, in the shape of `like`; `fit` is shown every array with what it should be like."""
    try:
        value: T = _read(data, like, fit)
    except (KeyError, TypeError, ValueError) as error:
        raise RunFolderError(
            f"A saved state does not fit this version of hatdfed ({error}). Start a new run."
        ) from None
    return value


def _read(data: Any, like: Any, fit: Fit) -> Any:
    if isinstance(like, np.ndarray):
        flat = np.frombuffer(base64.b64decode(data["base64"]), dtype=_plain_dtype(data["dtype"]))
        return fit(flat.reshape(data["shape"]).copy(), like)
    if hasattr(like, "_fields"):
        # A field that came later has a default, which is what a state from before meant.
        known = [name for name in like._fields if name in data or name not in like._field_defaults]
        return type(like)(**{name: _read(data[name], getattr(like, name), fit) for name in known})
    if isinstance(like, tuple):
        return tuple(_read(part, pattern, fit) for part, pattern in zip(data, like, strict=True))
    return data


def _plain_dtype(name: str) -> np.dtype[Any]:
    dtype = np.dtype(name)
    if dtype.kind not in "biuf":
        raise ValueError(f"array of {name}")
    return dtype
