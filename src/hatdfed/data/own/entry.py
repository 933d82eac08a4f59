"""Images from a user's own Python function, named as `package.module:function`.

The module is imported when it is named, never before. The function is one of two kinds.

With one argument, the round: `function(t)` returns `(x, y)` or None. x and y are arrays as in an .npz file, the images
that came since the last call, the oldest first; None means that nothing came. It is first called with t = -1, for what
is there at the start, which must be ten images or more, then once for each round. What it raises in a round counts as
nothing came, with one warning; what it raises at the start ends the server.

Without an argument: `function()` returns an object like `hatdfed.server.work.DataSource`: `validation`, a Batch, and
`work(t)`, which gives a Work. Images are float tensors [n, C, H, W], standardised as on all other servers. Asked again
for the same t, it must give the same work. Nothing is held out, counted or sampled for it.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hatdfed.data.own.images import STOCK, ImageShape, Notices, OwnImage, in_words, labelled
from hatdfed.errors import ConfigError, DataError
from hatdfed.server.work import Batch, DataSource, Work

_ENTRY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def is_entry(where: str) -> bool:
    """Whether this could be `package.module:function`.

    >>> is_entry("my.camera:images"), is_entry("/data/images"), is_entry("my.camera")
    (True, False, False)
    """
    return _ENTRY.fullmatch(where) is not None


def load_entry(where: str) -> Callable[..., Any]:
    """Import the function that is named."""
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


def wants_rounds(where: str, function: Callable[..., Any]) -> bool:
    """Whether the function is called for each round, or once for a whole source."""
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
    """New images from `function(t)`."""

    where: str
    function: Callable[[int], Any]
    image_shape: ImageShape
    num_classes: int
    most: int
    notices: Notices

    def new(self, t: int) -> list[OwnImage]:
        """What the function gives for round t."""
        try:
            return self._images(t)
        except DataError as error:
            if t == STOCK:
                raise
            self.notices.say_once("function", f"{error} The round goes on without; further failures are not mentioned.")
            return []

    def _images(self, t: int) -> list[OwnImage]:
        try:
            given = self.function(t)
            if given is None:
                return []
            x, y = (np.asarray(part) for part in given)
        except Exception as error:
            raise DataError(f"{self.where} failed for round {t} ({type(error).__name__}: {error}). Mend it.") from error
        try:
            return labelled(
                x, y, self.image_shape, self.num_classes, prefix=f"{t}/", most=self.most, notices=self.notices
            )
        except DataError as error:
            raise DataError(f"{self.where} gave wrong data for round {t}: {error}. Mend it.") from error


@dataclass(frozen=True, eq=False)
class ForeignSource:
    """A user's own source of work, whose images are looked at before they are believed."""

    where: str
    source: DataSource
    image_shape: ImageShape

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
        """That of the user's source."""
        return self.source.validation

    def work(self, t: int) -> Work:
        """That of the user's source."""
        work = self.source.work(t)
        if not isinstance(work, Work):
            raise DataError(f"{self.where} gave {type(work).__name__} for round {t}, but must give a hatdfed Work.")
        for batch in (*work.batches, work.probe):
            self._check(f"round {t}", batch)
        return work

    def _check(self, what: str, batch: Any) -> None:
        if not isinstance(batch, Batch) or tuple(batch.x.shape) != (len(batch.y), *self.image_shape):
            found = f"a Batch of shape {list(batch.x.shape)}" if isinstance(batch, Batch) else type(batch).__name__
            raise DataError(
                f"{self.where} gave {found} for {what}, but must give a Batch of {in_words(self.image_shape)} images "
                "with a label each."
            )
