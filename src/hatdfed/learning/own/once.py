"""Images that are there at the start, all of them: the arrays x and y of an .npz file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hatdfed.errors import DataError
from hatdfed.learning.own.images import STOCK, Notices, OwnImage, labelled
from hatdfed.learning.own.npy import read_npz
from hatdfed.learning.own.pixels import ImageShape, UnfitError


@dataclass(frozen=True, eq=False)
class Once:
    """Everything at the start, then nothing."""

    images: Sequence[OwnImage]

    def new(self, t: int) -> Sequence[OwnImage]:
        """All images before the first round."""
        return self.images if t == STOCK else ()


def read_arrays(path: Path, image_shape: ImageShape, num_classes: int, *, most: int, notices: Notices) -> Once:
    """The last `most` images of an .npz file."""
    x, y = read_npz(path, ("x", "y"))
    try:
        return Once(labelled(x, y, image_shape, num_classes, prefix="", most=most, notices=notices))
    except UnfitError as error:
        raise DataError(f"{path} cannot be used: {error}. Save it again with numpy.savez.") from error
