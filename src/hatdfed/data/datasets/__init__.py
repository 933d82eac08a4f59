"""Data sets by name: `load_dataset("digits")`.

`digits` and `synthetic` need no download; `fashion-mnist`, `cifar-10` and `speeches` are looked for on this machine
first; `flights`, `typefaces` and `vowels` come in packages that have to be installed.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hatdfed.data.datasets import cifar10, digits, fashion_mnist, flights, speeches, synthetic, typefaces, vowels
from hatdfed.data.datasets.base import Dataset, DatasetKind, Examples, Progress
from hatdfed.errors import OWN_THING, ConfigError, DataError, did_you_mean
from hatdfed.registry import Registry

__all__ = [
    "DATASETS",
    "Dataset",
    "DatasetKind",
    "Examples",
    "LoadedDatasets",
    "Progress",
    "dataset_kind",
    "is_given_in_python",
    "load_dataset",
]

_OWN_NAME = re.compile(r"-[0-9a-f]{12}$")  # that of a user's own data ends in a digest
_KINDS = (
    digits.KIND,
    fashion_mnist.KIND,
    cifar10.KIND,
    synthetic.KIND,
    flights.KIND,
    speeches.KIND,
    typefaces.KIND,
    vowels.KIND,
)

DATASETS: Registry[DatasetKind] = Registry(
    "hatdfed.datasets",
    {kind.name: kind for kind in _KINDS},
    wanted="a DatasetKind",
    fits=lambda thing: isinstance(thing, DatasetKind),
)


def dataset_kind(name: str, options: Mapping[str, Any] | None = None, data_dir: Path | None = None) -> DatasetKind:
    """Look up the data set called `name`; a `ConfigError` suggests similar names.

    A user's own data are read from where the options say, or from a copy in `data_dir`; their name stands for their
    contents.
    """
    if name in DATASETS:
        return DATASETS[name]
    if options and "file" in options:
        return _open_again(name, options, data_dir)
    if is_given_in_python(name, options or {}):
        raise ConfigError(
            f"The data called {name!r} were given as Python objects, which this process does not have. Give the same "
            "data again as dataset=…, or save them with numpy.savez and name the file."
        )
    known = [each for each in DATASETS if not _OWN_NAME.search(each)]  # data given before are not asked for by name
    raise ConfigError(f"There is no data set called {name!r}. {did_you_mean(name, known)}{OWN_THING}")


def is_given_in_python(name: str, options: Mapping[str, Any]) -> bool:
    """Whether this is the name of a user's own data that are in no file."""
    return _OWN_NAME.search(name) is not None and "file" not in options


def _open_again(name: str, options: Mapping[str, Any], data_dir: Path | None) -> DatasetKind:
    from hatdfed.data.own.dataset import open_file  # it needs this package

    copy = None if data_dir is None else data_dir / Path(str(options["file"])).name
    if copy is not None and copy.exists():
        options = {**options, "file": str(copy)}
    kind = open_file(options)
    if kind.name.rpartition("-")[2] != name.rpartition("-")[2]:
        raise DataError(
            f"The data in {options['file']} are {kind.name!r} now, but {name!r} were wanted: they have changed. Name "
            "the same data by --dataset, or start a new run."
        )
    return kind


def load_dataset(
    name: str,
    *,
    data_dir: Path | None = None,
    progress: Progress | None = None,
    options: Mapping[str, Any] | None = None,
) -> Dataset:
    """Load the data set called `name`: read or generate it, or download it if this machine does not have it."""
    chosen = dict(options or {})
    kind = dataset_kind(name, chosen, data_dir)
    _require_known_options(kind, chosen)
    return kind.load(data_dir, progress, **chosen)


class LoadedDatasets:
    """The data sets that a process has loaded: whoever shares this object loads none of them twice."""

    def __init__(self) -> None:
        self._known: dict[str, Dataset] = {}

    def get(
        self,
        name: str,
        options: Mapping[str, Any],
        data_dir: Path | str | None = None,
        progress: Progress | None = None,
    ) -> Dataset:
        """The data set called `name` with these options; `progress` is told if it has to be downloaded."""
        key = repr([name, options, None if data_dir is None else str(data_dir)])
        if key not in self._known:
            where = None if data_dir is None else Path(data_dir)
            self._known[key] = load_dataset(name, data_dir=where, progress=progress, options=options)
        return self._known[key]


def _require_known_options(kind: DatasetKind, options: Mapping[str, Any]) -> None:
    parameters = inspect.signature(kind.load).parameters.values()
    known = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    for option in options:
        if option not in known:
            ending = did_you_mean(str(option), known) if known else "It takes no options."
            raise ConfigError(f"The data set {kind.name} has no option {option!r}. {ending}")
