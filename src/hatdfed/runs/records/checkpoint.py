"""Both halves of a run in one file, so that neither can be newer than the other.

The coordinator's state is JSON in the metadata of a safetensors file that holds the fleet's arrays. The file is
replaced in one step: a crash leaves the old one or the new one, never a mixture.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from hatdfed.core.coordinator import Coordinator, CoordinatorState
from hatdfed.core.fleet import Snapshot
from hatdfed.errors import RunFolderError
from hatdfed.jsonable import from_jsonable, to_jsonable


def write_checkpoint(path: Path, run: str, state: CoordinatorState, snapshot: Snapshot) -> None:
    """Replace the checkpoint at `path`; `run` says whose it is."""
    arrays = {name: np.ascontiguousarray(array) for name, array in snapshot.items()}
    write_atomically(path, save(arrays, metadata={"run": run, "state": json.dumps(to_jsonable(state))}))


def read_checkpoint(path: Path, run: str, coordinator: Coordinator) -> tuple[CoordinatorState, Snapshot]:
    """What the last checkpoint of `run` remembers."""
    try:
        with safe_open(path, framework="numpy") as file:
            data, owner = json.loads(file.metadata()["state"]), file.metadata()["run"]
            snapshot: dict[str, Any] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise RunFolderError(
            f"There is no checkpoint in {path.parent}, so the run cannot go on from there. "
            "Start it again without --resume."
        ) from None
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise RunFolderError(f"The checkpoint {path} cannot be read ({error}). Start the run again.") from None
    if owner != run:
        raise RunFolderError(
            f"The checkpoint {path} was made with other settings than those in config.yaml. "
            "Put back the file that belongs there, or start a new run."
        )
    template = coordinator.start(np.zeros(coordinator.prices.num_servers))
    return from_jsonable(data, template), snapshot


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
            "make room or choose another folder."
        ) from None
