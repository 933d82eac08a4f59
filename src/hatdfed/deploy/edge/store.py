"""The states that an edge keeps on disk: the newest after every round, replaced atomically, and some before it.

A file that cannot be read is never taken for a fresh start: the one before it is tried, and then an error is raised.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from hatdfed.deploy.edge.state_files import STATE_PATTERN
from hatdfed.errors import RunFolderError
from hatdfed.runs.records.checkpoint import write_atomically
from hatdfed.server.message import Buffer, pack_tensors
from hatdfed.server.program import ServerState, server_arrays, server_from

_log = logging.getLogger("hatdfed.deploy.edge")
_RUN = re.compile(r"[0-9A-Za-z-]{1,64}")
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
        """Lock the folder against a second edge while the context is open; it is released if the process dies.

        A folder that was made for this and has no states in the end, such as that of an edge that is refused, goes.
        """
        is_new = not self.folder.exists()
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
            try:
                yield
            finally:
                if is_new:
                    self._remove_empty()

    def save(self, state: SavedState) -> None:
        """Save a state, then delete old ones beyond the limits; the newest always stays."""
        self._make()
        write_atomically(self.folder / state_name(state.round), pack_state(state))
        self._prune()

    def load(self, run: str | None = None) -> SavedState | None:
        """Load the newest state that can be read; None if there is none, or if it is not of `run`."""
        files = self.list_files()
        for path in files:
            try:
                state = read_state(path)
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

    def load_round(self, run: str, t: int) -> SavedState | None:
        """Load the state that round t of a run is played from; None if it was not kept, or cannot be read."""
        try:
            state = read_state(self.folder / state_name(t))
        except (SafetensorError, OSError, KeyError, TypeError, ValueError):
            return None
        return state if (state.run, state.round) == (run, t) else None

    def list_files(self) -> list[Path]:
        """List the files with states, newest first."""
        return sorted(self.folder.glob(STATE_PATTERN), reverse=True)

    def _remove_empty(self) -> None:
        with contextlib.suppress(OSError):
            if [path.name for path in self.folder.iterdir()] == [_LOCK]:
                (self.folder / _LOCK).unlink()
                self.folder.rmdir()

    def _make(self) -> None:
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            self.folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise RunFolderError(
                f"The folder {self.folder} cannot be made ({error.strerror}). Choose another."
            ) from None

    def _prune(self) -> None:
        total = 0
        for number, path in enumerate(self.list_files()):
            with contextlib.suppress(OSError):
                total += path.stat().st_size
                if number and (number >= self.max_files or total > self.max_bytes):
                    path.unlink()


def state_name(next_round: int) -> str:
    """Return the name of the file with the state that this round is played from."""
    return f"round-{next_round:08d}.safetensors"


def pack_state(state: SavedState) -> list[Buffer]:
    """Pack a state as the parts of a file, without copies."""
    arrays = {name: np.ascontiguousarray(array) for name, array in server_arrays(state.server).items()}
    about = {"run": state.run, "round": str(state.round), "outcome": state.outcome.hex(), "digest": _digest(arrays)}
    return pack_tensors(arrays, about)


def read_state(path: Path) -> SavedState:
    """Read a state from its file; raises an error of safetensors, or `ValueError` if it is damaged."""
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


def set_aside_other_runs(store: EdgeStore, run: str) -> None:
    """Move states of other runs, and those that cannot be read, away: their names clash with those of this run."""
    by_run: dict[str, list[Path]] = {}
    for path in store.list_files():
        if (owner := _read_run(path)) != run:
            by_run.setdefault(owner, []).append(path)
    for owner, paths in by_run.items():
        _set_aside(store, paths, f"run-{owner}")


def set_aside_later(store: EdgeStore, t: int) -> None:
    """Move the states after the one that round t is played from away, since the run goes back to that round."""
    later = [path for path in store.list_files() if path.name > state_name(t)]
    if later:
        _set_aside(store, later, f"after-round-{t}")


def _set_aside(store: EdgeStore, paths: list[Path], why: str) -> None:
    """Move files to a folder of their own inside the store; nothing is deleted."""
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    folder = store.folder / f"{why}-set-aside-{now}"
    try:
        folder.mkdir(mode=0o700)
        for path in paths:
            path.rename(folder / path.name)
    except OSError as error:
        raise RunFolderError(
            f"The older states in {store.folder} cannot be moved to {folder.name} ({error.strerror}). Free up disk "
            "space, or choose another --store."
        ) from None
    _log.warning("%d states of an edge that are not used any more were moved to %s", len(paths), folder)


def _read_run(path: Path) -> str:
    """Read which run a state belongs to, from its header only; a word for a file that does not say."""
    try:
        with safe_open(path, framework="numpy") as file:
            run = str(file.metadata()["run"])
    except (SafetensorError, OSError, KeyError, TypeError, ValueError):
        return "unknown"
    return run if _RUN.fullmatch(run) else "unknown"
