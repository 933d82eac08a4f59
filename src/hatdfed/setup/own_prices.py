"""Prices of the user's own: joules of every link and of every server's training, from settings or from files."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hatdfed.data.own.images import read_npy
from hatdfed.errors import ConfigError, DataError
from hatdfed.setup.config import Config

MOST_SERVERS = 256  # whose links are listed: settings contain every number
_LARGEST_FILE = 4 * 2**20  # bytes
_DIMENSIONS = {"link_joules": 2, "training_joules": 1}


def read_own_prices(layer: dict[str, Any]) -> dict[str, Any]:
    """The settings with the contents of files in place of their names, so that they are complete."""
    energy = layer.get("energy")
    if not isinstance(energy, Mapping):
        return layer
    read = {key: _read_file(f"energy.{key}", energy[key]) for key in _DIMENSIONS if isinstance(energy.get(key), str)}
    return {**layer, "energy": {**energy, **read}} if read else layer


def check_own_prices(config: Config) -> None:
    """Refuse prices for another number of servers, and two prices for one thing."""
    energy, size = config.energy, config.servers
    if energy.link_joules is not None:
        if size > MOST_SERVERS:
            raise ConfigError(f"energy.link_joules is for at most {MOST_SERVERS} servers, but there are {size}.")
        widths = sorted({len(row) for row in energy.link_joules})
        if len(energy.link_joules) != size or widths != [size]:
            columns = " or ".join(map(str, widths))
            raise ConfigError(
                f"energy.link_joules has {len(energy.link_joules)} rows of {columns} values, but {size} servers need "
                f"{size} rows of {size}. The row receives; the diagonal is not used."
            )
    if energy.training_joules is not None:
        if len(energy.training_joules) != size:
            raise ConfigError(
                f"energy.training_joules has {len(energy.training_joules)} values, but there are {size} servers. Give "
                "one for each."
            )
        if config.machines.profiles:
            raise ConfigError(
                "energy.training_joules and machines.profiles are both set, and both say what training costs. Leave "
                "one of them out."
            )


def _read_file(setting: str, named: str) -> list[Any]:
    path = Path(named)
    if path.suffix not in (".csv", ".npy"):
        raise ConfigError(f"{setting} is {named[:200]!r}, but must be a list of numbers, or a .csv or .npy file.")
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise ConfigError(f"{setting}: {named} is not a file with prices. Check the path.")
        if found.st_size > _LARGEST_FILE:
            raise ConfigError(f"{setting}: {named} has more than {_LARGEST_FILE >> 20} MiB, which no price list needs.")
        numbers = _read_npy(path) if path.suffix == ".npy" else _read_csv(path)
    except OSError as error:
        reason = error.strerror or "not a file of this kind"
        raise ConfigError(f"{setting}: {named[:200]} cannot be read ({reason}). Check the path.") from None
    except (ValueError, DataError):
        raise ConfigError(f"{setting}: {named} must have nothing but numbers, in rows of equal length.") from None
    wanted = _DIMENSIONS[setting.removeprefix("energy.")]
    if wanted == 1 and numbers.ndim == 2 and 1 in numbers.shape:
        numbers = numbers.reshape(-1)  # a CSV file with one line, or one number in each
    if numbers.ndim != wanted:
        raise ConfigError(f"{setting}: {named} has {numbers.ndim} dimensions, but must have {wanted}.")
    listed: list[Any] = numbers.tolist()
    return listed


def _read_npy(path: Path) -> NDArray[np.float64]:
    with path.open("rb") as file:
        values = read_npy(file)  # which believes no header and unpickles nothing
    if values.dtype.kind not in "iuf":
        raise ValueError(f"{values.dtype} is no type of numbers")
    return values.astype(np.float64)


def _read_csv(path: Path) -> NDArray[np.float64]:
    lines = path.read_text(encoding="utf-8-sig").splitlines()
    return np.array([[float(cell) for cell in line.split(",")] for line in lines if line.strip()])
