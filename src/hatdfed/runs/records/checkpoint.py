"""Both halves of a run in one file, so that neither can be newer than the other.

The coordinator's state is JSON in the metadata of a safetensors file that holds the fleet's arrays. The file is
replaced in one step: a crash leaves the old one or the new one, never a mixture.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from hatdfed.core.coordinator import Coordinator, CoordinatorState, read_state
from hatdfed.core.fleet import Fleet, Snapshot
from hatdfed.core.refusals import MEANINGS
from hatdfed.errors import RunFolderError
from hatdfed.jsonable import to_jsonable
from hatdfed.runs.records.cleaning import whole


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoint of one run, replaced every so many rounds and after the last."""

    path: Path
    run: str  # whose it is
    every: int  # 0: never
    rounds: int
    fleet: Fleet
    pause: int | None = None  # a round after which the run stops for now

    def is_due(self, state: CoordinatorState) -> bool:
        """Whether the file is replaced at this state."""
        return state.t == self.pause or (self.every > 0 and (state.t % self.every == 0 or state.t == self.rounds))

    def write(self, state: CoordinatorState) -> None:
        """Both halves as they are now."""
        arrays = {name: np.ascontiguousarray(array) for name, array in self.fleet.snapshot().items()}
        counted = json.dumps(self.fleet.refused, sort_keys=True)
        metadata = {"run": self.run, "state": json.dumps(to_jsonable(state)), "refused": counted}
        write_atomically(self.path, save(arrays, metadata=metadata))

    def restore(self, coordinator: Coordinator) -> CoordinatorState:
        """Where the coordinator goes on; the fleet goes back to that round, too."""
        data, snapshot, counted = self._read()
        state = read_state(data, coordinator.start(np.zeros(coordinator.prices.num_servers)))
        if type(state.t) is not int or not 0 <= state.t <= self.rounds:
            raise RunFolderError(
                f"The checkpoint {self.path} stands at round {state.t!r:.40}, but the run has rounds "
                f"0 to {self.rounds}. Put back the file that belongs there, or start the run again."
            )
        self.fleet.restore(snapshot)
        self.fleet.refused.update(counted)
        return state

    def _read(self) -> tuple[Any, Snapshot, dict[str, int]]:
        """The coordinator's state as JSON has it, the fleet's arrays, and what servers had refused by then."""
        try:
            with safe_open(self.path, framework="numpy") as file:
                metadata = file.metadata()
                data, owner = json.loads(metadata["state"]), metadata["run"]
                counted = _read_counts(json.loads(metadata.get("refused", "{}")))  # older files have none
                snapshot: dict[str, Any] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except FileNotFoundError:
            raise RunFolderError(
                f"There is no checkpoint in {self.path.parent}, so the run cannot go on from there. "
                "Start it again without --resume."
            ) from None
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            raise RunFolderError(f"The checkpoint {self.path} cannot be read ({error}). Start the run again.") from None
        if owner != self.run:
            raise RunFolderError(
                f"The checkpoint {self.path} was made with other settings than those in config.yaml. "
                "Put back the file that belongs there, or start a new run."
            )
        return data, snapshot, counted


def _read_counts(content: Any) -> dict[str, int]:
    """How many messages were refused, by reasons that there are."""
    counts = {word: whole(count) for word, count in content.items()} if isinstance(content, dict) else {}
    return {word: count for word, count in counts.items() if word in MEANINGS and count is not None and count > 0}


def read_round(path: Path) -> int:
    """The round that a checkpoint goes on with; 0 where there is none that can be read."""
    try:
        with safe_open(path, framework="numpy") as file:
            t = json.loads(file.metadata()["state"])["t"]
    except (SafetensorError, OSError, KeyError, TypeError, ValueError):
        return 0
    return t if type(t) is int and t > 0 else 0


def write_atomically(path: Path, content: bytes | Sequence[bytes | bytearray | memoryview]) -> None:
    """Write, flush to the disk, then rename: readers see the old content or the new one. Parts are written in order."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            file.writelines([content] if isinstance(content, bytes) else content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise RunFolderError(
            f"{path} cannot be written ({error.strerror}). What was there before is untouched; "
            "free up space or choose another folder."
        ) from None
