"""`hatdfed.load`: the results in a folder, of a run, a comparison or a sweep, without playing anything."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hatdfed.errors import RunFolderError
from hatdfed.runs.records.folder import RunFolder
from hatdfed.runs.result import RunResult
from hatdfed.runs.statistics import Comparison
from hatdfed.setup.run_identity import Difference, run_difference
from hatdfed.sweeps.catalogue import read_run
from hatdfed.sweeps.compare import name_compared_run, summarise_comparison
from hatdfed.sweeps.documents import find_compared_runs, is_run, is_sweep, read_comparison_document, read_sweep_document
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
    """A comparison from the folders of its runs: those of its results.json, in that order, if there is one."""
    said = read_comparison_document(folder) or {"methods": []}
    runs = [RunFolder.open(path) for path in find_compared_runs(folder, said["methods"])]
    _refuse_unfinished(folder, runs)
    results = [read_run(run) for run in runs]
    _refuse_several_comparisons(folder, results)
    order = [row["method"] for row in said["methods"]]
    results.sort(key=lambda result: (_place(result.config.method, order), result.config.seed))
    reference = said.get("reference")
    known = {result.config.method for result in results}
    return summarise_comparison(results, reference if reference in known else None, said.get("target_accuracy"))


def _refuse_unfinished(folder: Path, runs: Sequence[RunFolder]) -> None:
    """A comparison goes on as a whole; runs that only share a folder are refused one by one."""
    left = [run.path.name for run in runs if run.read_results() is None]
    if left and all(run.path.name == name_compared_run(run.config()) for run in runs):
        raise RunFolderError(
            f"The comparison in {folder} is not finished: {len(left)} of {len(runs)} runs are not at their end, such "
            f"as {left[0]}. Repeat the `hatdfed compare` command with --out {folder}."
        )


def _refuse_several_comparisons(folder: Path, results: Sequence[RunResult]) -> None:
    """Means over runs on other data, or with other settings but for the seed, would say nothing."""
    seen: dict[tuple[str, int], RunResult] = {}
    first: dict[str, RunResult] = {}
    for result in results:
        config = result.config
        other = first.setdefault(config.method, result)
        difference = run_difference(other.config.model_copy(update={"seed": config.seed}), config)
        if config.dataset != results[0].config.dataset:
            other, difference = results[0], Difference("dataset", results[0].config.dataset, config.dataset)
        if difference is not None:
            raise _no_comparison(folder, other, result, f"the setting {difference.key}")
        twin = seen.setdefault((config.method, config.seed), result)
        if twin is not result:
            raise _no_comparison(folder, twin, result, "nothing")


def _no_comparison(folder: Path, one: RunResult, other: RunResult, difference: str) -> RunFolderError:
    return RunFolderError(
        f"{folder} holds runs that are no comparison: {_name(one)} and {_name(other)} differ in {difference}. Load "
        "the runs one by one; `hatdfed report` shows them side by side."
    )


def _name(result: RunResult) -> str:
    return "a run" if result.folder is None else result.folder.name


def _place(method: str, order: list[str]) -> tuple[int, str]:
    return (order.index(method) if method in order else len(order), method)
