"""Where a data set that is not embedded lies on this machine.

1. The folder given as `data_dir` (`--data-dir`), else the one in the environment variable HATDFED_DATA. Whoever
   names a folder means it: if the files are not there, that is an error, and nothing else is tried.
2. The user's cache folder, where downloads go.
3. Where the operating system's packages put the data set.

In each of these, the files may lie in the folder itself or in one of the usual sub-folders.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from hatdfed.data.datasets.download import writing_under
from hatdfed.errors import DataError

DATA_VARIABLE = "HATDFED_DATA"


@dataclass(frozen=True)
class Layout:
    """How a data set lies in a folder."""

    title: str
    file_names: tuple[str, ...]
    subfolders: tuple[str, ...]
    """The usual ones; the first is where a download goes."""
    suffixes: tuple[str, ...] = ("",)
    """What may follow a file name, such as .gz."""
    system_folders: tuple[Path, ...] = ()
    advice: str = ""
    """Another way to get the files than by download."""


def cache_folder() -> Path:
    """The user's folder for downloaded data sets."""
    return platformdirs.user_cache_path("hatdfed") / "datasets"


def find(layout: Layout, data_dir: Path | None) -> Mapping[str, Path] | None:
    """The path of each file by its name, or None when they would have to be downloaded."""
    if data_dir is not None:
        return _find_in_chosen(layout, Path(data_dir), "--data-dir")
    if from_environment := os.environ.get(DATA_VARIABLE):
        return _find_in_chosen(layout, Path(from_environment), DATA_VARIABLE)
    for folder in (cache_folder(), *layout.system_folders):
        if found := files_in(folder, layout):
            return found
    return None


def whereabouts(layout: Layout, data_dir: Path | None) -> str | None:
    """The folder that `find` would take the files from, or None; never raises."""
    try:
        found = find(layout, data_dir)
    except DataError:
        return None
    return str(found[layout.file_names[0]].parent) if found else None


def files_in(folder: Path, layout: Layout) -> Mapping[str, Path] | None:
    """The path of each file by its name, if one of the usual places under `folder` has them all."""
    for place in _places(folder, layout):
        found = {name: _first_file(place, name, layout.suffixes) for name in layout.file_names}
        present = {name: path for name, path in found.items() if path is not None}
        if len(present) == len(found):
            return present
    return None


def _find_in_chosen(layout: Layout, folder: Path, origin: str) -> Mapping[str, Path]:
    with contextlib.suppress(RuntimeError):  # ~nobody: then there is no such folder
        folder = folder.expanduser()
    if not _is_folder(folder):
        raise DataError(
            f"The data folder {folder} (from {origin}) is not a folder that can be read. "
            f"Create it and put {layout.title} there, or leave {origin} out to have the data set downloaded."
        )
    found = files_in(folder, layout)
    if found is None:
        names = ", ".join(layout.file_names)
        endings = " or ".join(suffix for suffix in layout.suffixes if suffix)
        places = ", ".join(str(place) for place in _places(folder, layout))
        raise DataError(
            f"The data folder {folder} (from {origin}) does not hold {layout.title}. Looked for {names}"
            f"{f' (also ending in {endings})' if endings else ''} in {places}. "
            f"Put all of them into one of these, or leave {origin} out to have the data set downloaded."
        )
    return found


def _places(folder: Path, layout: Layout) -> list[Path]:
    return [folder, *(folder / subfolder for subfolder in layout.subfolders)]


def _first_file(place: Path, name: str, suffixes: tuple[str, ...]) -> Path | None:
    candidates = (place / f"{name}{suffix}" for suffix in suffixes)
    return next((path for path in candidates if _is_file(path)), None)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a folder that may not be entered: then the file is not there for us
        return False


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False


def find_or_download(layout: Layout, data_dir: Path | None, download: Callable[[Path], None]) -> Mapping[str, Path]:
    """The path of each file by its name; `download(folder)` is asked for them only if they are nowhere."""
    found = find(layout, data_dir)
    if found is not None:
        return found
    cache = cache_folder()
    with _one_process_at_a_time(cache):
        # Whoever had to wait for another process finds here what that one has downloaded.
        if files_in(cache, layout) is None:
            download(cache / layout.subfolders[0])
    found = files_in(cache, layout)
    if found is None:
        raise DataError(f"{layout.title} has just been downloaded to {cache} and is gone. Run the command again.")
    return found


def offline_advice(layout: Layout) -> str:
    """The end of a sentence: what to do where there is no network."""
    names = ", ".join(layout.file_names)
    return f"put {names} into ./data/{layout.subfolders[0]} and pass --data-dir ./data{layout.advice}"


@contextlib.contextmanager
def _one_process_at_a_time(folder: Path) -> Iterator[None]:
    """Two processes that appended to the same half file would spoil it."""
    with writing_under(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("wb")
    with lock:
        # Some network file systems cannot lock. A checksum still guards the result there.
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
