"""A server's own data instead of simulated devices: a folder that fills, an .npz file or a Python function.

There is no test set: accuracies are measured on a held-out share of the server's own images.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hatdfed.core.effort import ServerEffort
from hatdfed.core.task import NEXT_TOKEN
from hatdfed.data.datasets.base import Examples, SampleFormat
from hatdfed.data.devices import LocalWork
from hatdfed.data.own.folder import ClassFolders
from hatdfed.data.own.function import RoundFunction, UserSource, import_function, is_called_each_round, is_function_path
from hatdfed.data.own.images import (
    AT_START,
    IncomingSamples,
    OnceWarner,
    OwnSample,
    as_image_shape,
    make_own_samples,
    read_npz,
)
from hatdfed.data.standardise import make_tensors
from hatdfed.errors import ConfigError, DataError
from hatdfed.randomness import stream, torch_seed
from hatdfed.server.work import NOTHING, Batch, DataSource, Indices, Work

LEAST_IMAGES = 10


def open_own_data(
    where: str | Path,
    *,
    form: SampleFormat,
    settings: LocalWork,
    seed: int,
    server: int,
    work_share: float = 1.0,
    held_out_share: float = 0.1,
    fresh_only: bool = False,
    max_images: int = 50_000,
    max_validation: int = 1_000,
    warn: Callable[[str], None] | None = None,
    clock: Callable[[], float] = time.time,
) -> DataSource:
    """Open one server's own samples as its source of work.

    `where` is a folder with a sub-folder for each class, an .npz file with x and y, or `package.module:function`, whose
    contract is in `hatdfed.data.own.function`. Of `settings`, the sizes and passes apply; devices are real here, so
    their number, their probability and churn do not. A round's `devices_online` is 1 if an image arrived since the last
    round, else 0; its `num_samples` is the number of samples trained on. `form` must be the same on all servers.
    `warn` is called once for each kind of image that is left out.
    """
    _check(form, held_out_share, max_images, max_validation)
    place = _Location(str(where), form, max_images, OnceWarner(warn or _warn), clock)
    incoming = _find_images(place)
    if isinstance(incoming, UserSource):
        counted = CountedWork(incoming, settings.samples_per_round, settings.num_devices)
        return _limit_work(counted, work_share)
    store = ImageStore(held_out_share=held_out_share, max_images=max_images, max_held_out=max_validation)
    data = OwnData(
        incoming,
        store,
        settings,
        place.warner,
        form=form,
        seed=seed,
        server=server,
        fresh_only=fresh_only,
    )
    _check_enough(place.where, incoming, data, store)
    return _limit_work(data, work_share)


class _Location(NamedTuple):
    """Where the images are, and what is needed to read them from there."""

    where: str
    form: SampleFormat
    most: int
    warner: OnceWarner
    clock: Callable[[], float]


def _find_images(place: _Location) -> IncomingSamples | UserSource:
    path = Path(place.where)
    if path.is_dir():
        if not place.form.has_images or not place.form.task.has_classes:
            raise DataError(
                f"{place.where} is a folder, but the run is about samples of shape {list(place.form.shape)} for "
                f"{place.form.task.name}, not about images by class. Name an .npz file or package.module:function."
            )
        return ClassFolders(
            path,
            as_image_shape(place.form.shape),
            place.form.task.num_classes,
            most_files=place.most,
            warner=place.warner,
            clock=place.clock,
        )
    if path.is_file() and path.suffix == ".npz":
        return read_npz_samples(path, place.form, most=place.most, warner=place.warner)
    if path.exists() or not is_function_path(place.where):
        found = "is a file of another type" if path.exists() else "does not exist"
        raise DataError(
            f"{place.where} {found}. Name a folder with a sub-folder for each class, an .npz file with x and y, "
            "or package.module:function."
        )
    return _call_user_function(place)


def _call_user_function(place: _Location) -> IncomingSamples | UserSource:
    function = import_function(place.where)
    if is_called_each_round(place.where, function):
        return RoundFunction(place.where, function, place.form, place.most, place.warner)
    try:
        source = function()
    except Exception as error:
        raise DataError(f"{place.where} failed ({type(error).__name__}: {error}). Fix it.") from error
    return UserSource(place.where, source, place.form.shape)


def _limit_work(source: DataSource, work_share: float) -> DataSource:
    return source if work_share == 1 else SlowMachine(source, work_share)


def _check(form: SampleFormat, share: float, max_images: int, max_validation: int) -> None:
    if not form.shape or min(form.shape) < 1:
        raise ConfigError(f"Samples have the shape {list(form.shape)}, but every side must be at least 1.")
    if form.task.has_classes and form.task.num_classes < 2:
        raise ConfigError(f"There are {form.task.num_classes} classes, but a classifier needs at least 2.")
    if not 0 < share <= 0.5:
        raise ConfigError(f"held_out_share is {share}, but must be above 0 and at most 0.5.")
    if max_images < LEAST_IMAGES or max_validation < 1:
        raise ConfigError(
            f"max_images is {max_images} and max_validation {max_validation}, "
            f"but at least {LEAST_IMAGES} and 1 are needed."
        )


def _check_enough(where: str, incoming: IncomingSamples, data: OwnData, store: ImageStore) -> None:
    if data.num_found < LEAST_IMAGES:
        raise DataError(
            f"{where} holds {data.num_found} images that can be used, but at least {LEAST_IMAGES} are needed to hold "
            f"some out from the start. Add images and start again.{_left_out(incoming)}"
        )
    if not store.training:
        raise DataError(
            f"{where} holds {data.num_found} images, but their contents are so similar that all are held out. "
            "Add different images and start again."
        )


def _left_out(incoming: IncomingSamples) -> str:
    if not isinstance(incoming, ClassFolders):
        return ""
    reasons = [f"{count} {reason}" for reason, count in incoming.skipped.items()]
    reasons += [f"{incoming.waiting} still being written"] if incoming.waiting else []
    return f" Left out: {'; '.join(reasons)}." if reasons else ""


def _warn(sentence: str) -> None:
    warnings.warn(sentence, stacklevel=3)


@dataclass(frozen=True, eq=False)
class SlowMachine:
    """A source of work cut to the first `work_share` of its batches, and at least one if there is one."""

    source: DataSource
    work_share: float

    def __post_init__(self) -> None:
        if not 0 < self.work_share <= 1:
            raise ConfigError(
                f"work_share is {self.work_share}, but must be above 0 and at most 1; 1 is all of the work."
            )

    @property
    def validation(self) -> Batch:
        """The validation images of the source."""
        return self.source.validation

    def work(self, t: int, effort: ServerEffort | None = None, held: Indices = NOTHING) -> Work:
        """Return the first part of the source's work; `num_samples` counts the images that are left in it."""
        work = self.source.work(t, effort, held)
        batches = work.batches[: count_batches(len(work.batches), self.work_share)]
        # A pass sees every image once, so images cut from the first pass are not seen at all.
        seen = min(work.num_samples, sum(len(batch.y) for batch in batches))
        return work._replace(batches=batches, num_samples=seen)


@dataclass(frozen=True, eq=False)
class CountedWork:
    """A user's own source of work, of which no more is counted than the settings of the run allow a server.

    Other edges and the coordinator refuse larger claims, because they cannot tell them from lies.
    """

    source: DataSource
    most_samples: int
    most_devices: int

    @property
    def validation(self) -> Batch:
        """The validation images of the source."""
        return self.source.validation

    def work(self, t: int, effort: ServerEffort | None = None, held: Indices = NOTHING) -> Work:
        """Return the source's work; only the counts are limited."""
        work = self.source.work(t, effort, held)
        if work.volume <= self.most_samples and work.devices_online <= self.most_devices:
            return work
        samples, devices = min(work.num_samples, self.most_samples), min(work.devices_online, self.most_devices)
        spared, sent = min(work.spared, self.most_samples - samples), min(work.num_sent, self.most_samples)
        return work._replace(num_samples=samples, devices_online=devices, spared=spared, sent=sent)


def count_batches(num_batches: int, work_share: float) -> int:
    """Return the number of batches to train on: the share, rounded up, and at least one if there is one.

    >>> [count_batches(n, 0.3) for n in (0, 1, 4, 10)]
    [0, 1, 2, 3]
    """
    wanted = math.ceil(num_batches * work_share - 1e-9)  # a product that should be whole may come out a little above
    return max(wanted, min(num_batches, 1))


class OwnData:
    """A server's own images: a round trains on the new ones first, then on others that the server has.

    The same round can be requested again until the next one is; older rounds cannot be replayed. Which images were
    used is remembered while the process lives; after a restart all images count as new again. A server that asks nobody
    does not look for new images, and trains on those that it has. Where uploads are kept, an image counts as sent in
    the round that first trains on it.
    """

    def __init__(
        self,
        incoming: IncomingSamples,
        store: ImageStore,
        settings: LocalWork,
        warner: OnceWarner,
        *,
        form: SampleFormat,
        seed: int,
        server: int,
        fresh_only: bool,
    ) -> None:
        self._incoming, self._store, self._settings, self._warner = incoming, store, settings, warner
        self._form, self._fresh_only = form, fresh_only
        self._seed, self._server = seed, server
        images = incoming.new(AT_START)
        # Files are often copied class by class, so the order of the images at the start has no meaning.
        order = stream(seed, "own stock", AT_START, server).permutation(len(images))
        self.num_found = store.add([images[i] for i in order])
        self._has_new = True
        self._last: tuple[int, ServerEffort, Work] | None = None
        self._validation = self._batch(store.held_out)

    @property
    def validation(self) -> Batch:
        """The images held out so far."""
        return self._validation

    @property
    def label_counts(self) -> Tensor:
        """[C] number of kept training samples of each class."""
        labels = torch.tensor([int(sample.y) for sample in self._store.training], dtype=torch.int64)
        return torch.bincount(labels, minlength=self._form.task.num_classes)

    def work(self, t: int, effort: ServerEffort | None = None, held: Indices = NOTHING) -> Work:
        """Look for new images and return the work of round t; what is held is in the store."""
        effort = effort or ServerEffort(self._settings.local_passes, asks=True)
        if self._last is None or self._last[:2] != (t, effort):
            if effort.asks:
                self._add_new(t)
            self._last = t, effort, self._make_work(t, effort)
        return self._last[2]

    def _add_new(self, t: int) -> None:
        before = self._store.dropped
        if self._store.add(self._incoming.new(t)):
            self._has_new = True
            self._validation = self._batch(self._store.held_out)
        if self._store.dropped > before:
            self._warner.warn_too_many(len(self._store.training))

    def _make_work(self, t: int, effort: ServerEffort) -> Work:
        chosen = self._choose(t)
        trained = chosen if effort.passes else []
        num_fresh = min(len(self._store.fresh), len(trained))
        self._store.use(trained)
        has_new = effort.asks and self._has_new
        self._has_new &= not effort.asks
        return Work(
            batches=tuple(
                self._batch([trained[i] for i in part]) for part in self._parts(t, len(trained), effort.passes)
            ),
            num_samples=len(trained),
            devices_online=int(has_new),
            probe=self._batch(self._choose_probe(t, chosen)),
            validation=self._validation,
            seed=torch_seed(self._seed, "dropout", t, self._server),
            label_counts=self.label_counts if self._form.task.has_classes else None,
            spared=len(chosen) - len(trained),
            sent=num_fresh if self._settings.keeps_uploads else None,
        )

    def _choose(self, t: int) -> list[OwnSample]:
        """Choose unused images, newest first; then, unless `fresh_only`, used ones at random."""
        most = self._settings.train_samples or self._settings.samples_per_round
        fresh, used = self._store.fresh[:most], self._store.used
        if self._fresh_only:
            return fresh
        rng = stream(self._seed, "own sample", t, self._server)
        return fresh + [used[i] for i in rng.permutation(len(used))[: most - len(fresh)]]

    def _parts(self, t: int, count: int, num_passes: int) -> list[list[int]]:
        rng = stream(self._seed, "batches", t, self._server)
        size = self._settings.batch_size
        passes = [rng.permutation(count).tolist() for _ in range(num_passes)]
        return [order[start : start + size] for order in passes for start in range(0, count, size)]

    def _choose_probe(self, t: int, chosen: list[OwnSample]) -> list[OwnSample]:
        """Choose B of the round's images; others fill up if there are none, or too few and `probe_top_up` is set.

        With `holds_out_probe` B of the validation images.
        """
        rng = stream(self._seed, "probe", t, self._server)
        size = self._settings.probe_size
        if self._settings.holds_out_probe:
            held_out = self._store.held_out
            return [held_out[i] for i in rng.permutation(len(held_out))[:size]]
        probe = [chosen[i] for i in rng.permutation(len(chosen))[:size]]
        if chosen and not self._settings.probe_top_up:
            return probe
        names = {image.name for image in chosen}
        others = [image for image in self._store.training if image.name not in names]
        return probe + [others[i] for i in rng.permutation(len(others))[: size - len(probe)]]

    def _batch(self, images: Sequence[OwnSample]) -> Batch:
        if not images:
            return make_tensors(self._form.no_examples, self._form)
        x, y = (np.stack(parts) for parts in zip(*((image.x, image.y) for image in images), strict=True))
        return make_tensors(Examples(x, y), self._form)


@dataclass(frozen=True, eq=False)
class AllAtStart:
    """All images at the start, then none."""

    images: Sequence[OwnSample]

    def new(self, t: int) -> Sequence[OwnSample]:
        """Return all images before the first round, later none."""
        return self.images if t == AT_START else ()


def read_npz_samples(path: Path, form: SampleFormat, *, most: int, warner: OnceWarner) -> AllAtStart:
    """The last `most` samples of an .npz file."""
    found = read_npz(path, ("x",), ("y",)) if form.task.name == NEXT_TOKEN else read_npz(path, ("x", "y"))
    try:
        return AllAtStart(make_own_samples(found["x"], found.get("y"), form, prefix="", most=most, warner=warner))
    except DataError as error:
        reason = str(error)  # a whole sentence says itself what to do
        cure = "" if reason.endswith(".") else ". Save it again with numpy.savez."
        raise DataError(f"{path} cannot be used: {reason}{cure}") from error


class ImageStore:
    """Keeps at most `max_images` images to train on and `max_held_out` to evaluate on, in 8 bits a pixel."""

    def __init__(self, *, held_out_share: float, max_images: int, max_held_out: int) -> None:
        self._share = held_out_share
        self._max_images, self._max_held_out = max_images, max_held_out
        self._training: dict[str, OwnSample] = {}  # oldest first
        self._held_out: dict[str, OwnSample] = {}
        self._used: set[str] = set()
        self.dropped = 0  # images dropped because there were too many

    @property
    def held_out(self) -> list[OwnSample]:
        """Held-out images, in an order that does not depend on when they arrived."""
        return sorted(self._held_out.values(), key=lambda image: (image.content_hash, image.name))

    @property
    def training(self) -> list[OwnSample]:
        """Training images, oldest first."""
        return list(self._training.values())

    @property
    def fresh(self) -> list[OwnSample]:
        """Training images that were not used yet, newest first."""
        return [image for image in reversed(self._training.values()) if image.name not in self._used]

    @property
    def used(self) -> list[OwnSample]:
        """Training images that were used before, oldest first."""
        return [image for image in self._training.values() if image.name in self._used]

    def add(self, images: Sequence[OwnSample]) -> int:
        """Add the images that are new and return their number. A known name counts as new if its content is new."""
        new = [image for image in images if not self._knows(image)]
        for image in new:
            self._forget(image.name)
            self._subset_of(image)[image.name] = image
        self._keep_one_held_out()
        self._drop_oldest()
        return len(new)

    def use(self, images: Iterable[OwnSample]) -> None:
        """Mark these images as used."""
        self._used.update(image.name for image in images)

    def _knows(self, image: OwnSample) -> bool:
        known = self._training.get(image.name) or self._held_out.get(image.name)
        return known is not None and known.content_hash == image.content_hash and np.array_equal(known.y, image.y)

    def _subset_of(self, image: OwnSample) -> dict[str, OwnSample]:
        return self._held_out if image.content_hash < self._share else self._training

    def _forget(self, name: str) -> None:
        self._training.pop(name, None)
        self._held_out.pop(name, None)
        self._used.discard(name)

    def _keep_one_held_out(self) -> None:
        # Depends on the set of images alone, so that a restart decides the same. The smallest content hash can only
        # decrease, so an image that was trained on is not held out later.
        if any(image.content_hash < self._share for image in self._held_out.values()):
            provisional = [image for image in self._held_out.values() if image.content_hash >= self._share]
            self._move(provisional, self._held_out, self._training)
        elif everything := {**self._held_out, **self._training}:
            self._move(list(self._held_out.values()), self._held_out, self._training)
            smallest = min(everything.values(), key=lambda image: image.content_hash)
            equal = [image for image in everything.values() if image.content_hash == smallest.content_hash]
            self._move(equal, self._training, self._held_out)

    def _move(self, images: list[OwnSample], source: dict[str, OwnSample], target: dict[str, OwnSample]) -> None:
        for image in images:
            target[image.name] = source.pop(image.name)

    def _drop_oldest(self) -> None:
        for name in list(self._training)[: max(0, len(self._training) - self._max_images)]:
            self._forget(name)
            self.dropped += 1
        for image in self.held_out[self._max_held_out :]:
            # Keeping the smallest hashes gives a uniform sample that does not depend on the order of arrival.
            self._forget(image.name)
