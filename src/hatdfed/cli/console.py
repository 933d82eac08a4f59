"""Output of the command line: results on standard output, everything else on standard error."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from io import TextIOWrapper
from pathlib import Path

import typer
from rich.console import Console
from rich.markup import escape

from hatdfed.errors import MissingDependencyError

# A pipe or a file has no width of its own; tables should not be truncated for it.
_WIDTH_WITHOUT_TERMINAL = 120

_is_terminal = sys.stdout is not None and sys.stdout.isatty()  # None if it was closed before the start
out = Console(highlight=False, width=None if _is_terminal else _WIDTH_WITHOUT_TERMINAL)
err = Console(stderr=True, highlight=False)


def prepare_streams() -> None:
    """Redirect closed streams to nowhere, and replace characters that a terminal lacks by question marks."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123 (open until the end)
        elif isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


def discard_output() -> None:
    """Discard output that cannot be written: Python would try again at exit and fail with a traceback."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            with suppress(OSError):
                os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def print_error(sentence: str) -> None:
    """Print an error in one line."""
    err.print(f"[bold red]error:[/] {escape(sentence)}", soft_wrap=True)


def print_warning(sentence: str) -> None:
    """Print a warning in one line."""
    err.print(f"[bold yellow]warning:[/] {escape(sentence)}", soft_wrap=True)


def note(sentence: str) -> None:
    """Print a note in one line."""
    err.print(f"[yellow]note:[/] {escape(sentence)}", soft_wrap=True)


@contextmanager
def interruptible(how_to_go_on: str | Callable[[], str]) -> Iterator[None]:
    """On Ctrl-C, print how to go on and exit with code 130; a function is called at that time for the sentence."""
    try:
        yield
    except KeyboardInterrupt:
        sentence = how_to_go_on if isinstance(how_to_go_on, str) else how_to_go_on()
        print_error(f"Interrupted. {sentence}")
        raise typer.Exit(130) from None


def format_resume_hint(folder: Path) -> str:
    """Format how to resume a run that was stopped, which needs a checkpoint."""
    if (folder / "checkpoint.safetensors").is_file():
        return f"Go on from the last checkpoint with: hatdfed run --resume {folder}"
    return f"There is no checkpoint in {folder}, so nothing can be resumed; start it again."


def require_torch() -> None:
    """Raise an error that says what to install if PyTorch is missing."""
    if find_spec("torch") is None:
        raise MissingDependencyError("This command trains models and needs PyTorch: pip install 'hatdfed[sim]'.")
