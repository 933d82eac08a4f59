"""hatdfed report: write runs as one document."""

from __future__ import annotations

import tempfile
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from hatdfed.cli.console import err, interruptible, out
from hatdfed.errors import ConfigError, MissingDependencyError
from hatdfed.runs.records.folder import named_path, refuse_file_of_run, refuse_missing_folder


class Format(StrEnum):
    """File format of a report."""

    HTML = "html"
    MD = "md"
    PDF = "pdf"


def report_command(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUNS…", parser=named_path, help="Run folders, or folders with runs inside."),
    ],
    to: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="FILE", parser=named_path, help="report.html by default. Its ending is the format."
        ),
    ] = None,
    form: Annotated[
        Format | None,
        typer.Option(
            "--format", help="html (default): one file with all in it. md: pictures beside it. pdf: by Chromium."
        ),
    ] = None,
) -> None:
    """Write runs as one document: results, figures, settings and machine."""
    if to is not None:
        refuse_file_of_run(to)
    path, form = _choose_file(to, form)
    for run in runs:
        refuse_missing_folder(run)
    if not path.parent.is_dir() or path.is_dir():
        raise ConfigError(f"{path} cannot be written: name a file in a folder that exists, with -o FILE.")
    try:
        with interruptible("Nothing was written."):
            _write(runs, path, form)
    except OSError as error:
        raise ConfigError(
            f"{error.filename or path} cannot be written ({error.strerror}). Choose another -o."
        ) from None
    out.print(f"Report: {path}", soft_wrap=True)


def _choose_file(to: Path | None, form: Format | None) -> tuple[Path, Format]:
    """The file and its format, which its ending names."""
    if to is None:
        return Path(f"report.{form or Format.HTML}"), form or Format.HTML
    ending = to.suffix.lower().removeprefix(".")
    endings = {"html": Format.HTML, "htm": Format.HTML, "md": Format.MD, "markdown": Format.MD, "pdf": Format.PDF}
    if ending not in endings:
        raise ConfigError(
            f"{to} ends in {to.suffix or 'nothing'}, but reports are .html, .md or .pdf. Name such a file."
        )
    if form is not None and endings[ending] is not form:
        raise ConfigError(
            f"{to} ends in {to.suffix}, but --format is {form}. Leave out --format, or name another file."
        )
    return to, endings[ending]


def _write(runs: list[Path], path: Path, form: Format) -> None:
    try:
        from hatdfed.report.document import make_document, render_html, render_markdown
        from hatdfed.report.pdf import find_browser, print_pdf
        from hatdfed.runs.records.checkpoint import write_atomically
    except ModuleNotFoundError as error:
        if error.name not in ("jinja2", "matplotlib", "torch"):
            raise
        raise MissingDependencyError(
            f"This command needs the package {error.name}: pip install 'hatdfed[sim]'."
        ) from None
    browser = find_browser() if form is Format.PDF else None  # before the work, not after it
    with err.status("Reading runs …") as status:

        def tell(name: str) -> None:
            status.update(f"Drawing {name} …")

        if form is Format.MD:
            pictures = path.with_name(f"{path.stem}_pictures")
            content = render_markdown(make_document(runs, pictures, tell), pictures)
        else:
            with tempfile.TemporaryDirectory() as folder:
                content = render_html(make_document(runs, Path(folder), tell))
        if browser is not None:
            status.update("Printing …")
        write_atomically(path, content.encode() if browser is None else print_pdf(content, browser))
