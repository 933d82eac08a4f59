"""How the command line speaks: results on standard output, everything else on standard error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from hatdfed.errors import MissingDependencyError
from hatdfed.learning.datasets.base import Progress as DownloadProgress

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def complain(sentence: str) -> None:
    """One line about what is wrong."""
    err.print(f"[bold red]error:[/] {escape(sentence)}", soft_wrap=True)


def note(sentence: str) -> None:
    """One line that is good to know."""
    err.print(f"[yellow]note:[/] {escape(sentence)}", soft_wrap=True)


def require_torch() -> None:
    """Say what to install where models cannot be trained."""
    if find_spec("torch") is None:
        raise MissingDependencyError("This command trains models and needs PyTorch: pip install 'hatdfed[sim]'.")


@contextmanager
def download_bar() -> Iterator[DownloadProgress]:
    """A bar for a data set on its way; invisible when nothing is downloaded."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True) as bar:
        tasks = {}

        def report(done_bytes: int, total_bytes: int | None, label: str, /) -> None:
            if label not in tasks:
                tasks[label] = bar.add_task(label, total=total_bytes)
            bar.update(tasks[label], completed=done_bytes, total=total_bytes)

        yield report


def joules_text(joules: float) -> str:
    """An amount of energy in the unit that suits it.

    >>> joules_text(8419.2), joules_text(2.3e6)
    ('8.42 kJ', '2.30 MJ')
    """
    for size, unit in ((1e6, "MJ"), (1e3, "kJ")):
        if abs(joules) >= size:
            return f"{joules / size:.2f} {unit}"
    return f"{joules:.1f} J"
