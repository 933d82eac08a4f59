"""The command `hatdfed`: its verbs, and what happens when something is wrong."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, NoReturn

import typer

from hatdfed import __version__
from hatdfed.cli.backup import backup_command, restore_command
from hatdfed.cli.calibrate import calibrate_command
from hatdfed.cli.compare import CompareCommand, compare_command
from hatdfed.cli.console import discard_output, prepare_streams, print_error
from hatdfed.cli.coordinator import coordinator_command
from hatdfed.cli.dashboard import dashboard_command
from hatdfed.cli.doctor import doctor_command
from hatdfed.cli.edge import edge_app
from hatdfed.cli.export import export_command
from hatdfed.cli.figures import figures_command
from hatdfed.cli.identity import ca_app, token_app, viewer_app
from hatdfed.cli.listing import (
    datasets_command,
    methods_command,
    networks_command,
    policies_command,
    settings_command,
)
from hatdfed.cli.operate import drain_command, status_command, stop_command, undrain_command
from hatdfed.cli.profiles import profiles_command
from hatdfed.cli.relay import relay_command
from hatdfed.cli.report import report_command
from hatdfed.cli.run import run_command
from hatdfed.cli.show import show_command
from hatdfed.cli.sweep import sweep_command
from hatdfed.cli.traces import traces_app
from hatdfed.cli.verbs import VerbGroup
from hatdfed.errors import HatdfedError
from hatdfed.registry import import_named
from hatdfed.runs.malloc import keep_no_thread_caches

_RUN_FOR_DAYS = (["coordinator"], ["edge"], ["relay"])
_NOT_WRITTEN = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF}

app = typer.Typer(
    cls=VerbGroup,
    help="Decentralized federated learning at the edge with a learned, energy-aware topology.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command("run")(run_command)
app.command("compare", cls=CompareCommand)(compare_command)
app.command("sweep")(sweep_command)
app.command("methods")(methods_command)
app.command("datasets")(datasets_command)
app.add_typer(traces_app, name="traces")
app.command("profiles")(profiles_command)
app.command("calibrate")(calibrate_command)
app.command("networks")(networks_command)
app.command("policies")(policies_command)
app.command("settings")(settings_command)
app.command("show")(show_command)
app.command("dashboard")(dashboard_command)
app.command("figures")(figures_command)
app.command("report")(report_command)
app.command("doctor")(doctor_command)
app.command("coordinator")(coordinator_command)
app.add_typer(edge_app, name="edge")
app.command("relay")(relay_command)
app.add_typer(ca_app, name="ca")
app.add_typer(token_app, name="token")
app.add_typer(viewer_app, name="viewer")
app.command("status")(status_command)
app.command("drain")(drain_command)
app.command("undrain")(undrain_command)
app.command("stop")(stop_command)
app.command("backup")(backup_command)
app.command("restore")(restore_command)
app.command("export")(export_command)


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
