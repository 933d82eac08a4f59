"""A folder that only one command writes into at a time."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hatdfed.errors import HatdfedError, RunFolderError


@contextmanager
def locked_folder(folder: Path, option: str, error: type[HatdfedError] = RunFolderError) -> Iterator[None]:
    """The folder for oneself, made if need be; refused while another command writes into it, or where nobody can.

    `option` is what chooses another one. The system forgets the lock when the process ends, however it ends.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("w")
    except OSError as trouble:
        raise error(
            f"The folder {folder} cannot be written ({trouble.strerror}). Choose another one with {option}."
        ) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise error(
                f"Another command is writing into {folder}. Wait for it, or choose another folder with {option}."
            ) from None
        except OSError:
            pass  # some network disks know no locks: better to write there unguarded than not at all
        yield
