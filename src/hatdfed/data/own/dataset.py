"""A user's own data as a data set for simulations: checked, split once and for all, and named by their contents.

The name ends in a digest of the arrays, so that a run folder says exactly which data it is about. Where a file lies is
in `dataset_options.file` and is no part of a run's identity.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.task import NEXT_TOKEN, TaskKind
from hatdfed.data.datasets.base import Dataset, DatasetKind, Examples, Progress, make_dataset
from hatdfed.data.own.arrays import OwnArrays, gather_arrays
from hatdfed.data.own.checks import check_alike, make_examples, refuse_missing_classes, refuse_odd_classes
from hatdfed.errors import DataError
from hatdfed.randomness import stream

FILE = "file"  # the option that says where data are
LEAST_SAMPLES = 20
_TEST_SHARE = 0.2
_VALIDATION_SHARE = 0.1
_MOST_OWNED = 800  # samples of a server, unless the user says otherwise
_MOST_VALIDATION = 1000


def is_own_data(given: Any) -> bool:
    """Whether `given` as a data set is data or where they are, and not the name of a data set."""
    if not isinstance(given, str):
        return given is not None
    return given.endswith(".npz") or "/" in given or Path(given).is_dir()


def open_own(given: Any, options: Mapping[str, Any], task: str | None) -> tuple[DatasetKind, dict[str, Any]]:
    """The data set that these data make, and its options: everything that is needed to load a file again."""
    chosen = {name: value for name, value in options.items() if name != FILE}
    if unknown := [name for name in chosen if name not in ("target", "groups", "task")]:
        raise DataError(f"Own data have no option {unknown[0]!r}. They take target, groups and task.")
    if task is not None:
        chosen["task"] = task
    if isinstance(given, str | Path):
        path = Path(given).expanduser()
        if not path.exists():
            raise DataError(f"{path} does not exist. Name an .npz file with x and y, a folder of images or a data set.")
        chosen[FILE] = str(path.resolve())
    kind = open_file(chosen) if FILE in chosen else make_kind(given, **_columns(chosen))
    return kind, {**chosen, "task": kind.task}


def open_file(options: Mapping[str, Any]) -> DatasetKind:
    """The data set of a file or folder; read once while it does not change."""
    path = Path(str(options[FILE]))
    try:
        stamp = _stamp(path)
    except OSError as error:
        raise DataError(
            f"The data in {path} cannot be read ({error.strerror}). Name the place where they are now by --dataset, "
            "or put a copy into --data-dir."
        ) from None
    others = {name: value for name, value in options.items() if name != FILE}
    return _read(path, stamp, **_columns(others))


@lru_cache(maxsize=2)
def _read(path: Path, stamp: tuple[int, int], target: str | None, groups: str | None, task: str | None) -> DatasetKind:
    return make_kind(path, target, groups, task)


def _stamp(path: Path) -> tuple[int, int]:
    """When a file, or anything in a folder, was changed last, and how large it is."""
    known = [each.stat() for each in ((path, *path.rglob("*")) if path.is_dir() else (path,))]
    return max(each.st_mtime_ns for each in known), sum(each.st_size for each in known)


def _columns(options: Mapping[str, Any]) -> dict[str, str | None]:
    return {name: None if options.get(name) is None else str(options[name]) for name in ("target", "groups", "task")}


def make_kind(given: Any, target: str | None = None, groups: str | None = None, task: str | None = None) -> DatasetKind:
    """Read, check and split data, and say by which settings they are best played."""
    arrays = gather_arrays(given, target=target, groups=groups)
    dataset = make_own_dataset(arrays, task)
    name = dataset.name

    def load(
        data_dir: Path | None = None,
        progress: Progress | None = None,
        *,
        file: str | None = None,
        target: str | None = None,
        groups: str | None = None,
        task: str | None = None,
    ) -> Dataset:
        return dataset

    return DatasetKind(
        name=name,
        summary=f"own data: {dataset.train.count} samples of shape {list(dataset.sample_shape)}, {dataset.task.name}",
        load=load,
        defaults=_choose_defaults(dataset),
        locate=lambda data_dir: "given",
        task=dataset.task.name,
    )


def make_own_dataset(arrays: OwnArrays, task: str | None = None) -> Dataset:
    """Check arrays and split them: as the user did, or 20 % for the test and 10 % for validation, at random."""
    examples, kind = make_examples(arrays.x, arrays.y, task)
    if examples.count < LEAST_SAMPLES:
        raise DataError(
            f"There are {examples.count} samples, but at least {LEAST_SAMPLES} are needed for training, validation and "
            "test."
        )
    refuse_missing_classes(examples.y, kind)
    refuse_odd_classes(examples.y, kind)
    if (examples.y == examples.y[:1]).all() and kind.name != NEXT_TOKEN:
        raise DataError("All targets are the same, so there is nothing to learn.")
    groups = _number_groups(arrays.groups, examples.count)
    order = stream(0, "own-data", "split").permutation(examples.count)  # the 0 is not a run's seed
    given_test = _check_test(arrays, kind, examples, task)
    num_test = 0 if given_test is not None else max(1, round(_TEST_SHARE * examples.count))
    num_validation = max(1, round(_VALIDATION_SHARE * examples.count))
    test, validation, train = np.split(order, [num_test, num_test + num_validation])
    if given_test is not None and kind.name == NEXT_TOKEN:
        kind = TaskKind(NEXT_TOKEN, max(kind.num_outputs, given_test[1].num_outputs))
    return make_dataset(
        f"{arrays.name}-{arrays.digest(kind.name)}",
        train=examples.take(train),
        validation=examples.take(validation),
        test=examples.take(test) if given_test is None else given_test[0],
        task=kind,
        groups=None if groups is None else groups[train],
    )


def _check_test(
    arrays: OwnArrays, kind: TaskKind, examples: Examples, task: str | None
) -> tuple[Examples, TaskKind] | None:
    if arrays.x_test is None:
        if arrays.y_test is not None:
            raise DataError("There is y_test, but no x_test. Give both or neither.")
        return None
    try:
        found, test_kind = make_examples(arrays.x_test, arrays.y_test, task or kind.name)
    except DataError as error:
        raise DataError(f"x_test and y_test cannot be used as x and y: {error}") from None
    wanted = kind if kind.name != NEXT_TOKEN else test_kind
    try:
        check_alike(found, test_kind, examples.x.shape[1:], wanted, examples.x.dtype)
    except DataError as error:
        raise DataError(f"x_test and y_test do not go with x and y: {error}.") from None
    return found, test_kind


def _number_groups(groups: NDArray[Any] | None, count: int) -> NDArray[np.int64] | None:
    if groups is None:
        return None
    if groups.shape != (count,):
        raise DataError(f"groups has the shape {list(groups.shape)}, but must name one group for each of {count}.")
    if groups.dtype.kind not in "biuU":
        raise DataError(f"groups holds {groups.dtype}, but must be integers or text.")
    names, place = np.unique(groups, return_inverse=True)
    if len(names) < 2:
        raise DataError("All samples are of one group. Leave groups out, or name the group of each sample.")
    return place.astype(np.int64)


def _choose_defaults(dataset: Dataset) -> dict[str, Any]:
    """Settings for data that nobody has played before."""
    defaults: dict[str, Any] = {
        "rounds": 40,
        "images_per_server": max(1, min(_MOST_OWNED, dataset.train.count // 5)),
        "validation_images": min(_MOST_VALIDATION, dataset.validation.count),
        "samples_per_round": 60,
        "local_passes": 2,
        "energy": {"model_bits": "actual", "weak_joules_per_sample": 0.5, "strong_joules_per_sample": 0.25},
    }
    if dataset.groups is not None:
        num_groups = len(np.unique(dataset.groups))
        defaults |= {"split": "groups", "servers": max(2, min(5, num_groups)), "images_per_server": _MOST_OWNED}
    network = choose_network(dataset)
    return defaults if network is None else {**defaults, "network": network}


def choose_network(dataset: Dataset) -> str | None:
    """The built-in network for samples of this type; None where there is none."""
    if dataset.has_images:
        return "small-cnn" if min(dataset.sample_shape[1:]) >= 4 else "mlp"
    if dataset.train.x.dtype.kind == "f":
        return "lstm" if len(dataset.sample_shape) == 2 else "mlp"
    return "decoder" if dataset.task.name == NEXT_TOKEN else None
