"""Samples from a user's own Python function, named as `package.module:function`.

The module is imported only when it is named. The function has one of two signatures.

With one argument, the round: `function(t)` returns `(x, y)` or None. x and y are arrays as in an .npz file: the samples
that have arrived since the last call, the oldest first; None means that there are no new ones. The function is first
called with t = -1 for the images available at the start, of which there must be at least ten, then once in each round.
An exception in a round is reported by one warning and counts as no new images; an exception at the start ends the
server.

Without arguments: `function()` returns an object like `hatdfed.server.work.DataSource`, with `validation`, a Batch, and
`work(t)`, which returns a Work. Samples are tensors, standardised as on all other servers. Called
again with the same t, `work` must return the same work. Holding out, counting and sampling images is up to that object;
of its `num_samples` and `devices_online` no more count than `samples_per_round` and `devices` in the run's settings,
since others refuse larger claims.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hatdfed.core.effort import ServerEffort
from hatdfed.data.datasets.base import SampleFormat
from hatdfed.data.own.arrays import as_array
from hatdfed.data.own.images import AT_START, OnceWarner, OwnSample, format_shape, make_own_samples
from hatdfed.errors import ConfigError, DataError
from hatdfed.server.work import Batch, DataSource, Work

_FUNCTION_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def is_function_path(where: str) -> bool:
    """Whether `where` has the form `package.module:function`.

    >>> is_function_path("my.camera:images"), is_function_path("/data/images"), is_function_path("my.camera")
    (True, False, False)
    """
    return _FUNCTION_PATH.fullmatch(where) is not None


def import_function(where: str) -> Callable[..., Any]:
    """Import the function that `where` names."""
    module, _, name = where.partition(":")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except Exception as error:
        raise ConfigError(
            f"{where} cannot be imported ({type(error).__name__}: {error}). "
            "Install its package in this environment or put its folder on PYTHONPATH."
        ) from error
    if not callable(found):
        raise ConfigError(f"{where} is {found!r}, but must be a function: function(t) or function().")
    return found  # type: ignore[no-any-return]


def is_called_each_round(where: str, function: Callable[..., Any]) -> bool:
    """Whether the function takes the round as its argument; otherwise it is called once and returns a source."""
    signature = inspect.signature(function)
    for arguments in ((), (0,)):
        try:
            signature.bind(*arguments)
        except TypeError:
            continue
        return bool(arguments)
    raise ConfigError(f"{where} takes {signature}, but must be function(t) or function().")


@dataclass(frozen=True, eq=False)
class RoundFunction:
    """New images returned by `function(t)`."""

    where: str
    function: Callable[[int], Any]
    form: SampleFormat
    most: int
    warner: OnceWarner

    def new(self, t: int) -> list[OwnSample]:
        """Call the function for round t; a failure after the start is a warning and gives no images."""
        try:
            return self._images(t)
        except DataError as error:
            if t == AT_START:
                raise
            self.warner.warn_once(
                "function", f"{error} The round goes on without new images; further failures are not reported."
            )
            return []

    def _images(self, t: int) -> list[OwnSample]:
        try:
            given = self.function(t)
            if given is None:
                return []
            samples, targets = given
            x, y = as_array(samples, "x"), None if targets is None else as_array(targets, "y")
        except Exception as error:
            raise DataError(f"{self.where} failed for round {t} ({type(error).__name__}: {error}). Fix it.") from error
        try:
            return make_own_samples(x, y, self.form, prefix=f"{t}/", most=self.most, warner=self.warner)
        except DataError as error:
            raise DataError(
                f"{self.where} returned wrong data for round {t}: {str(error).rstrip('.')}. Fix it."
            ) from error


@dataclass(frozen=True, eq=False)
class UserSource:
    """A user's own source of work; the shape of its samples is checked."""

    where: str
    source: DataSource
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if not (hasattr(self.source, "validation") and callable(getattr(self.source, "work", None))):
            raise ConfigError(
                f"{self.where} returned {self.source!r}, but must return an object with validation and work(t)."
            )
        self._check("validation", self.source.validation)
        if not len(self.source.validation.y):
            raise DataError(f"{self.where} has no image in its validation. At least one is needed to measure with.")

    @property
    def validation(self) -> Batch:
        """The validation images of the user's source."""
        return self.source.validation

    def work(self, t: int, effort: ServerEffort | None = None) -> Work:
        """Return the work of the user's source for round t; a server that rests trains on none of it.

        How many passes its batches make is up to the source.
        """
        work = self.source.work(t)
        if not isinstance(work, Work):
            raise DataError(
                f"{self.where} returned {type(work).__name__} for round {t}, but must return a hatdfed Work."
            )
        for batch in (*work.batches, work.probe):
            self._check(f"round {t}", batch)
        if effort is not None and not effort.passes:
            work = work._replace(batches=(), num_samples=0, spared=work.volume)
        return work if effort is None or effort.asks else work._replace(devices_online=0)

    def _check(self, what: str, batch: Any) -> None:
        if not isinstance(batch, Batch) or tuple(batch.x.shape) != (len(batch.y), *self.shape):
            found = f"a Batch of shape {list(batch.x.shape)}" if isinstance(batch, Batch) else type(batch).__name__
            raise DataError(
                f"{self.where} returned {found} for {what}, but must return a Batch of "
                f"samples of {format_shape(self.shape)} with a target each."
            )
