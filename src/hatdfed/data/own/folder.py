"""A folder with one sub-folder for each class, which devices fill while the server runs.

The folder is listed again in every round, and files that were not read before (by path, time of change and size) are
read. A file that is still being written is left for the next round. A file that is not a usable image is counted and
skipped until it changes.
"""

from __future__ import annotations

import heapq
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hatdfed.data.own.images import (
    AT_START,
    NO_PILLOW,
    UNREADABLE,
    ImageShape,
    OnceWarner,
    OwnSample,
    UnusableImageError,
    decode,
    hash_fraction,
)
from hatdfed.errors import DataError, MissingDependencyError

SETTLED_SECONDS = 1.0  # a file that changed more recently may still be being written
BROKEN_AFTER_SECONDS = 60.0  # an unreadable file counts as incomplete until it is this old, then as broken
MOST_FILE_BYTES = 1 << 26  # far more than an image needs; a video in the folder is not read
NOT_PERMITTED = "cannot be opened"
TOO_LARGE = "too large"


class _File(NamedTuple):
    changed_ns: int  # first, so that files sort by age
    name: str  # path below the folder
    label: int
    size: int

    @property
    def stamp(self) -> tuple[int, int]:
        return self.changed_ns, self.size


class ClassFolders:
    """New images of a folder; only the newest `most_files` files are considered."""

    def __init__(
        self,
        root: Path,
        image_shape: ImageShape,
        num_classes: int,
        *,
        most_files: int,
        warner: OnceWarner,
        clock: Callable[[], float],
    ) -> None:
        self.root = root
        self.classes = read_classes(root, num_classes)
        self._image_shape = image_shape
        self._most_files = most_files
        self._warner = warner
        self._clock = clock
        self._done: dict[str, tuple[int, int]] = {}  # stamp of each file that need not be read again
        self._refused: dict[str, UnusableImageError] = {}  # files that are not usable images, and why
        self.waiting = 0  # files left for the next round

    @property
    def skipped(self) -> Counter[str]:
        """Number of skipped files, by reason."""
        return Counter(error.reason for error in self._refused.values())

    def new(self, t: int) -> list[OwnSample]:
        """Read the images that were not read before, oldest first."""
        files = sorted(heapq.nlargest(self._most_files + 1, self._list_files()))
        if len(files) > self._most_files:
            files = files[1:]
            self._warner.warn_too_many(self._most_files)
        names = {file.name for file in files}
        # Only listed files are remembered, which bounds the memory; `ImageStore` recognises one that comes back.
        self._done = {name: stamp for name, stamp in self._done.items() if name in names}
        self._refused = {name: error for name, error in self._refused.items() if name in names}
        self.waiting = 0
        images = [image for file in files if (image := self._read(file)) is not None]
        if t == AT_START and self.skipped[NO_PILLOW]:
            raise MissingDependencyError(
                f"{self.root} holds .png or .jpg files, and Pillow, which reads them, is not installed. "
                "Install it with: pip install pillow"
            )
        self._warn_of_skipped()
        return images

    def _list_files(self) -> Iterator[_File]:
        for label, name in enumerate(self.classes):
            try:
                with os.scandir(self.root / name) as entries:
                    yield from (file for entry in entries if (file := _file(entry, name, label)) is not None)
            except FileNotFoundError:
                continue  # a class that this server has no image of yet
            except OSError as error:
                self._warner.warn_once(
                    f"list {name}",
                    f"{self.root / name} cannot be listed ({error.strerror}), so its images are left out. "
                    "Check its permissions.",
                )

    def _read(self, file: _File) -> OwnSample | None:
        if self._done.get(file.name) == file.stamp:
            return None
        # Absolute, so that a clock that was set back does not exclude a file for ever.
        age_seconds = abs(self._clock() - file.changed_ns / 1e9)
        if age_seconds < SETTLED_SECONDS:
            self.waiting += 1
            return None
        try:
            image = self._image(file)
        except FileNotFoundError:
            return None  # removed since it was listed
        except UnusableImageError as error:
            self._refuse(file, error, age_seconds)
            return None
        self._done[file.name] = file.stamp
        self._refused.pop(file.name, None)
        return image

    def _image(self, file: _File) -> OwnSample:
        if file.size > MOST_FILE_BYTES:
            raise UnusableImageError(TOO_LARGE, f"{file.size} bytes were found, at most {MOST_FILE_BYTES} were wanted")
        try:
            data = (self.root / file.name).read_bytes()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise UnusableImageError(NOT_PERMITTED, f"{error.strerror}; a readable file was wanted") from error
        pixels = decode(Path(file.name).suffix.lower(), data, self._image_shape)
        return OwnSample(file.name, pixels, np.array(file.label), hash_fraction(data))

    def _refuse(self, file: _File, error: UnusableImageError, age_seconds: float) -> None:
        if error.reason == UNREADABLE and age_seconds < BROKEN_AFTER_SECONDS:
            self.waiting += 1
            return
        self._refused[file.name] = error
        if error.reason != NOT_PERMITTED:  # permissions can be corrected without a change of the file
            self._done[file.name] = file.stamp

    def _warn_of_skipped(self) -> None:
        for reason, count in self.skipped.items():
            name, error = next((name, error) for name, error in self._refused.items() if error.reason == reason)
            self._warner.warn_once(
                reason,
                f"{count} {'file' if count == 1 else 'files'} in {self.root} left out: {reason} "
                f"(such as {name}: {error}). Repair or remove such files; further ones are only counted.",
            )


def _file(entry: os.DirEntry[str], folder: str, label: int) -> _File | None:
    """Describe a file without reading it; None for hidden files, folders and files that have just been removed."""
    try:
        if entry.name.startswith(".") or not entry.is_file():
            return None
        known = entry.stat()
    except OSError:
        return None
    return _File(known.st_mtime_ns, f"{folder}/{entry.name}", label, known.st_size)


CLASS_LIST = "classes.txt"


def read_classes(root: Path, num_classes: int) -> tuple[str, ...]:
    """Read the name of each label's sub-folder; `classes.txt` may name folders that do not exist yet."""
    listed = root / CLASS_LIST
    try:
        return _from_list(listed, num_classes) if listed.is_file() else _from_folders(root, num_classes)
    except UnicodeDecodeError as error:
        raise DataError(f"{listed} is not UTF-8 text. Write one name of a sub-folder on each line.") from error
    except OSError as error:
        raise DataError(f"{root} cannot be read ({error.strerror}). Check the path and its permissions.") from error


def list_classes(root: Path) -> tuple[str, ...]:
    """The classes that a folder has: those of `classes.txt`, or its sub-folders in alphabetical order."""
    listed = root / CLASS_LIST
    names = _read_list(listed) if listed.is_file() else _list_folders(root)
    return read_classes(root, len(names))


def _read_list(listed: Path) -> tuple[str, ...]:
    return tuple(line.strip() for line in listed.read_text("utf-8").splitlines() if line.strip())


def _list_folders(root: Path) -> tuple[str, ...]:
    return tuple(sorted(entry.name for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith(".")))


def _from_list(listed: Path, num_classes: int) -> tuple[str, ...]:
    names = _read_list(listed)
    if len(names) != num_classes or len(set(names)) != num_classes:
        raise DataError(
            f"{listed} names {len(set(names))} different classes on {len(names)} lines, "
            f"but the model has {num_classes}. Write the name of each class once, in the order that all servers use."
        )
    # A name must stay inside the folder.
    if odd := [name for name in names if name != Path(name).name or name in (".", "..") or "\0" in name]:
        raise DataError(f"{listed} names {odd[0]!r}, which is not the name of a sub-folder. Use names without slashes.")
    return names


def _from_folders(root: Path, num_classes: int) -> tuple[str, ...]:
    names = _list_folders(root)
    # A server that lacks a class would give all later ones the wrong label.
    if len(names) != num_classes:
        raise DataError(
            f"{root} has {len(names)} sub-folders, but the model has {num_classes} classes. Make one for each class, "
            f"empty if need be, or name all classes in order, one on each line, in {CLASS_LIST}."
        )
    return names
