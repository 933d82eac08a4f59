"""The small files of a run folder, read with limits: a run may be broken, half written or made by somebody else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from hatdfed.errors import RunFolderError

_LARGEST = 8 * 1024 * 1024  # bytes

# The parser in C is ten times as fast, where PyYAML was built with it.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_settings(folder: Path) -> dict[str, Any]:
    """What config.yaml says, as it stands: a run of another version is shown too."""
    loader = None
    try:
        loader = _Loader(_content(folder / "config.yaml"))
        settings = loader.get_single_data()
    except (yaml.YAMLError, ValueError, RecursionError):
        raise RunFolderError(f"The settings of {folder.name} are not valid YAML.") from None
    finally:
        if loader is not None:
            loader.dispose()
    if not isinstance(settings, dict):
        raise RunFolderError(f"The settings of {folder.name} are not a table of names and values.")
    return settings


def read_document(folder: Path, name: str) -> dict[str, Any]:
    """One of the folder's JSON files; empty where there is none."""
    try:
        content = json.loads(_content(folder / name))
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError):
        raise RunFolderError(f"{name} of {folder.name} is not valid JSON.") from None
    return content if isinstance(content, dict) else {}


def _content(path: Path) -> str:
    try:
        if path.stat().st_size > _LARGEST:
            raise RunFolderError(f"{path.name} of {path.parent.name} is larger than 8 MiB, so it is not read.")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RunFolderError(f"{path.name} of {path.parent.name} cannot be read ({error.strerror}).") from None
