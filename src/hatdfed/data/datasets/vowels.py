"""Vowels: nine speakers say the Japanese vowels /ae/, from the PyPI package aeon, or sktime, which has the same files.

640 utterances of 7 to 29 frames; of each frame a microphone's signal gave twelve cepstrum coefficients. M. Kudo, J.
Toyama, M. Shimbo, "Multidimensional curve classification using passing-through regions", Pattern Recognition Letters
20, 1999; from the UCI archive, where the data have the licence CC BY 4.0. The packages have the BSD licence.

A sample is four consecutive frames; its target is the frame that comes three frames later, its group the speaker.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.task import REGRESSION, TaskKind
from hatdfed.data.datasets.base import Dataset, DatasetKind, Examples, Progress, make_dataset
from hatdfed.data.datasets.packages import PackageFiles, describe_place, find_module_folder, require_package_files
from hatdfed.errors import DataError

TRAIN_FILE, TEST_FILE = "JapaneseVowels_TRAIN.ts", "JapaneseVowels_TEST.ts"
_SUBFOLDER = "datasets/data/JapaneseVowels"
FILES = PackageFiles(
    title="vowels (the utterances in aeon 1.6.0)",
    install="pip install aeon==1.6.0",
    sha256={
        TRAIN_FILE: "68a430eabd919cc77f40b1f5f3bc0dcafacc1486bca9260785aeb7d262cc78cd",
        TEST_FILE: "b3d41d6a0ca3bcad3afb9ca7d4365382aa51341e2e58bae2a574babdda5b9462",
    },
    folders=lambda: [*find_module_folder("aeon", _SUBFOLDER), *find_module_folder("sktime", _SUBFOLDER)],
)
COEFFICIENTS = 12
WINDOW = 4  # frames of a sample
AHEAD = 3  # frames from the last of them to the target
VALIDATED_EVERY = 5  # of the utterances in the training file, every fifth of a speaker is for validation


class Utterance(NamedTuple):
    """What one person said once."""

    frames: NDArray[np.float32]  # [time, COEFFICIENTS]
    speaker: int


def load(data_dir: Path | None = None, progress: Progress | None = None) -> Dataset:
    """Load the windows; whole utterances are for training, for validation or, as published, for testing."""
    files = require_package_files(FILES, data_dir)
    known, unseen = (read_utterances(files[name]) for name in (TRAIN_FILE, TEST_FILE))
    order = [_count_before(known, place) for place in range(len(known))]
    train, validation = (
        [utterance for utterance, before in zip(known, order, strict=True) if (before % VALIDATED_EVERY == 0) == held]
        for held in (False, True)
    )
    return make_dataset(
        "vowels",
        train=_make_examples(train),
        validation=_make_examples(validation),
        test=_make_examples(unseen),
        task=TaskKind(REGRESSION, COEFFICIENTS),
        groups=np.repeat([each.speaker for each in train], [len(cut_windows(each.frames).y) for each in train]),
    )


def locate(data_dir: Path | None = None) -> str | None:
    """Return the folder that the utterances would be read from now, or None."""
    return describe_place(FILES, data_dir)


def read_utterances(path: Path) -> list[Utterance]:
    """Read a .ts file: after `@data`, each line has the coefficients, separated by colons, and then the speaker."""
    try:
        _, _, data = path.read_text(encoding="utf-8").partition("@data\n")
        lines = [line.split(":") for line in data.splitlines() if line.strip()]
        return [Utterance(_parse_frames(coefficients), int(speaker)) for *coefficients, speaker in lines]
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}). Install it again: {FILES.install}") from error


def cut_windows(frames: NDArray[np.float32]) -> Examples:  # [time, COEFFICIENTS]
    """Cut an utterance into windows, and the frames to be predicted from them; one that is too short gives none."""
    count = max(0, len(frames) - WINDOW - AHEAD + 1)
    places = np.arange(count)[:, None] + np.arange(WINDOW)
    return Examples(frames[places], frames[len(frames) - count :])


def _parse_frames(coefficients: list[str]) -> NDArray[np.float32]:
    if len(coefficients) != COEFFICIENTS:
        raise ValueError(f"{len(coefficients)} coefficients instead of {COEFFICIENTS}")
    return np.array([series.split(",") for series in coefficients], dtype=np.float32).T


def _count_before(utterances: list[Utterance], place: int) -> int:
    """How many utterances of the same speaker come before this one."""
    return sum(each.speaker == utterances[place].speaker for each in utterances[:place])


def _make_examples(utterances: list[Utterance]) -> Examples:
    windows = [cut_windows(utterance.frames) for utterance in utterances]
    return Examples(*(np.concatenate([getattr(window, name) for window in windows]) for name in ("x", "y")))


KIND = DatasetKind(
    name="vowels",
    summary="utterances of 9 speakers, 4×12 values, the frame to come",
    load=load,
    locate=locate,
    task=REGRESSION,
    install=FILES.install,
    defaults={
        "servers": 9,
        "split": "groups",
        "rounds": 40,
        "images_per_server": 400,
        "validation_images": 300,
        "network": "mlp",
        "common_init": True,
        "samples_per_round": 60,
        "local_passes": 4,
        "learner": {"learning_rate": 0.003},
        # The price of the model that is really sent.
        "energy": {"model_bits": "actual", "weak_joules_per_sample": 0.5, "strong_joules_per_sample": 0.25},
    },
)
