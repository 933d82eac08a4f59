"""Which sub-folder holds which class: by name in sorted order, or in the order of a list."""

from __future__ import annotations

from pathlib import Path

from hatdfed.errors import DataError

CLASS_LIST = "classes.txt"


def read_classes(root: Path, num_classes: int) -> tuple[str, ...]:
    """The sub-folder of each label; a list may name folders that are not there yet."""
    listed = root / CLASS_LIST
    try:
        return _from_list(listed, num_classes) if listed.is_file() else _from_folders(root, num_classes)
    except UnicodeDecodeError as error:
        raise DataError(f"{listed} is no text in UTF-8. Write one name of a sub-folder on each line.") from error
    except OSError as error:
        raise DataError(f"{root} cannot be read ({error.strerror}). Check the path and its rights.") from error


def _from_list(listed: Path, num_classes: int) -> tuple[str, ...]:
    names = tuple(line.strip() for line in listed.read_text("utf-8").splitlines() if line.strip())
    if len(names) != num_classes or len(set(names)) != num_classes:
        raise DataError(
            f"{listed} names {len(set(names))} different classes on {len(names)} lines, "
            f"but the model has {num_classes}. Write the name of each class once, in the order that all servers use."
        )
    # A name must stay inside the folder.
    if odd := [name for name in names if name != Path(name).name or name in (".", "..")]:
        raise DataError(f"{listed} names {odd[0]!r}, which is no name of a sub-folder. Use names without slashes.")
    return names


def _from_folders(root: Path, num_classes: int) -> tuple[str, ...]:
    names = sorted(entry.name for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    # A server that lacks a class would give all later ones the wrong label.
    if len(names) != num_classes:
        raise DataError(
            f"{root} has {len(names)} sub-folders, but the model has {num_classes} classes. Make one for each class, "
            f"empty if need be, or name all classes in order, one on each line, in {CLASS_LIST}."
        )
    return tuple(names)
