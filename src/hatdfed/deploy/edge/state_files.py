"""Where models are stored, told by the names of files; known without torch."""

from __future__ import annotations

from pathlib import Path

from hatdfed.errors import RunFolderError
from hatdfed.runs.records.folder import RunFolder

STATE_PATTERN = "round-*.safetensors"


def refuse_folder_without_models(folder: Path) -> None:
    """Refuse a folder that is neither an edge's store nor a simulation's with a checkpoint."""
    if not RunFolder(folder).checkpoint.is_file() and not any(folder.glob(STATE_PATTERN)):
        raise RunFolderError(
            f"{folder} holds no model: neither an edge's states ({STATE_PATTERN}) nor a simulation's "
            "checkpoint.safetensors. Check the path."
        )
