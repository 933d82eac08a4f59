"""The images that a server keeps: those to train on, and those held out to measure with.

An image is held out when its mark lies below the share, so the split depends on no seed, round or restart. Were there
none, the image with the smallest mark is held out until there is one. No image is ever on both sides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hatdfed.learning.own.images import OwnImage


class Stock:
    """At most `max_images` to train on and `max_held_out` to measure with, 8 bits a pixel."""

    def __init__(self, *, held_out_share: float, max_images: int, max_held_out: int) -> None:
        self._share = held_out_share
        self._max_images, self._max_held_out = max_images, max_held_out
        self._training: dict[str, OwnImage] = {}  # oldest first
        self._held_out: dict[str, OwnImage] = {}
        self._used: set[str] = set()
        self.dropped = 0  # images that had to make room

    @property
    def held_out(self) -> list[OwnImage]:
        """Those to measure with, in an order that does not depend on when they came."""
        return sorted(self._held_out.values(), key=lambda image: (image.mark, image.name))

    @property
    def training(self) -> list[OwnImage]:
        """Those to train on, oldest first."""
        return list(self._training.values())

    @property
    def fresh(self) -> list[OwnImage]:
        """Those to train on that were not used yet, newest first."""
        return [image for image in reversed(self._training.values()) if image.name not in self._used]

    @property
    def used(self) -> list[OwnImage]:
        """Those that were used before, oldest first."""
        return [image for image in self._training.values() if image.name in self._used]

    def add(self, images: Sequence[OwnImage]) -> int:
        """Keep what is new, oldest first; how many were. A name that is known counts if its content is new."""
        new = [image for image in images if not self._knows(image)]
        for image in new:
            self._forget(image.name)
            self._side(image)[image.name] = image
        self._keep_one_held_out()
        self._make_room()
        return len(new)

    def use(self, images: Iterable[OwnImage]) -> None:
        """Remember that a round trained on these."""
        self._used.update(image.name for image in images)

    def _knows(self, image: OwnImage) -> bool:
        known = self._training.get(image.name) or self._held_out.get(image.name)
        return known is not None and (known.mark, known.label) == (image.mark, image.label)

    def _side(self, image: OwnImage) -> dict[str, OwnImage]:
        return self._held_out if image.mark < self._share else self._training

    def _forget(self, name: str) -> None:
        self._training.pop(name, None)
        self._held_out.pop(name, None)
        self._used.discard(name)

    def _keep_one_held_out(self) -> None:
        # A function of all images present, so that a restart decides alike. The smallest mark can only fall, so an
        # image that was trained on is not held out later.
        if any(image.mark < self._share for image in self._held_out.values()):
            makeshift = [image for image in self._held_out.values() if image.mark >= self._share]
            self._move(makeshift, self._held_out, self._training)
        elif everything := {**self._held_out, **self._training}:
            self._move(list(self._held_out.values()), self._held_out, self._training)
            smallest = min(everything.values(), key=lambda image: image.mark)
            alike = [image for image in everything.values() if image.mark == smallest.mark]
            self._move(alike, self._training, self._held_out)

    def _move(self, images: list[OwnImage], source: dict[str, OwnImage], target: dict[str, OwnImage]) -> None:
        for image in images:
            target[image.name] = source.pop(image.name)

    def _make_room(self) -> None:
        for name in list(self._training)[: max(0, len(self._training) - self._max_images)]:
            self._forget(name)
            self.dropped += 1
        for image in self.held_out[self._max_held_out :]:
            # The smallest marks stay: an even sample of what was held out, again whatever the order of arrival.
            self._forget(image.name)
