"""Folders and files of made-up images for the tests of a server's own data."""

import io
import os

import numpy as np

from hatdfed.core.task import TaskKind
from hatdfed.data.datasets.base import SampleFormat
from hatdfed.data.devices import LocalWork
from hatdfed.data.own.source import open_own_data

SHAPE = (1, 8, 8)
CLASSES = ("cat", "dog", "owl")
NOW = 1_700_000_000.0
WORK = LocalWork(samples_per_round=12, local_passes=2, batch_size=5, probe_size=4)


class Clock:
    """A clock that tests set."""

    def __init__(self):
        self.now = NOW

    def __call__(self):
        return self.now


def picture(number, shape=SHAPE):
    """An image that is like no other."""
    return np.random.default_rng(number).integers(0, 256, shape, dtype=np.uint8)


def npy(array):
    held = io.BytesIO()
    np.save(held, array)
    return held.getvalue()


def put(folder, name, content, age=100.0, now=NOW):
    """A file that was last changed `age` seconds ago."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, (now - age, now - age))
    return path


def fill(folder, numbers, age=100.0, now=NOW):
    """Numbered images, in turn of each class."""
    for name in CLASSES:
        (folder / name).mkdir(parents=True, exist_ok=True)
    for number in numbers:
        put(folder, f"{CLASSES[number % 3]}/{number}.npy", npy(picture(number)), age, now)
    return folder


def make_format(image_shape=SHAPE, num_classes=3, mean=0.5, std=0.5):
    """That of images whose pixels from 0 to 1 become −1 to 1."""
    channels, *_ = image_shape
    task = TaskKind("classification", num_classes)
    return SampleFormat(image_shape, np.dtype(np.uint8), task, (mean,) * channels, (std,) * channels)


def open_source(where, *, warned=None, clock=None, form=None, **changes):
    """The source, with what it warns of in the list `warned`; without a list, a warning fails the test."""
    told = {} if warned is None else {"warn": warned.append}
    given = {"form": form or make_format(), "settings": WORK, "seed": 5, "server": 1}
    return open_own_data(where, clock=clock or Clock(), **told, **{**given, **changes})


def contents(batch):
    """The images of a batch as bytes."""
    pixels = ((batch.x / 2 + 0.5) * 255).round().numpy().astype(np.uint8)
    return [image.tobytes() for image in pixels]


def trained(work):
    """The different images that a round trains on."""
    return {image for batch in work.batches for image in contents(batch)}


def numbers(images, among=range(1000)):
    """Which of the numbered pictures these are."""
    known = {picture(number).tobytes(): number for number in among}
    return {known[image] for image in images}
