"""hatdfed figures: draw the figures of a folder anew, for a paper or a talk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hatdfed.cli.console import out, require_torch
from hatdfed.errors import ConfigError, RunFolderError
from hatdfed.runs.records.folder import named_path
from hatdfed.sweeps.documents import find_runs, is_run, is_sweep, read_sweep_document

if TYPE_CHECKING:
    from hatdfed.report.style import FigureStyle, StyledFigure

_FORMATS = ("png", "svg", "pdf")


def figures_command(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", parser=named_path, help="Folder of a run, a comparison or a sweep.")
    ],
    formats: Annotated[str, typer.Option("--format", help="png, svg or pdf; several with commas.")] = "svg,pdf",
    headline: Annotated[
        bool, typer.Option("--headline/--no-headline", help="With or without the sentence above the axes.")
    ] = True,
    width: Annotated[
        float | None, typer.Option("--width", min=2, max=30, help="Inches; a column of two is often 3.4.")
    ] = None,
    height: Annotated[
        float | None, typer.Option("--height", min=1, max=30, help="Inches; by default it follows from the width.")
    ] = None,
    font_size: Annotated[
        float, typer.Option("--font-size", min=4, max=24, help="Points, of the names of axes; other words follow.")
    ] = 10.0,
    to: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="PATH", parser=named_path, help="FOLDER/figures by default."),
    ] = None,
) -> None:
    """Draw the figures of a run, a comparison or a sweep anew, as SVG, PDF or PNG."""
    chosen = _read_formats(formats)
    if not is_sweep(folder) and not is_run(folder):
        find_runs(folder)  # a wrong path is told before torch is imported
    require_torch()
    from hatdfed.report.style import FigureStyle, save_figures

    drawn = _draw(folder, FigureStyle(chosen, headline, width, height, font_size))
    if not drawn:
        raise RunFolderError(f"{folder} has no results that could be drawn. Finish its runs first.")
    target = folder / "figures" if to is None else to
    try:
        files = save_figures(drawn, target)
    except OSError as error:
        raise ConfigError(f"{target} cannot be written ({error.strerror}). Choose another --out.") from None
    out.print(f"{', '.join(file.name for file in files)}: {target}", soft_wrap=True)


def _read_formats(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(word.strip().lower() for word in text.split(",") if word.strip()))
    if not names or not set(names) <= set(_FORMATS):
        raise ConfigError(f"--format is {text!r}, but must be png, svg or pdf, or several of them with commas.")
    return names


def _draw(folder: Path, style: FigureStyle) -> dict[str, StyledFigure]:
    from hatdfed.report.comparison_figures import draw_comparison_figures, select_runs
    from hatdfed.report.run_data import run_data
    from hatdfed.report.run_figures import draw_run_figures
    from hatdfed.runs.result import RunResult
    from hatdfed.runs.statistics import Comparison
    from hatdfed.sweeps.load import load

    if is_sweep(folder):
        return _draw_sweep(folder, style)
    result = load(folder)
    if isinstance(result, RunResult):
        return draw_run_figures(run_data(result), style)
    shown = select_runs(result) if isinstance(result, Comparison) else {}
    return draw_comparison_figures(shown, style) if shown else {}


def _draw_sweep(folder: Path, style: FigureStyle) -> dict[str, StyledFigure]:
    from hatdfed.sweeps.file import read_sweep
    from hatdfed.sweeps.points import PointMaker
    from hatdfed.sweeps.table import draw_sweep

    document, sweep = read_sweep_document(folder), read_sweep(folder / "sweep.yaml")
    rows = document["rows"]
    maker = PointMaker(sweep)
    return draw_sweep(
        sweep, rows, [maker.point(row["settings"], "").world for row in rows], document.get("search"), style
    )
