"""The command `hatdfed`, and what happens when something is wrong."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, NoReturn

import typer

from hatdfed import __version__
from hatdfed.cli.console import discard_output, prepare_streams, print_error
from hatdfed.cli.verbs import VerbGroup
from hatdfed.errors import HatdfedError
from hatdfed.registry import import_named
from hatdfed.runs.process_memory import keep_no_thread_caches

_RUN_FOR_DAYS = (["coordinator"], ["edge"], ["relay"])
_NOT_WRITTEN = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF}

app = typer.Typer(
    cls=VerbGroup,
    help="Decentralized federated learning at the edge with a learned, energy-aware topology.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def about(
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
    imports: Annotated[
        list[str] | None,
        typer.Option(
            "--import",
            metavar="MODULE",
            help="Import a module, or a .py file, that adds policies, networks or the like; also behind a command.",
        ),
    ] = None,
) -> None:
    """Decentralized federated learning at the edge with a learned, energy-aware topology."""
    for name in imports or ():
        import_named(name)
    if version:
        typer.echo(f"hatdfed {__version__}")
        raise typer.Exit


def start() -> None:
    """The command `hatdfed` as a process of its own, which may begin anew."""
    if sys.argv[1:2] in _RUN_FOR_DAYS:
        keep_no_thread_caches()
    main()


def main() -> None:
    """The command `hatdfed`."""
    prepare_streams()
    with _report_errors():
        app()


def run_verb(verb: typer.Typer, name: str) -> None:
    """One verb by itself, for `python -m` of the package that has it."""
    prepare_streams()
    with _report_errors():
        verb(prog_name=name)


@contextmanager
def _report_errors() -> Iterator[None]:
    """Print an error in one sentence and exit with code 2, or 3 where starting again may help."""
    try:
        yield
    except HatdfedError as error:
        _exit_with(str(error), error.exit_code)
    except OSError as error:
        if error.errno not in _NOT_WRITTEN or error.filename is not None:
            raise
        _exit_with(f"The output cannot be written ({error.strerror}). Free up disk space, or send it elsewhere.", 3)


def _exit_with(sentence: str, exit_code: int) -> NoReturn:
    with suppress(OSError):  # nobody can be told where this cannot be written either
        print_error(sentence)
    discard_output()
    sys.exit(exit_code)
