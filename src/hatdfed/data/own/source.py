"""One server's own images as a source of work."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hatdfed.data.devices import LocalWork
from hatdfed.data.own.formats import read_npz
from hatdfed.data.own.images import STOCK, ImageShape, Inlet, Notices, OwnImage, UnfitError, labelled
from hatdfed.errors import DataError
from hatdfed.randomness import stream, torch_seed
from hatdfed.server.work import Batch, Work


class Standardise(NamedTuple):
    """What is subtracted from pixels / 255 in each channel, and what the rest is divided by."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


class OwnData:
    """A server's own images: each round takes those that came, then others that it has.

    A round can be asked for again until the next one is asked for. Older rounds cannot: the world has moved on.
    What was used is remembered while the process lives; after a restart all that lies there counts as new once more.
    """

    def __init__(
        self,
        inlet: Inlet,
        stock: Stock,
        settings: LocalWork,
        notices: Notices,
        *,
        image_shape: ImageShape,
        num_classes: int,
        standardise: Standardise,
        seed: int,
        server: int,
        fresh_only: bool,
    ) -> None:
        self._inlet, self._stock, self._settings, self._notices = inlet, stock, settings, notices
        self._num_classes, self._fresh_only = num_classes, fresh_only
        self._seed, self._server = seed, server
        self._mean, self._std = (torch.tensor(values).view(1, -1, 1, 1) for values in standardise)
        self._empty = np.empty((0, *image_shape), dtype=np.uint8)
        images = inlet.new(STOCK)
        # Files are often copied class by class, so the order of what lies there at the start means nothing.
        order = stream(seed, "own stock", STOCK, server).permutation(len(images))
        self.num_found = stock.add([images[i] for i in order])
        self._came = True
        self._last: tuple[int, Work] | None = None
        self._validation = self._batch(stock.held_out)

    @property
    def validation(self) -> Batch:
        """The held-out images that came so far."""
        return self._validation

    @property
    def label_counts(self) -> Tensor:
        """[C] of the images to train on that are kept."""
        labels = torch.tensor([image.label for image in self._stock.training], dtype=torch.int64)
        return torch.bincount(labels, minlength=self._num_classes)

    def work(self, t: int) -> Work:
        """Look for new images, and train on the round's."""
        if self._last is None or self._last[0] != t:
            self._look(t)
            self._last = t, self._work(t)
        return self._last[1]

    def _look(self, t: int) -> None:
        before = self._stock.dropped
        if self._stock.add(self._inlet.new(t)):
            self._came = True
            self._validation = self._batch(self._stock.held_out)
        if self._stock.dropped > before:
            self._notices.say_too_many(len(self._stock.training))

    def _work(self, t: int) -> Work:
        chosen = self._choose(t)
        self._stock.use(chosen)
        came, self._came = self._came, False
        return Work(
            batches=tuple(self._batch([chosen[i] for i in part]) for part in self._parts(t, len(chosen))),
            num_samples=len(chosen),
            devices_online=int(came),
            probe=self._batch(self._probe(t, chosen)),
            validation=self._validation,
            seed=torch_seed(self._seed, "dropout", t, self._server),
            label_counts=self.label_counts,
        )

    def _choose(self, t: int) -> list[OwnImage]:
        """What was not used yet, newest first; then, unless only that is wanted, others by chance."""
        most = self._settings.samples_per_round
        fresh, used = self._stock.fresh[:most], self._stock.used
        if self._fresh_only:
            return fresh
        rng = stream(self._seed, "own sample", t, self._server)
        return fresh + [used[i] for i in rng.permutation(len(used))[: most - len(fresh)]]

    def _parts(self, t: int, count: int) -> list[list[int]]:
        rng = stream(self._seed, "batches", t, self._server)
        size = self._settings.batch_size
        passes = [rng.permutation(count).tolist() for _ in range(self._settings.local_passes)]
        return [order[start : start + size] for order in passes for start in range(0, count, size)]

    def _probe(self, t: int, chosen: list[OwnImage]) -> list[OwnImage]:
        """B of the round's images; of all that are kept when there are none, or when too few are to be topped up."""
        rng = stream(self._seed, "probe", t, self._server)
        size = self._settings.probe_size
        probe = [chosen[i] for i in rng.permutation(len(chosen))[:size]]
        if chosen and not self._settings.probe_top_up:
            return probe
        names = {image.name for image in chosen}
        others = [image for image in self._stock.training if image.name not in names]
        return probe + [others[i] for i in rng.permutation(len(others))[: size - len(probe)]]

    def _batch(self, images: Sequence[OwnImage]) -> Batch:
        pixels = torch.from_numpy(np.stack([image.pixels for image in images]) if images else self._empty)
        labels = torch.tensor([image.label for image in images], dtype=torch.int64)
        return Batch((pixels.float() / 255 - self._mean) / self._std, labels)


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
