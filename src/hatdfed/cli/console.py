"""How the command line speaks: results on standard output, everything else on standard error."""

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

# A pipe or a file has no width of its own; tables should not be cut for it.
_WIDTH_WITHOUT_TERMINAL = 120

_is_terminal = sys.stdout is not None and sys.stdout.isatty()  # there is none where it was closed before the start
out = Console(highlight=False, width=None if _is_terminal else _WIDTH_WITHOUT_TERMINAL)
err = Console(stderr=True, highlight=False)


def prepare_streams() -> None:
    """Streams that were closed lead nowhere, and characters that a terminal lacks become question marks."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123 (open until the end)
        elif isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


def drop_output() -> None:
    """What could not be written would be tried again at the end, and fail again with a traceback."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            with suppress(OSError):
                os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def complain(sentence: str) -> None:
    """One line about what is wrong."""
    err.print(f"[bold red]error:[/] {escape(sentence)}", soft_wrap=True)


def note(sentence: str) -> None:
    """One line that is good to know."""
    err.print(f"[yellow]note:[/] {escape(sentence)}", soft_wrap=True)


@contextmanager
def interruptible(how_to_go_on: str | Callable[[], str]) -> Iterator[None]:
    """Ctrl-C ends in one sentence that says how to go on, as it is then, and in exit code 130."""
    try:
        yield
    except KeyboardInterrupt:
        sentence = how_to_go_on if isinstance(how_to_go_on, str) else how_to_go_on()
        complain(f"Interrupted. {sentence}")
        raise typer.Exit(130) from None


def how_to_resume(folder: Path) -> str:
    """How a run that was stopped goes on, which it cannot without a checkpoint."""
    if (folder / "checkpoint.safetensors").is_file():
        return f"Go on from the last checkpoint with: hatdfed run --resume {folder}"
    return f"There is no checkpoint in {folder}, so nothing can be resumed; start it again."


def require_torch() -> None:
    """Say what to install where models cannot be trained."""
    if find_spec("torch") is None:
        raise MissingDependencyError("This command trains models and needs PyTorch: pip install 'hatdfed[sim]'.")


def joules_text(joules: float) -> str:
    """An amount of energy in the unit that suits it.

    >>> joules_text(8419.2), joules_text(2.3e6)
    ('8.42 kJ', '2.30 MJ')
    """
    for size, unit in ((1e6, "MJ"), (1e3, "kJ")):
        if abs(joules) >= size:
            return f"{joules / size:.2f} {unit}"
    return f"{joules:.1f} J"
