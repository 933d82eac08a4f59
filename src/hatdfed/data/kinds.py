"""Kinds of data: what images look like and what labels mean, for servers that do not agree about it.

All servers of one group hold data of one kind. Kind 0 is the data set as it is.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from hatdfed.data.datasets.base import Examples
from hatdfed.errors import ConfigError

_TURNS = (0, 2, 1, 3)  # quarter turns of the first four kinds of inputs; the next four are their negatives
_LABEL_STEP = 3  # neighbouring labels often look alike, so that a shift by one would be a mild disagreement


class Kind(NamedTuple):
    """One way to see the images of a data set."""

    quarter_turns: int = 0  # clockwise
    is_negative: bool = False
    label_shift: int = 0  # added to every label, modulo the number of classes

    def apply(self, images: Examples, num_classes: int) -> Examples:
        """The same images and labels as a server of this kind has them."""
        pixels = np.rot90(images.x, -self.quarter_turns, axes=(2, 3)) if self.quarter_turns else images.x
        if self.is_negative:
            pixels = 255 - pixels
        labels = (images.y + self.label_shift) % num_classes if self.label_shift else images.y
        return Examples(pixels, labels)


PLAIN = Kind()


def make_kinds(differ: str, count: int, num_classes: int, image_shape: tuple[int, ...] | None) -> list[Kind]:
    """The kinds of `count` groups that differ in their `inputs`, their `labels` or in nothing.

    `image_shape` is None where samples are no images, `num_classes` 0 where they have no classes.
    """
    if differ == "inputs":
        if image_shape is None:
            raise ConfigError("world.differ is inputs, but only 8-bit images can be turned. Use none, or labels.")
        _require_room(count, 2 * len(_TURNS), "that differ in their inputs")
        if count > 2 and image_shape[-1] != image_shape[-2]:
            raise ConfigError(
                f"world.groups is {count}, but images that are not square can only be turned upside down."
            )
        return [Kind(quarter_turns=_TURNS[g % len(_TURNS)], is_negative=g >= len(_TURNS)) for g in range(count)]
    if differ == "labels":
        if not num_classes:
            raise ConfigError("world.differ is labels, but samples of this task have no class label. Use none.")
        _require_room(count, num_classes, f"that differ in the meaning of {num_classes} labels")
        step = _LABEL_STEP if math.gcd(_LABEL_STEP, num_classes) == 1 else 1
        return [Kind(label_shift=g * step % num_classes) for g in range(count)]
    return [PLAIN] * count


def _require_room(count: int, most: int, what: str) -> None:
    if count > most:
        raise ConfigError(f"world.groups is {count}, but there are at most {most} groups {what}.")
