"""`hatdfed.load`: the results in a folder, of a run, a comparison or a sweep, without playing anything."""

from __future__ import annotations

from pathlib import Path

from hatdfed.runs.records.folder import RunFolder
from hatdfed.runs.result import RunResult
from hatdfed.runs.statistics import Comparison
from hatdfed.sweeps.catalogue import read_run
from hatdfed.sweeps.compare import summarise_comparison
from hatdfed.sweeps.documents import find_runs, is_run, is_sweep, read_comparison_document, read_sweep_document
from hatdfed.sweeps.sweep import SweepResult


def load(folder: Path | str) -> RunResult | Comparison | SweepResult:
    """Read the results in `folder`; what is not finished is refused.

    >>> load("no-such-folder")
    Traceback (most recent call last):
        ...
    hatdfed.errors.RunFolderError: There is no folder no-such-folder. Check the path.
    """
    path = Path(folder)
    if is_sweep(path):
        document = read_sweep_document(path)
        return SweepResult(path, document["rows"], document["failed"], document.get("search"))
    return read_run(RunFolder.open(path)) if is_run(path) else _load_comparison(path)


def _load_comparison(folder: Path) -> Comparison:
    """A comparison from the folders of its runs, in the order of its results.json if there is one."""
    results = [read_run(RunFolder.open(path)) for path in find_runs(folder)]
    said = read_comparison_document(folder) or {"methods": []}
    order = [row["method"] for row in said["methods"]]
    results.sort(key=lambda result: (_place(result.config.method, order), result.config.seed))
    reference = said.get("reference")
    known = {result.config.method for result in results}
    return summarise_comparison(results, reference if reference in known else None, said.get("target_accuracy"))


def _place(method: str, order: list[str]) -> tuple[int, str]:
    return (order.index(method) if method in order else len(order), method)
