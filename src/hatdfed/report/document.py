"""What a report holds: every run with its figures, settings and machine, and a comparison where there are several."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hatdfed.errors import HatdfedError, RunFolderError
from hatdfed.report.comparison_figures import write_comparison_figures
from hatdfed.report.drawn_methods import drawn_methods
from hatdfed.report.groups import Row, Run, comparison_rows, is_complete
from hatdfed.report.regret_figure import has_regret, regret_figure
from hatdfed.report.run_data import RunData, run_data
from hatdfed.report.run_figures import write_run_figures
from hatdfed.report.style import save
from hatdfed.report.words import count, joules, percent
from hatdfed.runs.recorder import RunResult
from hatdfed.runs.records.cleaning import flat_settings, number, text, texts
from hatdfed.runs.records.folder import RunFolder
from hatdfed.runs.records.search import run_folders
from hatdfed.runs.records.small_files import read_document
from hatdfed.runs.records.tables import read_tables
from hatdfed.runs.round_row import JOULES, ROUND_COLUMNS, joules_of, results_over
from hatdfed.runs.summary import JOULES_PER_MJ

MOST_RUNS = 300
_MOST_SERVERS = 60  # that are listed one by one
_MEANING = {
    "accuracy": "Accuracy over rounds",
    "energy": "Energy by cause",
    "accuracy_vs_energy": "Accuracy against energy",
    "topology": "Links of the last round",
    "link_use": "How often each link was drawn",
    "regret": "Regret over rounds",
}


class Picture(NamedTuple):
    """A drawn file, and what it shows in words."""

    path: Path
    words: str


class Figure(NamedTuple):
    """One number of a run: its name, its value as in results.json, and how it is written."""

    name: str
    value: float | None
    write: Callable[[float | None], str]


class RunPart(NamedTuple):
    """One run of a report."""

    anchor: str
    name: str
    title: str
    is_finished: bool
    state: str
    figures: list[Figure]
    by_server: list[float]  # test accuracy, percent; none where servers are many
    notes: list[str]
    pictures: list[Picture]
    settings: list[tuple[str, str]]
    environment: list[tuple[str, str]]


class Document(NamedTuple):
    """A whole report."""

    title: str
    rows: list[Row]
    comparison_pictures: list[Picture]
    runs: list[RunPart]
    left_out: list[str]  # sentences: which runs are not in it, and why


def gather(paths: Sequence[Path], pictures: Path, on_run: Callable[[str], None] | None = None) -> Document:
    """Read all runs under these folders and draw their pictures into `pictures`; a run that cannot be read is named."""
    folders, left_out = _folders(paths)
    parts, compared, drawn = [], [], {}
    for index, folder in enumerate(folders):
        if on_run is not None:
            on_run(folder.name)
        result = _read(folder)
        if isinstance(result, str):
            left_out.append(result)
            continue
        run = run_data(result) if result.rounds else None
        drawings = _draw(run, pictures / f"run-{index + 1}") if run is not None else []
        parts.append(_part(folder, result, index, drawings))
        if run is not None and is_complete(result.summary):
            compared.append(Run(str(folder), result.config.model_dump(mode="json"), result.summary))
            drawn[str(folder)] = run
    if not parts:
        raise RunFolderError(left_out[0] if len(folders) == 1 else f"No run can be read. The first: {left_out[0]}")
    rows = comparison_rows(compared) if len(compared) > 1 else []
    many = _draw_comparison(rows, drawn, pictures / "comparison") if len(rows) > 1 else []
    title = parts[0].title if len(parts) == 1 else f"{len(parts)} runs"
    return Document(title, rows, many, parts, left_out)


def _folders(paths: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """Run folders once each, and a sentence if there are more than a report can hold."""
    found: dict[Path, None] = {}
    for path in paths:
        inside = run_folders(path, most=MOST_RUNS + 1)
        if not inside:
            raise RunFolderError(f"There is no run in {path}. Name a run folder, or one that has run folders inside.")
        found |= dict.fromkeys(inside)
    is_cut = len(found) > MOST_RUNS
    return list(found)[:MOST_RUNS], [f"Only the first {MOST_RUNS} runs are in this report."] if is_cut else []


def _read(path: Path) -> RunResult | str:
    """A run, or a sentence why it cannot be read."""
    try:
        return _result(RunFolder.open(path))
    except HatdfedError as error:
        return text(f"{path.name} is left out: {error}", 500)


def _result(folder: RunFolder) -> RunResult:
    """A run as far as it is; its summary is empty until it is finished."""
    config = folder.config()
    results = folder.read_final(config.rounds) or {}
    results.pop("config", None)
    return RunResult(config=config, summary=results, folder=folder.path, **read_tables(folder, config.servers))


def _draw(run: RunData, folder: Path) -> list[Picture]:
    files = write_run_figures(run, folder)
    (method,) = drawn_methods({run.label: [run]})
    if has_regret(method):
        files.append(save(regret_figure([method]), folder / "regret.png"))
    return [Picture(file, f"{_MEANING[file.stem]}: {run.title}") for file in files]


def _draw_comparison(rows: Sequence[Row], drawn: Mapping[str, RunData], folder: Path) -> list[Picture]:
    """What saw the test set is listed, but not drawn (D3)."""
    fair = {row.label: [drawn[run.name] for run in sorted(row.runs, key=_seed)] for row in rows if not row.leaks_test}
    files = write_comparison_figures(fair, folder) if fair else []
    return [Picture(file, f"{_MEANING[file.stem]}: {', '.join(fair)}") for file in files]


def _seed(run: Run) -> int:
    return int(run.settings["seed"])


def _part(folder: Path, result: RunResult, index: int, pictures: list[Picture]) -> RunPart:
    config, summary = result.config, result.summary
    played = len(result.rounds)
    state = f"Finished after {played} rounds." if summary else f"Not finished: {played} of {config.rounds} rounds."
    by_server = summary.get("accuracy_by_server")
    listed = by_server if isinstance(by_server, list) and len(by_server) <= _MOST_SERVERS else []
    known = [number(value) for value in listed]
    return RunPart(
        anchor=f"run-{index + 1}",
        name=text(str(folder)),
        title=f"{config.method} on {config.dataset}, {config.servers} servers, seed {config.seed}",
        is_finished=bool(summary),
        state=state,
        figures=_figures(summary) if summary else _progress(result.rounds),
        by_server=[value for value in known if value is not None],
        notes=texts(summary.get("notes"), 500),
        pictures=pictures,
        settings=flat_settings(config.model_dump(mode="json")),
        environment=flat_settings(read_document(folder, "environment.json")),
    )


def _figures(summary: Mapping[str, Any]) -> list[Figure]:
    by_cause = summary.get("energy_by_cause_mj")
    causes = by_cause if isinstance(by_cause, Mapping) else {}
    accuracies = {
        "Test accuracy, mean over servers": "avg_accuracy",
        "its standard deviation over servers": "std_accuracy",
        "best server": "best_accuracy",
        "worst server": "worst_accuracy",
        "Accuracy on own labels": "personal_accuracy",
    }
    found = [Figure(name, number(summary.get(key)), percent) for name, key in accuracies.items()]
    found.append(Figure("Energy", _joules(summary.get("total_energy_mj")), joules))
    for cause, name in JOULES.items():
        found.append(Figure(f"of it on {ROUND_COLUMNS[name].label}", _joules(causes.get(cause)), joules))
    found.append(Figure("Links in a round", number(summary.get("links_per_round")), count))
    return [*found, *_round_figures({name: summary.get(name) for name in ROUND_COLUMNS})]


def _round_figures(values: Mapping[str, Any]) -> list[Figure]:
    """What a run comes to in its rounds, of the figures that results.json has under the name of a column."""
    shown = {name: column for name, column in ROUND_COLUMNS.items() if column.in_results}
    return [Figure(_capital(column.label), number(values.get(name)), column.text) for name, column in shown.items()]


def _capital(label: str) -> str:
    return label[:1].upper() + label[1:]


def _progress(rounds: Sequence[Mapping[str, Any]]) -> list[Figure]:
    """What can be said before the test data are read."""
    if not rounds:
        return []
    spent = math.fsum(map(joules_of, rounds))
    accuracy = Figure("Validation accuracy so far, mean over servers", number(rounds[-1]["avg_accuracy"]), percent)
    return [accuracy, Figure("Energy so far", number(spent), joules), *_round_figures(results_over(rounds))]


def _joules(megajoules: Any) -> float | None:
    value = number(megajoules)
    return None if value is None else value * JOULES_PER_MJ
