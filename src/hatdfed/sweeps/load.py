"""`hatdfed.load`: the results in a folder, of a run, a comparison or a sweep, without playing anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hatdfed.errors import RunFolderError
from hatdfed.runs.records.folder import RunFolder
from hatdfed.runs.result import RunResult
from hatdfed.runs.statistics import Comparison
from hatdfed.sweeps.catalogue import read_run
from hatdfed.sweeps.compare import summarise_comparison
from hatdfed.sweeps.sweep import SweepResult


def load(folder: Path | str) -> RunResult | Comparison | SweepResult:
    """Read the results in `folder`; what is not finished is refused.

    >>> load("no-such-folder")
    Traceback (most recent call last):
        ...
    hatdfed.errors.RunFolderError: There is no folder no-such-folder. Check the path.
    """
    path = Path(folder)
    if not path.is_dir():
        raise RunFolderError(f"There is no folder {path}. Check the path.")
    if (path / "sweep.yaml").is_file():
        return load_sweep(path)
    if (path / "config.yaml").is_file():
        return read_run(RunFolder.open(path))
    return load_comparison(path)


def load_sweep(folder: Path) -> SweepResult:
    """A sweep from its summary.json."""
    document = _read_json(folder / "summary.json", "The sweep", "Play it to its end: hatdfed sweep")
    rows, failed = document.get("rows"), document.get("failed")
    if not isinstance(rows, list) or not isinstance(failed, dict):
        raise RunFolderError(f"{folder / 'summary.json'} is no table of a sweep. Play the sweep again.")
    return SweepResult(folder, rows, failed)


def load_comparison(folder: Path) -> Comparison:
    """A comparison from the folders of its runs, which are directly in its own."""
    found = sorted(path for path in folder.iterdir() if (path / "config.yaml").is_file())
    if not found:
        raise RunFolderError(
            f"{folder} holds neither a run (config.yaml) nor a comparison (folders of runs) nor a sweep (sweep.yaml). "
            "Check the path."
        )
    results = [read_run(RunFolder.open(path)) for path in found]
    said: dict[str, Any] = {}
    if (folder / "results.json").is_file():
        said = _read_json(folder / "results.json", "The comparison", "Repeat the command that made it")
    order = [str(row.get("method")) for row in said.get("methods", []) if isinstance(row, dict)]
    results.sort(key=lambda result: (_place(result.config.method, order), result.config.seed))
    reference = said.get("reference")
    known = {result.config.method for result in results}
    return summarise_comparison(results, reference if reference in known else None, said.get("target_accuracy"))


def _place(method: str, order: list[str]) -> tuple[int, str]:
    return (order.index(method) if method in order else len(order), method)


def _read_json(path: Path, what: str, remedy: str) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunFolderError(f"{what} in {path.parent} is not finished: there is no {path.name}. {remedy}.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise RunFolderError(f"{path} cannot be read ({error}). {remedy}.") from None
    if not isinstance(content, dict):
        raise RunFolderError(f"{path} holds no results. {remedy}.")
    return content
