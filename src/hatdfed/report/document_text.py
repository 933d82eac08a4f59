"""A report as one HTML page that needs nothing else, or as Markdown with pictures beside it."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from hatdfed.report.document import Document, Figure, Picture, RunPart
from hatdfed.report.groups import FRONT, Row
from hatdfed.report.words import FILTERS, difference, joules, percent
from hatdfed.version import __version__


def html_text(document: Document) -> str:
    """One page: styles, pictures and all inside it, no script, nothing from elsewhere."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(FILTERS, written=written, data_address=_data_address)
    return environment.get_template("report.html").render(document=document, version=__version__, made=_now())


def markdown_text(document: Document, pictures: Path) -> str:
    """The same in Markdown; pictures are named relative to the folder that `pictures` lies in."""
    lines = [f"# {_plain(document.title)}", f"hatdfed {__version__}, written {_now()}."]
    lines += [f"> {_plain(sentence)}" for sentence in document.left_out]
    if document.rows:
        lines += ["## Comparison", _comparison(document.rows), *_images(document.comparison_pictures, pictures)]
    for run in document.runs:
        lines += _run(run, pictures)
    return "\n\n".join(line for line in lines if line) + "\n"


def written(figure: Figure) -> str:
    """A number with its unit."""
    return figure.write(figure.value)


def _now() -> str:
    return datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")


def _data_address(picture: Picture) -> str:
    return "data:image/png;base64," + base64.b64encode(picture.path.read_bytes()).decode()


def _run(run: RunPart, pictures: Path) -> list[str]:
    figures = [(figure.name, written(figure)) for figure in run.figures]
    servers = [(f"server {index}", percent(value)) for index, value in enumerate(run.by_server)]
    return [
        f"## {_plain(run.title)}",
        f"{_plain(run.name)}. {run.state}",
        *(f"> {_plain(note)}" for note in run.notes),
        _table(("figure", "value"), figures) if figures else "",
        *_images(run.pictures, pictures),
        _table(("server", "test accuracy"), servers) if servers else "",
        "### Settings",
        _table(("setting", "value"), run.settings),
        "### Machine and versions",
        _table(("what", "value"), run.environment) if run.environment else "This run did not note its machine.",
    ]


def _comparison(rows: Sequence[Row]) -> str:
    reference = next(row.label for row in rows if row.is_reference)
    heading = ("method", "seeds", "test accuracy", "difference", "worst server", "energy", "difference", "on links")
    cells: list[tuple[Any, ...]] = []
    for row in rows:
        figures, is_one = row.figures, len(row.seeds) == 1
        spread = {name: None if is_one else sd for name, (_, sd) in figures.items()}
        both = ((row.points, "points"), (row.energy_percent, "%"))
        apart = [" ".join(difference(value, unit, same_world=row.same_world)) for value, unit in both]
        points, energy = ("reference", "reference") if row.is_reference else apart
        cells.append(
            (
                f"{row.label}{' (saw the test data, not ranked)' if row.leaks_test else ''}",
                ", ".join(map(str, row.seeds)),
                percent(figures["avg_accuracy"][0], spread["avg_accuracy"]),
                points,
                percent(figures["worst_accuracy"][0], spread["worst_accuracy"]),
                joules(*figures["total_joules"]),
                energy,
                joules(*figures["link_joules"]),
            )
        )
    front = ", ".join(_plain(row.label) for row in rows if row.is_on_front)
    words = f"Differences are to {_plain(reference)} in the same worlds, with their 95 % interval."
    return f"{_table(heading, cells)}\n\n{words} On {FRONT}: {front or 'none'}."


def _images(drawn: Iterable[Picture], pictures: Path) -> list[str]:
    return [f"![{_plain(p.words)}]({quote(p.path.relative_to(pictures.parent).as_posix())})" for p in drawn]


def _table(heading: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(
        f"| {' | '.join(_plain(str(cell)) if row is not lines[1] else cell for cell in row)} |" for row in lines
    )


def _plain(words: str) -> str:
    """Words that Markdown leaves as they are."""
    return re.sub(r"([\\`*_\[\]<>|#&!])", r"\\\1", words)
