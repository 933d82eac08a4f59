"""Data of your own, split by the people they come from: every server knows one person's handwriting.

    python examples/own_data.py             exchanging models against learning alone
    python -m pytest examples/own_data.py   holds the data set to the laws of all data sets

The data are real: scikit-learn's digits, cut out of forms that people filled in. Who wrote what is not said, but the
labels give the forms away: they repeat one sequence of 130 digits, with a few losses, that starts from 0 1 2 3 …, and
so there are 14 forms. The hands do differ: of all images of the same digit, the most similar one is in the same form in
54 % of the cases, where chance would give 7 %. (13 people are said to have taken part, so one may have filled in two.)

Ten forms are to train on, two for validation and two for the test: handwriting that no server has learned from.
For `hatdfed run --dataset digits-by-writer`, a package has in its pyproject.toml:

    [project.entry-points."hatdfed.datasets"]
    digits-by-writer = "my_package.data:DIGITS_BY_WRITER"
"""

import argparse
import re

import numpy as np
from sklearn.datasets import load_digits

import hatdfed
from hatdfed.core.task import TaskKind
from hatdfed.data.datasets import DATASETS, DatasetKind, Examples
from hatdfed.data.datasets.base import make_dataset
from hatdfed.testing import DatasetLaws


def load(data_dir=None, progress=None):
    """Images as bytes [n, channels, height, width], labels, and `groups`: whom each training image comes from."""
    ink, labels = load_digits(return_X_y=True)
    pixels = np.rint(ink * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
    writer = writers(labels)
    validation, test = np.isin(writer, (10, 11)), np.isin(writer, (12, 13))
    train = ~(validation | test)
    sets = {"train": train, "validation": validation, "test": test}
    images = {name: Examples(pixels[chosen], labels[chosen].astype(np.int64)) for name, chosen in sets.items()}
    return make_dataset("digits-by-writer", **images, task=TaskKind("classification", 10), groups=writer[train])


def writers(labels):
    """The form that each image comes from; on one of them the first 0 is missing."""
    starts = [found.start() for found in re.finditer("0?12345678901234", "".join(map(str, labels)))]
    return np.searchsorted(starts, np.arange(len(labels)), side="right") - 1


DIGITS_BY_WRITER = DatasetKind(
    name="digits-by-writer",
    summary="scikit-learn's digits, one person's hand for each server",
    load=load,
    defaults={
        **DATASETS["digits"].defaults,
        **{"servers": 10, "split": "groups", "images_per_server": 130, "validation_images": 258, "rounds": 20},
    },
    locate=lambda data_dir: "embedded",
)


class TestDigitsByWriter(DatasetLaws):
    """The laws that ship with hatdfed."""

    def kind(self):
        """The data set under test."""
        return DIGITS_BY_WRITER


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Digits by ten people, read by servers that each know one of them.")
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    DATASETS.add("digits-by-writer", DIGITS_BY_WRITER)
    for method in ("local", "hat-dfed", "full"):
        # With a common initial model 20 rounds tell the difference; with one of each server's own it takes about 40.
        summary = hatdfed.run(method=method, dataset="digits-by-writer", rounds=rounds, common_init=True).summary
        print(f"{method:10} accuracy {summary['avg_accuracy']:5.1f} % on people never seen, ", end="")
        print(f"worst server {summary['worst_accuracy']:5.1f} %, {1e3 * summary['total_energy_mj']:6.2f} kJ")
