"""The states that an edge keeps on disk: the newest after every round, replaced atomically, and some before it.

A file that cannot be read is never taken for a fresh start: the one before it is tried, and then an error is raised.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from hatdfed.errors import RunFolderError
from hatdfed.runs.records.checkpoint import write_atomically
from hatdfed.server.message import pack_tensors
from hatdfed.server.program import ServerState, server_arrays, server_from

_log = logging.getLogger("hatdfed.deploy.edge")
_PATTERN = "round-*.safetensors"
_LOCK = "edge.lock"


class SavedState(NamedTuple):
    """A server's state after a round, as saved on disk."""

    run: str
    round: int  # the next one to play
    server: ServerState
    outcome: bytes  # the report of the last round, in case the coordinator asks for it again


@dataclass(frozen=True)
class EdgeStore:
    """The folder with one edge's saved states."""

    folder: Path
    max_files: int = 2
    max_bytes: int = 1 << 33

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folder against a second edge while the context is open; it is released if the process dies."""
        try:
            self._make()
            file = (self.folder / _LOCK).open("a+", encoding="utf-8")
        except (OSError, RunFolderError) as error:  # such as a full disk: rounds can be played all the same
            _log.error("%s cannot be locked (%s)", self.folder, error)
            yield
            return
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise RunFolderError(
                    f"An edge already runs on {self.folder} ({file.read().strip() or 'another process'}). Stop it "
                    "first, or choose another --store, with an identity of its own."
                ) from None
            except OSError as error:  # not every file system has locks
                _log.warning("%s cannot be locked (%s)", self.folder, error.strerror)
            with contextlib.suppress(OSError):
                file.truncate(0)
                file.write(f"process {os.getpid()}")
                file.flush()
            yield

    def save(self, state: SavedState) -> None:
        """Save a state, then delete old ones beyond the limits; the newest always stays."""
        self._make()
        arrays = {name: np.ascontiguousarray(array) for name, array in server_arrays(state.server).items()}
        about = {"run": state.run, "round": str(state.round), "outcome": state.outcome.hex(), "digest": _digest(arrays)}
        write_atomically(self._path(state.round), pack_tensors(arrays, about))
        self._prune()

    def load(self, run: str | None = None) -> SavedState | None:
        """Load the newest state that can be read; None if there is none, or if it is not of `run`."""
        files = self._files()
        for path in files:
            try:
                state = _read(path)
            except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
                _log.error("%s cannot be read (%s); the state before it is tried", path, error)
                continue
            return state if run in (None, state.run) else None
        if files:
            raise RunFolderError(
                f"None of the {len(files)} states in {self.folder} can be read. Put a good one back, or move them away "
                "to begin with a fresh model."
            )
        return None

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob(_PATTERN), reverse=True)

    def _path(self, next_round: int) -> Path:
        return self.folder / f"round-{next_round:08d}.safetensors"

    def _make(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunFolderError(
                f"The folder {self.folder} cannot be made ({error.strerror}). Choose another."
            ) from None

    def _prune(self) -> None:
        total = 0
        for number, path in enumerate(self._files()):
            with contextlib.suppress(OSError):
                total += path.stat().st_size
                if number and (number >= self.max_files or total > self.max_bytes):
                    path.unlink()


def _read(path: Path) -> SavedState:
    with safe_open(path, framework="numpy") as file:
        about: dict[str, Any] = file.metadata()
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if about["digest"] != _digest(arrays):
        raise ValueError("its digest does not match its content")
    return SavedState(about["run"], int(about["round"]), server_from(arrays), bytes.fromhex(about["outcome"]))


def _digest(arrays: dict[str, NDArray[Any]]) -> str:
    """Compute a digest of names and contents, by which damage on disk is noticed."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.hexdigest()


def delete_other_runs(store: EdgeStore, run: str) -> None:
    """Delete states of other runs, whose file names would clash with those of this run."""
    for path in store.folder.glob(_PATTERN):
        with contextlib.suppress(SafetensorError, OSError, KeyError, TypeError, ValueError):
            if _read(path).run != run:
                path.unlink()
