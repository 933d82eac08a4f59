"""What the folder of a comparison or a sweep says about it; read without torch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hatdfed.errors import RunFolderError
from hatdfed.runs.records.folder import refuse_missing_folder


def is_sweep(folder: Path) -> bool:
    """Whether a sweep is in this folder, finished or not."""
    return (folder / "sweep.yaml").is_file()


def is_run(folder: Path) -> bool:
    """Whether a run is in this folder, finished or not."""
    return (folder / "config.yaml").is_file()


def _is_comparison(folder: Path) -> bool:
    """Whether a finished comparison is in this folder."""
    return (folder / "results.json").is_file() and not is_run(folder)


def find_runs(folder: Path) -> list[Path]:
    """The folders of a comparison's runs, which are directly in its own."""
    refuse_missing_folder(folder)
    if collections := sorted(path for path in folder.iterdir() if is_sweep(path) or _is_comparison(path)):
        raise RunFolderError(
            f"{folder} holds several runs, comparisons or sweeps. Name one of them, such as {collections[0]}."
        )
    found = sorted(path for path in folder.iterdir() if is_run(path))
    if not found:
        raise RunFolderError(
            f"{folder} holds neither a run (config.yaml) nor a comparison (folders of runs) nor a sweep (sweep.yaml). "
            "Check the path."
        )
    return found


def find_sweep_runs(folder: Path) -> list[Path]:
    """The folders of a sweep's runs that were begun."""
    return sorted(path for path in (folder / "runs").glob("*") if is_run(path))


def is_finished_sweep(folder: Path) -> bool:
    """Whether a sweep was played to its end, so that its table was written."""
    return (folder / "summary.json").exists()


def find_compared_runs(folder: Path, methods: Iterable[Mapping[str, Any]]) -> list[Path]:
    """The folders of the runs that a comparison's rows are about; all that there are, where one of them is missing."""
    found = {path.name: path for path in find_runs(folder)}
    wanted = [f"{row['method']}-seed{seed}" for row in methods for seed in row.get("seeds", ())]
    return [found[name] for name in wanted] if wanted and found.keys() >= set(wanted) else list(found.values())


def read_sweep_document(folder: Path) -> dict[str, Any]:
    """summary.json of a sweep, with its rows and the runs that failed."""
    document = _read(folder / "summary.json")
    if document is None:
        raise RunFolderError(
            f"The sweep in {folder} is not finished: there is no summary.json. Repeat the command that started it, or: "
            f"hatdfed sweep {folder / 'sweep.yaml'} --out {folder}"
        )
    rows, failed = document.get("rows"), document.get("failed")
    is_table = isinstance(rows, list) and all(isinstance(row, Mapping) for row in rows)
    if not is_table or not isinstance(failed, dict):
        raise RunFolderError(f"{folder / 'summary.json'} is no table of a sweep. Repeat the command that started it.")
    if not _is_search(document.get("search")):
        raise RunFolderError(
            f"What {folder / 'summary.json'} says of the search cannot be read. Repeat the command that started it."
        )
    return document


def _is_search(search: object) -> bool:
    """Whether it has the shape of what `search_outcome` writes; a sweep that is no search has none."""
    if search is None:
        return True
    if not isinstance(search, Mapping) or not isinstance(search.get("importance"), Mapping):
        return False
    importance, pruning = search["importance"], search.get("pruning")
    if not isinstance(sought := search.get("objectives"), list) or not all(isinstance(name, str) for name in sought):
        return False
    objectives, notes = importance.get("objectives"), importance.get("notes")
    return (
        isinstance(objectives, Mapping)
        and isinstance(notes, list)
        and (pruning is None or _is_pruning(pruning))
        and all(_is_importance(found) for found in objectives.values())
    )


def _is_pruning(found: object) -> bool:
    counts = ("pruned_trials", "rounds", "rounds_saved")
    return isinstance(found, Mapping) and all(isinstance(found.get(name), int) for name in counts)


def _is_importance(found: object) -> bool:
    return (
        isinstance(found, Mapping)
        and isinstance(found.get("shares"), Mapping)
        and all(isinstance(share, float | int) for share in found["shares"].values())
        and isinstance(found.get("explained"), float | int | None)
    )


def read_comparison_document(folder: Path) -> dict[str, Any] | None:
    """results.json of a comparison; None while it is not finished."""
    refuse_missing_folder(folder)
    document = _read(folder / "results.json")
    if document is None:
        return None
    rows = document.get("methods")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, Mapping) and "method" in row for row in rows):
        raise RunFolderError(f"{folder / 'results.json'} is no comparison. Repeat the command that made it.")
    return document


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise RunFolderError(f"{path} cannot be read ({error}). Repeat the command that made it.") from None
    if not isinstance(content, dict):
        raise RunFolderError(f"{path} holds no results. Repeat the command that made it.")
    return content
