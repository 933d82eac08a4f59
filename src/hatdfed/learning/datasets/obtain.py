"""Find the files of a data set, or download them, once, however many processes ask at the same time."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from hatdfed.errors import DataError
from hatdfed.learning.datasets.download import writing_under
from hatdfed.learning.datasets.locate import Layout, cache_folder, files_in, find


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
