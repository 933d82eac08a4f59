"""Reports: a comparison of each world where there are several runs, then every run with its numbers, and settings.

`make_document` reads the runs and draws their pictures; the document is rendered as one self-contained HTML page or as
Markdown with pictures beside it. A report of few runs has all figures of each. One of many is a summary with one figure
of each run in an appendix, so that it can be printed and sent. It names no folders of the machine that wrote it.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from PIL import Image

from hatdfed.core.energy.energy_model import PAPER_CAUSES
from hatdfed.errors import HatdfedError, RunFolderError
from hatdfed.report.comparison_figures import draw_comparison_figures
from hatdfed.report.formatting import FILTERS, count, difference, joules, percent
from hatdfed.report.groups import FRONT, ComparisonRow, FinishedRun, is_complete
from hatdfed.report.regret_figure import has_regret, regret_figure
from hatdfed.report.run_data import RunData, read_last_validation, run_data
from hatdfed.report.run_figures import accuracy_figure, draw_run_figures
from hatdfed.report.style import FigureStyle, StyledFigure, save_figures, style_methods
from hatdfed.report.worlds import ComparedWorld, StoredOrder, compare_worlds
from hatdfed.runs.measured_energy import name_energy
from hatdfed.runs.records.cleaning import flat_settings, number, text, texts
from hatdfed.runs.records.folder import RunFolder
from hatdfed.runs.records.search import run_folders
from hatdfed.runs.records.small_files import read_document
from hatdfed.runs.records.tables import read_tables
from hatdfed.runs.result import RunResult
from hatdfed.runs.round_row import JOULES, ROUND_COLUMNS, joules_of, results_over
from hatdfed.runs.summary import JOULES_PER_MJ, measured_on
from hatdfed.runs.trust_history import find_events, format_event
from hatdfed.version import __version__

MOST_RUNS = 300
MOST_DETAILED = 4  # runs, with all of their figures
MOST_COMPARED = 12  # worlds, with figures of their comparison
MOST_DRAWN = 24  # runs, with a figure of their accuracy; more are in tables only
# Figures are printed at these widths on A4 paper, so that their words are as large as those of the text.
_WIDE, _HALF = FigureStyle(width=7.2, font_size=9), FigureStyle(width=4.2, font_size=9)
_COLOURS = 256  # of a picture, at a third of the size
_BRIEF = ("Accuracy", "SD of servers", "Best server", "Worst server", "Energy", "Links")  # in the table of all runs
_MOST_SERVERS = 60  # that are listed one by one
_MOST_EVENTS = 100  # of trust, the last ones
_CAPTIONS = {
    "accuracy": "Accuracy over rounds",
    "energy": "Energy by cause",
    "accuracy_vs_energy": "Accuracy against energy",
    "accuracy_vs_time": "Accuracy against simulated time",
    "topology": "Links of the last round",
    "confusion": "Which classes are taken for which",
    "link_use": "How often each link was drawn",
    "regret": "Regret over rounds",
    "verdicts": "Verdicts of servers on each other",
    "groups": "Groups of servers over rounds",
}


class Picture(NamedTuple):
    """The file of a figure, and its description."""

    path: Path
    words: str


class ReportNumber(NamedTuple):
    """One number of a run: its name, its value as in results.json, and how it is formatted."""

    name: str
    value: float | None
    write: Callable[[float | None], str]
    short: str = ""  # its heading in the table of all runs, where it is in there


class RunPart(NamedTuple):
    """One run of a report."""

    anchor: str
    name: str
    title: str
    is_finished: bool
    state: str
    figures: list[ReportNumber]
    accuracy_name: str  # says what the accuracies of a finished run were measured on
    by_server: list[float]  # accuracy, percent; none where servers are many
    notes: list[str]
    pictures: list[Picture]
    trust_events: list[tuple[str, str, str, str]]  # round, servers, what changed, and why
    settings: list[tuple[str, str]]  # that not all runs share
    environment: list[tuple[str, str]]  # likewise


class ComparisonPart(NamedTuple):
    """The comparison of the runs of one world."""

    anchor: str
    title: str
    world: ComparedWorld
    pictures: list[Picture]


class Document(NamedTuple):
    """A whole report."""

    title: str
    comparisons: list[ComparisonPart]
    runs: list[RunPart]
    left_out: list[str]  # sentences about runs and figures that are left out
    settings: list[tuple[str, str]]  # of all runs
    environment: list[tuple[str, str]]

    @property
    def is_summary(self) -> bool:
        """Whether the runs are an appendix."""
        return len(self.runs) > MOST_DETAILED

    @property
    def brief_names(self) -> Sequence[str]:
        """The headings of numbers in the table of all runs."""
        return _BRIEF


def make_document(paths: Sequence[Path], pictures: Path, on_run: Callable[[str], None] | None = None) -> Document:
    """Read all runs under these folders and draw their figures into `pictures`; unreadable runs are listed."""
    folders, left_out = _find_runs(paths)
    names = name_folders(folders)
    order = StoredOrder()
    parts, places, compared, drawn = [], [], [], {}
    for index, folder in enumerate(folders):
        if on_run is not None:
            on_run(folder.name)
        result = _read_or_explain(folder)
        if isinstance(result, str):
            left_out.append(result)
            continue
        run = run_data(result) if result.rounds else None
        drawings = _draw(run, pictures / f"run-{index + 1}", len(folders)) if run is not None else []
        parts.append(_make_part(folder, names[index], result, index, drawings))
        places.append(order.find_place(folder, result.config.method))
        is_whole = is_complete(result.summary) and "stopped_by" not in result.summary
        if run is not None and is_whole and measured_on(result.summary) == "test":
            settings, validation = result.config.model_dump(mode="json"), read_last_validation(run)
            compared.append(FinishedRun(str(folder), settings, result.summary, validation, folder))
            drawn[str(folder)] = run
    if not parts:
        raise RunFolderError(left_out[0] if len(folders) == 1 else f"No run can be read. The first: {left_out[0]}")
    compared.sort(key=lambda run: order.find_place(Path(run.name), run.settings["method"]))
    parts = [parts[index] for index in sorted(range(len(parts)), key=places.__getitem__)]
    comparisons = _make_comparisons(compared, drawn, order, pictures)
    left_out += [hide_folders(trouble) for trouble in order.troubles]
    title = parts[0].title if len(parts) == 1 else f"{len(parts)} runs"
    if len(parts) > MOST_DETAILED:
        left_out.append(_describe_detail(len(parts)))
    if sum(len(part.world.rows) > 1 for part in comparisons) > MOST_COMPARED:
        left_out.append(f"Only the comparisons of the first {MOST_COMPARED} worlds have figures.")
    return _list_shared_once(Document(title, comparisons, parts, left_out, [], []))


def _make_comparisons(
    runs: Sequence[FinishedRun], drawn: Mapping[str, RunData], order: StoredOrder, pictures: Path
) -> list[ComparisonPart]:
    """Make one comparison for each world, with figures where there is more than one row."""
    worlds = compare_worlds(runs, order) if len(runs) > 1 else []
    shown = [world.name for world in worlds if len(world.rows) > 1][:MOST_COMPARED]
    parts = []
    for index, world in enumerate(worlds):
        anchor = f"comparison-{index + 1}" if index else "comparison"
        figures = _draw_comparison(world.rows, drawn, pictures / anchor) if world.name in shown else []
        parts.append(ComparisonPart(anchor, f"Comparison: {world.name}", world, figures))
    return parts


def name_folders(folders: Sequence[Path]) -> list[str]:
    """Names for run folders that are as short as they can be and say nothing about the machine.

    >>> name_folders([Path("/home/me/a/rnd-seed0"), Path("/home/me/b/rnd-seed0")])
    ['a/rnd-seed0', 'b/rnd-seed0']
    """
    whole = [folder.absolute().parts for folder in folders]
    kept = next(
        (count for count in range(1, 9) if len({parts[-count:] for parts in whole}) == len(whole)),
        9,
    )
    return [text("/".join(parts[-kept:])) for parts in whole]


def _describe_detail(num_runs: int) -> str:
    shown = "Each run is shown by its accuracy" if num_runs <= MOST_DRAWN else "Runs are in tables only"
    return f"{shown}: a report of at most {MOST_DETAILED} runs has all figures of each."


def _list_shared_once(document: Document) -> Document:
    """Move what all runs share from the runs to the document."""
    settings = _find_shared([run.settings for run in document.runs])
    environment = _find_shared([run.environment for run in document.runs])
    runs = [
        run._replace(
            settings=[line for line in run.settings if line not in settings],
            environment=[line for line in run.environment if line not in environment],
        )
        for run in document.runs
    ]
    return document._replace(runs=runs, settings=settings, environment=environment)


def _find_shared(lists: Sequence[Sequence[tuple[str, str]]]) -> list[tuple[str, str]]:
    others = [set(one) for one in lists[1:]]
    return [line for line in lists[0] if all(line in other for other in others)]


def hide_folders(words: str) -> str:
    """Shorten absolute paths to their last part: a report is sent to others.

    >>> hide_folders("The records in /home/me/runs/a cannot be read."), hide_folders("https://a.org/b/c")
    ('The records in …/a cannot be read.', 'https://a.org/b/c')
    """
    if words.startswith("/"):
        return f"…/{Path(words).name}"  # all of it is one path, which may have spaces
    return re.sub(r"(?<![\w~.:/…-])/(?:[^\s/'\"]+/)+", "…/", words)


def _hide_in(lines: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(name, hide_folders(value)) for name, value in lines]


def _find_runs(paths: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """Find the run folders, each once, and explain if there are more than a report can hold."""
    found: dict[Path, None] = {}
    for path in paths:
        inside = run_folders(path, most=MOST_RUNS + 1)
        if not inside:
            raise RunFolderError(f"There is no run in {path}. Name a run folder, or one that has run folders inside.")
        found |= dict.fromkeys(inside)
    is_cut = len(found) > MOST_RUNS
    return list(found)[:MOST_RUNS], [f"Only the first {MOST_RUNS} runs are in this report."] if is_cut else []


def _read_or_explain(path: Path) -> RunResult | str:
    """Read a run, or explain in a sentence why it cannot be read."""
    try:
        return _read_result(RunFolder.open(path))
    except HatdfedError as error:
        why = str(error).replace(str(path), path.name)
        return text(f"{path.name} is left out: {hide_folders(why)}", 500)


def _read_result(folder: RunFolder) -> RunResult:
    """Read a run, which may be unfinished; its summary is then empty."""
    config = folder.config()
    tables = read_tables(folder, config.servers)
    results = folder.read_ended(config.rounds, len(tables["rounds"])) or {}
    results.pop("config", None)
    return RunResult(config=config, summary=results, folder=folder.path, **tables)


def _draw(run: RunData, folder: Path, num_runs: int) -> list[Picture]:
    """Draw all figures of a run, or, where there are many, its accuracy or nothing."""
    if num_runs > MOST_DRAWN:
        return []
    if num_runs > MOST_DETAILED:
        figures = {"accuracy": accuracy_figure(run, _HALF)}
    else:
        figures = draw_run_figures(run, _HALF)
        (method,) = style_methods({run.label: [run]})
        if has_regret(method):
            figures["regret"] = regret_figure([method], _HALF)
    files = _save_small(figures, folder)
    return [Picture(file, f"{_CAPTIONS[file.stem]}: {run.title}") for file in files]


def _draw_comparison(rows: Sequence[ComparisonRow], drawn: Mapping[str, RunData], folder: Path) -> list[Picture]:
    """Draw the comparison of one world without runs that saw the test set (D3), which are only listed."""
    shown = [row for row in rows if not row.leaks_test]
    fair = {row.label: [drawn[run.name] for run in sorted(row.runs, key=_seed)] for row in shown}
    files = _save_small(draw_comparison_figures(fair, _WIDE), folder) if fair else []
    return [Picture(file, f"{_CAPTIONS[file.stem]}: {', '.join(fair)}") for file in files]


def _save_small(figures: Mapping[str, StyledFigure], folder: Path) -> list[Path]:
    """Save figures with few colours, which takes less than half the room."""
    files = save_figures(figures, folder)
    for file in files:
        with Image.open(file) as picture:
            few = picture.convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE)
        few.save(file, optimize=True)
    return files


def _seed(run: FinishedRun) -> int:
    return int(run.settings["seed"])


def _make_part(folder: Path, name: str, result: RunResult, index: int, pictures: list[Picture]) -> RunPart:
    config, summary = result.config, result.summary
    played = len(result.rounds)
    state = f"Finished after {played} rounds." if summary else f"Not finished: {played} of {config.rounds} rounds."
    if "stopped_by" in summary:
        state = f"Ended by {text(summary['stopped_by'], 60)} after {played} of {config.rounds} rounds."
    by_server = summary.get("accuracy_by_server")
    listed = by_server if isinstance(by_server, list) and len(by_server) <= _MOST_SERVERS else []
    known = [number(value) for value in listed]
    figures = _make_numbers(summary) if summary else _make_progress_numbers(result.rounds)
    return RunPart(
        anchor=f"run-{index + 1}",
        name=name,
        title=f"{config.method} on {config.dataset}, {config.servers} servers, seed {config.seed}",
        is_finished=bool(summary),
        state=state,
        figures=[figure for figure in figures if figure.value is not None],
        accuracy_name=_name_accuracy(summary),
        by_server=[value for value in known if value is not None],
        notes=[hide_folders(note) for note in texts(summary.get("notes"), 500)],
        pictures=pictures,
        trust_events=_list_trust_events(result),
        settings=_hide_in(flat_settings(config.model_dump(mode="json"))),
        environment=_hide_in(flat_settings(read_document(folder, "environment.json"))),
    )


def _list_trust_events(result: RunResult) -> list[tuple[str, str, str, str]]:
    events = [] if result.trust is None else list(find_events(result.trust.changes))
    return [format_event(event) for event in events[-_MOST_EVENTS:]]


def _name_accuracy(summary: Mapping[str, Any]) -> str:
    return "Test accuracy" if measured_on(summary) == "test" else "Validation accuracy"


def _make_numbers(summary: Mapping[str, Any]) -> list[ReportNumber]:
    by_cause = summary.get("energy_by_cause_mj")
    causes = by_cause if isinstance(by_cause, Mapping) else {}
    accuracies = {
        "avg_accuracy": (f"{_name_accuracy(summary)}, mean over servers", _BRIEF[0]),
        "std_accuracy": ("its standard deviation over servers", _BRIEF[1]),
        "best_accuracy": ("best server", _BRIEF[2]),
        "worst_accuracy": ("worst server", _BRIEF[3]),
        "personal_accuracy": ("Accuracy on own labels", ""),
    }
    found = [ReportNumber(name, number(summary.get(key)), percent, short) for key, (name, short) in accuracies.items()]
    measured = summary.get("measured_energy")
    source = name_energy(
        text(summary.get("energy_source") or "modelled", 20), measured if isinstance(measured, Mapping) else None
    )
    total = _convert_to_joules(summary.get("total_energy_mj"))
    found.append(ReportNumber(f"Energy, {source}", total, joules, _BRIEF[4]))
    for cause, name in JOULES.items():
        if cause not in PAPER_CAUSES and not causes.get(cause):
            continue
        found.append(
            ReportNumber(f"of it on {ROUND_COLUMNS[name].label}", _convert_to_joules(causes.get(cause)), joules)
        )
    found.append(ReportNumber("Links in a round", number(summary.get("links_per_round")), count, _BRIEF[5]))
    return [*found, *_make_round_numbers({name: summary.get(name) for name in ROUND_COLUMNS})]


def _make_round_numbers(values: Mapping[str, Any]) -> list[ReportNumber]:
    """Make the numbers that results.json has under the name of a round's column."""
    shown = {name: column for name, column in ROUND_COLUMNS.items() if column.in_results}
    return [
        ReportNumber(_capitalise(column.label), number(values.get(name)), column.text) for name, column in shown.items()
    ]


def _capitalise(label: str) -> str:
    return label[:1].upper() + label[1:]


def _make_progress_numbers(rounds: Sequence[Mapping[str, Any]]) -> list[ReportNumber]:
    """Make the numbers of an unfinished run, which has no test accuracy yet."""
    if not rounds:
        return []
    spent = math.fsum(map(joules_of, rounds))
    accuracy = ReportNumber(
        "Validation accuracy so far, mean over servers", number(rounds[-1]["avg_accuracy"]), percent
    )
    return [accuracy, ReportNumber("Energy so far", number(spent), joules), *_make_round_numbers(results_over(rounds))]


def _convert_to_joules(megajoules: Any) -> float | None:
    value = number(megajoules)
    return None if value is None else value * JOULES_PER_MJ


def render_html(document: Document) -> str:
    """Render one self-contained HTML page with styles and pictures, without scripts."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(FILTERS, format_value=format_value, data_address=_encode_picture, brief=list_brief)
    return environment.get_template("report.html").render(document=document, version=__version__, made=_now())


def render_markdown(document: Document, pictures: Path) -> str:
    """Render Markdown; paths of pictures are relative to the parent folder of `pictures`."""
    lines = [f"# {_escape_markdown(document.title)}", f"hatdfed {__version__}, written {_now()}."]
    lines += [f"> {_escape_markdown(sentence)}" for sentence in document.left_out]
    for part in document.comparisons:
        lines += [f"## {_escape_markdown(part.title)}", _render_comparison(part.world)]
        lines += _render_pictures(part.pictures, pictures)
    if document.is_summary:
        lines += ["## Runs", _render_runs(document.runs)]
    for run in document.runs:
        lines += _render_run(run, pictures)
    lines += ["## Settings", *_render_settings(document.settings, document.environment)]
    return "\n\n".join(line for line in lines if line) + "\n"


def list_brief(run: RunPart) -> list[ReportNumber | None]:
    """The numbers of a run in the table of all runs; None where it has none, as an unfinished run."""
    known = {figure.short: figure for figure in run.figures}
    return [known.get(short) for short in _BRIEF]


def format_value(figure: ReportNumber) -> str:
    """Format a number with its unit."""
    return figure.write(figure.value)


def _now() -> str:
    return datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")


def _encode_picture(picture: Picture) -> str:
    return "data:image/png;base64," + base64.b64encode(picture.path.read_bytes()).decode()


def _render_runs(runs: Sequence[RunPart]) -> str:
    cells = [
        [run.name, run.state, *(f"{format_value(one)}" if one else "–" for one in list_brief(run))] for run in runs
    ]
    return _render_table(("run", "state", *_BRIEF), cells)


def _render_run(run: RunPart, pictures: Path) -> list[str]:
    figures = [(figure.name, format_value(figure)) for figure in run.figures]
    servers = [(f"server {index}", percent(value)) for index, value in enumerate(run.by_server)]
    return [
        f"## {_escape_markdown(run.title)}",
        f"{_escape_markdown(run.name)}. {run.state}",
        *(f"> {_escape_markdown(note)}" for note in run.notes),
        _render_table(("figure", "value"), figures) if figures else "",
        *_render_pictures(run.pictures, pictures),
        _render_table(("server", run.accuracy_name.lower()), servers) if servers else "",
        *_render_trust(run.trust_events),
        *_render_settings(run.settings, run.environment),
    ]


def _render_settings(settings: Sequence[tuple[str, str]], environment: Sequence[tuple[str, str]]) -> list[str]:
    return [
        _render_table(("setting", "value"), settings) if settings else "",
        _render_table(("machine and versions", "value"), environment) if environment else "",
    ]


def _render_trust(events: Sequence[tuple[str, str, str, str]]) -> list[str]:
    if not events:
        return []
    return ["### Why groups changed", _render_table(("round", "servers", "change", "reason"), events)]


def _render_comparison(world: ComparedWorld) -> str:
    heading = (
        "method",
        "seeds",
        "test accuracy",
        "difference",
        "worst server",
        "energy",
        "energy difference",
        "on links",
    )
    cells: list[tuple[Any, ...]] = []
    for row in world.rows:
        figures, is_one = row.figures, len(row.seeds) == 1
        spread = {name: None if is_one else sd for name, (_, sd) in figures.items()}
        both = ((row.points, "points"), (row.energy_percent, "%"))
        apart = [" ".join(difference(value, unit)) for value, unit in both]
        points, energy = ("reference", "reference") if row.is_reference else apart
        cells.append(
            (
                f"{row.label}{_describe_row(row)}",
                ", ".join(map(str, row.seeds)),
                percent(figures["avg_accuracy"][0], spread["avg_accuracy"]),
                points,
                percent(figures["worst_accuracy"][0], spread["worst_accuracy"]),
                joules(*figures["total_joules"]),
                energy,
                joules(*figures["link_joules"]),
            )
        )
    front = ", ".join(_escape_markdown(row.label) for row in world.rows if row.is_on_front)
    words = ["Mean ± standard deviation over seeds."]
    if len(world.rows) > 1:
        reference = _escape_markdown(world.reference.label)
        words.append(f"Differences are to {reference}, paired by seed, with their 95 % interval.")
    return f"{_render_table(heading, cells)}\n\n{' '.join(words)} On {FRONT}: {front or 'none'}."


def _describe_row(row: ComparisonRow) -> str:
    central = " (has a parameter server: a centralised reference)" if row.has_parameter_server else ""
    return " (saw the test data, not ranked)" if row.leaks_test else central


def _render_pictures(drawn: Iterable[Picture], pictures: Path) -> list[str]:
    return [f"![{_escape_markdown(p.words)}]({quote(p.path.relative_to(pictures.parent).as_posix())})" for p in drawn]


def _render_table(heading: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(
        f"| {' | '.join(_escape_markdown(str(cell)) if row is not lines[1] else cell for cell in row)} |"
        for row in lines
    )


def _escape_markdown(words: str) -> str:
    """Escape the characters that have a meaning in Markdown."""
    return re.sub(r"([\\`*_\[\]<>|#&!])", r"\\\1", words)
