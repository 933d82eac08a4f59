"""A server's own data, where there are no simulated devices: a folder that fills, an .npz file or a Python function.

There is no test set: accuracies are measured on a held-out share of the server's own images.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hatdfed.data.devices import LocalWork
from hatdfed.data.own.entry import ForeignSource, RoundFunction, is_entry, load_entry, wants_rounds
from hatdfed.data.own.folder import ClassFolders
from hatdfed.data.own.images import ImageShape, Inlet, Notices, bits_per_sample
from hatdfed.data.own.source import OwnData, Standardise, Stock, read_arrays
from hatdfed.errors import ConfigError, DataError
from hatdfed.server.work import Batch, DataSource, Work

__all__ = ["LEAST_IMAGES", "OwnData", "SlowMachine", "Standardise", "bits_per_sample", "open_own_data"]

LEAST_IMAGES = 10


def open_own_data(
    where: str | Path,
    *,
    image_shape: ImageShape,
    num_classes: int,
    settings: LocalWork,
    seed: int,
    server: int,
    work_share: float = 1.0,
    standardise: Standardise | None = None,
    held_out_share: float = 0.1,
    fresh_only: bool = False,
    max_images: int = 50_000,
    max_validation: int = 1_000,
    warn: Callable[[str], None] | None = None,
    clock: Callable[[], float] = time.time,
) -> DataSource:
    """One server's own images as its source of work.

    `where` is a folder with a sub-folder for each class, an .npz file with x and y, or `package.module:function`, whose
    contract is in `hatdfed.data.own.entry`. Of `settings`, the sizes and passes count; devices are real here, so
    their number, their probability and churn do not. A round's `devices_online` is 1 if an image came since the last
    round, else 0; its `num_samples` are the images trained on. `standardise` must be the same on all servers; without
    it, pixels from 0 to 1 become −1 to 1. `warn` is told, once each, what is left out and why.
    """
    standard = standardise or Standardise((0.5,) * image_shape[0], (0.5,) * image_shape[0])
    _check(image_shape, num_classes, standard, held_out_share, max_images, max_validation)
    place = _Place(str(where), image_shape, num_classes, max_images, Notices(warn or _warn), clock)
    inlet = _open(place)
    if isinstance(inlet, ForeignSource):
        return _at_pace(inlet, work_share)
    stock = Stock(held_out_share=held_out_share, max_images=max_images, max_held_out=max_validation)
    data = OwnData(
        inlet,
        stock,
        settings,
        place.notices,
        image_shape=image_shape,
        num_classes=num_classes,
        standardise=standard,
        seed=seed,
        server=server,
        fresh_only=fresh_only,
    )
    _check_enough(place.where, inlet, data, stock)
    return _at_pace(data, work_share)


class _Place(NamedTuple):
    """What every kind of place is opened with."""

    where: str
    image_shape: ImageShape
    num_classes: int
    most: int
    notices: Notices
    clock: Callable[[], float]


def _open(place: _Place) -> Inlet | ForeignSource:
    path = Path(place.where)
    if path.is_dir():
        return ClassFolders(
            path,
            place.image_shape,
            place.num_classes,
            most_files=place.most,
            notices=place.notices,
            clock=place.clock,
        )
    if path.is_file() and path.suffix == ".npz":
        return read_arrays(path, place.image_shape, place.num_classes, most=place.most, notices=place.notices)
    if path.exists() or not is_entry(place.where):
        found = "is a file of another kind" if path.exists() else "is not there"
        raise DataError(
            f"{place.where} {found}. Name a folder with a sub-folder for each class, an .npz file with x and y, "
            "or package.module:function."
        )
    return _open_entry(place)


def _open_entry(place: _Place) -> Inlet | ForeignSource:
    function = load_entry(place.where)
    if wants_rounds(place.where, function):
        return RoundFunction(place.where, function, place.image_shape, place.num_classes, place.most, place.notices)
    try:
        source = function()
    except Exception as error:
        raise DataError(f"{place.where} failed ({type(error).__name__}: {error}). Mend it.") from error
    return ForeignSource(place.where, source, place.image_shape)


def _at_pace(source: DataSource, work_share: float) -> DataSource:
    return source if work_share == 1 else SlowMachine(source, work_share)


def _check(
    image_shape: ImageShape, num_classes: int, standard: Standardise, share: float, max_images: int, max_validation: int
) -> None:
    if len(image_shape) != 3 or min(image_shape) < 1:
        raise ConfigError(f"image_shape is {image_shape}, but must be channels, height and width, each at least 1.")
    if num_classes < 2:
        raise ConfigError(f"num_classes is {num_classes}, but a model that tells images apart needs at least 2.")
    if any(len(values) != image_shape[0] for values in standard) or not all(std > 0 for std in standard.std):
        raise ConfigError(
            f"standardise is {tuple(standard)}, but must have a mean and a std above 0 for each of the "
            f"{image_shape[0]} channels."
        )
    if not 0 < share <= 0.5:
        raise ConfigError(f"held_out_share is {share}, but must lie above 0 and not above 0.5.")
    if max_images < LEAST_IMAGES or max_validation < 1:
        raise ConfigError(
            f"max_images is {max_images} and max_validation {max_validation}, "
            f"but at least {LEAST_IMAGES} and 1 are needed."
        )


def _check_enough(where: str, inlet: Inlet, data: OwnData, stock: Stock) -> None:
    if data.num_found < LEAST_IMAGES:
        raise DataError(
            f"{where} holds {data.num_found} images that can be used, but at least {LEAST_IMAGES} are needed to hold "
            f"some out from the start. Add images and start again.{_left_out(inlet)}"
        )
    if not stock.training:
        raise DataError(
            f"{where} holds {data.num_found} images, but their contents are so alike that all are held out. "
            "Add different images and start again."
        )


def _left_out(inlet: Inlet) -> str:
    if not isinstance(inlet, ClassFolders):
        return ""
    reasons = [f"{count} {reason}" for reason, count in inlet.skipped.items()]
    reasons += [f"{inlet.waiting} still being written"] if inlet.waiting else []
    return f" Left out: {'; '.join(reasons)}." if reasons else ""


def _warn(sentence: str) -> None:
    warnings.warn(sentence, stacklevel=3)


@dataclass(frozen=True, eq=False)
class SlowMachine:
    """Any source of work, of whose passes the first `work_share` is done, and at least one batch if there is one."""

    source: DataSource
    work_share: float

    def __post_init__(self) -> None:
        if not 0 < self.work_share <= 1:
            raise ConfigError(
                f"work_share is {self.work_share}, but must lie above 0 and not above 1; 1 is all of the work."
            )

    @property
    def validation(self) -> Batch:
        """That of the source."""
        return self.source.validation

    def work(self, t: int) -> Work:
        """The source's work, cut short; `num_samples` are the images that are left in it."""
        work = self.source.work(t)
        batches = work.batches[: share_of(len(work.batches), self.work_share)]
        # A pass sees every image once, so what is cut inside the first pass is not seen at all.
        seen = min(work.num_samples, sum(len(batch.y) for batch in batches))
        return work._replace(batches=batches, num_samples=seen)


def share_of(num_batches: int, work_share: float) -> int:
    """So many of the batches, rounded up, and at least one if there is one.

    >>> [share_of(n, 0.3) for n in (0, 1, 4, 10)]
    [0, 1, 2, 3]
    """
    wanted = math.ceil(num_batches * work_share - 1e-9)  # a product that should be whole may come out a little above
    return max(wanted, min(num_batches, 1))
