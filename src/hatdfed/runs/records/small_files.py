"""The small files of a run folder, read with limits: a run may be broken, half written or made by somebody else."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import yaml

from hatdfed.errors import RunFolderError

_LARGEST = 8 * 1024 * 1024  # bytes

# The parser in C is ten times as fast, where PyYAML was built with it.
_Fastest: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Fastest):  # type: ignore[misc]
    """Refuses merge keys (`<<`), which our settings never have: a few lines of nested ones take endless memory."""

    def flatten_mapping(self, node: Any) -> None:
        """Merge nothing; what is left of `<<` is a key that no constructor takes."""


def read_settings(folder: Path) -> dict[str, Any]:
    """The settings in config.yaml, unchecked: a run of another version is shown too."""
    loader = None
    try:
        loader = _Loader(_read_text(folder / "config.yaml"))
        settings = loader.get_single_data()
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, LookupError, OverflowError, RecursionError):
        raise RunFolderError(f"The settings of {folder.name} are not plain YAML.") from None
    finally:
        if loader is not None:
            loader.dispose()
    if not isinstance(settings, dict):
        raise RunFolderError(f"The settings of {folder.name} are not a table of names and values.")
    return settings


def read_document(folder: Path, name: str) -> dict[str, Any]:
    """One of the folder's JSON files; empty where there is none."""
    try:
        content = json.loads(_read_text(folder / name))
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError):
        raise RunFolderError(f"{name} of {folder.name} is not valid JSON.") from None
    return content if isinstance(content, dict) else {}


def _read_text(path: Path) -> str:
    """The text of a small file that is really one: a pipe would never end, and a link may lead anywhere."""
    name = f"{path.name} of {path.parent.name}"
    try:
        with open(path, encoding="utf-8", opener=_without_links) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise RunFolderError(f"{name} is not a plain file, so it is not read.")
            if found.st_size > _LARGEST:
                raise RunFolderError(f"{name} is larger than 8 MiB, so it is not read.")
            return file.read(_LARGEST)
    except FileNotFoundError:
        raise
    except OSError as error:
        if path.is_symlink():
            raise RunFolderError(f"{name} is a link, and links are not followed.") from None
        raise RunFolderError(f"{name} cannot be read ({error.strerror}).") from None


def _without_links(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
