"""Watch: movements of ten people's arms in seven shoulder exercises, from the PyPI package seglearn.

A smartwatch measured acceleration and rotation on three axes each, 50 times a second, while a person repeated an
exercise with the right or the left arm: 140 recordings of 19 to 52 seconds. D. Burns et al., "Shoulder physiotherapy
exercise recognition: machine learning the inertial signals from a smartwatch", Physiological Measurement 39, 2018. The
package has the BSD licence.

A sample is a window of four seconds; its class is the exercise, its group the person.
"""

from __future__ import annotations

import pickletools
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.task import CLASSIFICATION, TaskKind
from hatdfed.data.datasets.base import Dataset, DatasetKind, Examples, Progress, make_dataset
from hatdfed.data.datasets.packages import PackageFiles, describe_place, find_module_folder, require_package_files
from hatdfed.errors import DataError

FILE_NAME = "watch_dataset.npy"
FILES = PackageFiles(
    title="watch (the recordings in seglearn 1.2.5)",
    install="pip install seglearn==1.2.5",
    sha256={FILE_NAME: "eb122f23cdf06ef6bd6c6c5312958ec5cf9d038e2e6d457b8081662c75a42537"},
    folders=lambda: find_module_folder("seglearn", "data"),
)
CHANNELS = 6  # acceleration and rotation on three axes
EXERCISES = 7
RECORDINGS = 140
POOLED = 4  # of the 50 values a second, this many are averaged: 12.5 a second are left
WINDOW = 50  # of these: four seconds, about one repetition of an exercise
STEP = 6  # half a second
TRAIN_SHARE, VALIDATION_SHARE = 0.6, 0.2  # of each recording, in this order; the rest is for testing


class Recordings(NamedTuple):
    """What was recorded: series of different lengths, and who did what."""

    series: list[NDArray[np.float64]]  # [time, CHANNELS] each
    exercise: NDArray[np.int64]  # [recordings]
    person: NDArray[np.int64]  # [recordings]


def load(data_dir: Path | None = None, progress: Progress | None = None) -> Dataset:
    """Load the windows; of every recording, the first 60 % are for training, 20 % for validation, 20 % for testing."""
    recordings = read_recordings(require_package_files(FILES, data_dir)[FILE_NAME])
    series = [average_neighbours(values, POOLED) for values in recordings.series]
    bounds = [_find_bounds(len(values)) for values in series]
    parts = []
    for part in range(3):
        pieces = [values[bound[part] : bound[part + 1]] for values, bound in zip(series, bounds, strict=True)]
        windows = [cut_windows(piece) for piece in pieces]
        counts = [len(window) for window in windows]
        parts.append((np.concatenate(windows), np.repeat(recordings.exercise, counts), counts))
    return make_dataset(
        "watch",
        train=Examples(*parts[0][:2]),
        validation=Examples(*parts[1][:2]),
        test=Examples(*parts[2][:2]),
        task=TaskKind(CLASSIFICATION, EXERCISES),
        groups=np.repeat(recordings.person, parts[0][2]),
    )


def locate(data_dir: Path | None = None) -> str | None:
    """Return the folder that the recordings would be read from now, or None."""
    return describe_place(FILES, data_dir)


def read_recordings(path: Path, recordings: int = RECORDINGS) -> Recordings:
    """Read the arrays from the file, which holds a pickle, without unpickling it.

    Its instructions are listed by `pickletools`, and none of them is executed. The contents of the arrays are the long
    strings among them: the series, each stored channel by channel, then exercise and person (and which arm).
    """
    raw = path.read_bytes()
    header_bytes = int.from_bytes(raw[8:10], "little")
    instructions = pickletools.genops(raw[10 + header_bytes :])
    long = [text for _, text, _ in instructions if isinstance(text, str) and len(text) >= 8 * recordings]
    if len(long) < recordings + 2:
        raise DataError(f"{path} holds {len(long)} arrays. {recordings + 2} were wanted. Install it again.")
    arrays = [text.encode("latin-1") for text in long]
    series = [np.frombuffer(array, dtype="<f8").reshape(CHANNELS, -1).T for array in arrays[:recordings]]
    exercise, person = (np.frombuffer(array, dtype="<i8").astype(np.int64) for array in arrays[recordings:][:2])
    return Recordings(series, exercise, person)


def average_neighbours(values: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """Average `count` neighbouring values of [time, CHANNELS]; an incomplete rest is left out."""
    whole = len(values) // count
    means: NDArray[np.float64] = values[: whole * count].reshape(whole, count, -1).mean(axis=1)
    return means


def cut_windows(values: NDArray[np.float64]) -> NDArray[np.float32]:  # [time, CHANNELS] -> [n, WINDOW, CHANNELS]
    """Cut a series into overlapping windows; one that is too short gives none."""
    if len(values) < WINDOW:
        return np.empty((0, WINDOW, values.shape[1]), dtype=np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(values, WINDOW, axis=0)[::STEP]
    return np.ascontiguousarray(windows.transpose(0, 2, 1), dtype=np.float32)


def _find_bounds(length: int) -> tuple[int, int, int, int]:
    """Where training, validation and test data of a series begin and end; windows cross none of these."""
    train = round(length * TRAIN_SHARE)
    return 0, train, train + round(length * VALIDATION_SHARE), length


KIND = DatasetKind(
    name="watch",
    summary="smartwatch series of 10 people, 50×6 values, 7 exercises",
    load=load,
    locate=locate,
    install=FILES.install,
    defaults={
        "servers": 10,
        "split": "groups",
        "rounds": 40,
        "images_per_server": 700,
        "validation_images": 300,
        "network": "mlp",
        "common_init": True,
        "samples_per_round": 60,
        "local_passes": 4,
        "learner": {"learning_rate": 0.01},
        # The price of the model that is really sent.
        "energy": {"model_bits": "actual", "weak_joules_per_sample": 0.5, "strong_joules_per_sample": 0.25},
    },
)
