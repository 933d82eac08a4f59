"""Digits: 1,797 handwritten digits of 8×8 pixels that come with scikit-learn; nothing to download."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.task import CLASSIFICATION, TaskKind
from hatdfed.data.datasets.base import Dataset, DatasetKind, Examples, Progress, make_dataset
from hatdfed.errors import MissingDependencyError
from hatdfed.randomness import stream

TEST_IMAGES = 400
VALIDATION_IMAGES = 300
NUM_CLASSES = 10
BRIGHTEST = 16  # scikit-learn's digits count ink from 0 to 16


def load(data_dir: Path | None = None, progress: Progress | None = None) -> Dataset:
    """Load the digits in one fixed shuffle: 400 for testing, 300 for validation, 1,097 for training."""
    ink, digits = _load_embedded_digits()
    pixels = np.rint(ink * (255 / BRIGHTEST)).astype(np.uint8).reshape(-1, 1, 8, 8)
    labels = digits.astype(np.int64)
    # Neighbouring digits were written by the same person, so the split is shuffled; the 0 is not a run's seed.
    order = stream(0, "digits", "split").permutation(len(labels))
    test, validation, train = np.split(order, [TEST_IMAGES, TEST_IMAGES + VALIDATION_IMAGES])
    return make_dataset(
        "digits",
        train=Examples(pixels[train], labels[train]),
        validation=Examples(pixels[validation], labels[validation]),
        test=Examples(pixels[test], labels[test]),
        task=TaskKind(CLASSIFICATION, NUM_CLASSES),
    )


def locate(data_dir: Path | None = None) -> str | None:
    """Return "embedded": the digits come with scikit-learn."""
    return "embedded"


KIND = DatasetKind(
    name="digits",
    summary="1,797 handwritten digits, 8×8 grey, 10 classes; embedded (scikit-learn)",
    load=load,
    locate=locate,
    defaults={
        "rounds": 40,
        "images_per_server": 100,
        "validation_images": 300,
        "network": "small-cnn",
        "samples_per_round": 60,
        "local_passes": 2,
        # The price of the model that is really sent.
        "energy": {"model_bits": "actual", "weak_joules_per_sample": 0.5, "strong_joules_per_sample": 0.25},
    },
)


def _load_embedded_digits() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    # Imported here because the coordinator runs without scikit-learn.
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingDependencyError(
            "The data set digits comes with scikit-learn, which is not installed. "
            "Install it with: pip install 'hatdfed[sim]'"
        ) from error
    ink, digits = load_digits(return_X_y=True)
    return ink, digits
