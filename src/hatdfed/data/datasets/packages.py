"""The files of a data set that comes in a package: where the package put them, and whether they are the right ones.

Files are looked for in the folder given as `data_dir` (`--data-dir`), else the one in the environment variable
HATDFED_DATA; then where the package installs them. Packages are neither imported nor installed. Wherever a file is
found, it is read only if its SHA-256 checksum is that of the version named in the install line.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hatdfed.data.datasets.files import DATA_VARIABLE
from hatdfed.errors import DataError, MissingDependencyError


@dataclass(frozen=True)
class PackageFiles:
    """Files that a package installs."""

    title: str
    install: str
    """What to type to get them."""
    sha256: Mapping[str, str]
    """Checksum of each file by its name."""
    folders: Callable[[], Sequence[Path]]
    """Says where the package puts its files, whether or not it is installed."""


def find_package_files(wanted: PackageFiles, data_dir: Path | None) -> Mapping[str, Path] | None:
    """Find each file by its name, in the first folder that has it; None unless all are here."""
    named = data_dir or os.environ.get(DATA_VARIABLE)
    folders = [*([Path(named)] if named else []), *wanted.folders()]
    found = {}
    for name in wanted.sha256:
        path = next((folder / name for folder in folders if _is_file(folder / name)), None)
        if path is None:
            return None
        found[name] = path
    return found


def describe_place(wanted: PackageFiles, data_dir: Path | None) -> str | None:
    """Return the folder that `require_package_files` would take the files from, or None."""
    found = find_package_files(wanted, data_dir)
    return os.path.commonpath([path.parent for path in found.values()]) if found else None


def require_package_files(wanted: PackageFiles, data_dir: Path | None) -> Mapping[str, Path]:
    """Find each file by its name and verify its checksum; the error names the command that installs them."""
    found = find_package_files(wanted, data_dir)
    if found is None:
        raise MissingDependencyError(
            f"{wanted.title} is not on this machine: run `{wanted.install}`, or put {_list(wanted.sha256)} into one "
            f"folder and name it with --data-dir or {DATA_VARIABLE}."
        )
    for name, path in found.items():
        _verify(wanted, name, path)
    return found


def find_module_folder(module: str, subfolder: str) -> list[Path]:
    """Return the folder inside an installed Python package, without importing the package; empty if it is missing."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):  # a module that somebody else has put there half-made
        return []
    return [Path(place) / subfolder for place in (spec.submodule_search_locations or [])] if spec else []


def compute_sha256(path: Path) -> str:
    """Compute the checksum of a file."""
    try:
        with path.open("rb") as source:
            return hashlib.file_digest(source, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}). Check the path and its permissions.") from error


def _verify(wanted: PackageFiles, name: str, path: Path) -> None:
    found = compute_sha256(path)
    if found != wanted.sha256[name]:
        raise DataError(
            f"{path} is not the file that {wanted.title} is read from: its sha256 is {found}, {wanted.sha256[name]} "
            f"was wanted. Install the right version: {wanted.install}"
        )


def _list(names: Mapping[str, str], most: int = 5) -> str:
    some = ", ".join(list(names)[:most])
    return some if len(names) <= most else f"{some} and {len(names) - most} more files"


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # in a folder that we have no permission to enter
        return False
