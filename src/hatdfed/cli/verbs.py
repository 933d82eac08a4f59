"""Verbs that other packages add to `hatdfed` by an entry point in the group `hatdfed.verbs`.

The entry point names a Typer application or a function. It is imported when its verb is typed, or shown in the help.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from hatdfed.errors import ConfigError

GROUP = "hatdfed.verbs"
Click = Any  # a context or command of click, which typer takes from its own copy or from the package, by version
# Packages of the repository that are installed by themselves: the verb, the package, its folder.
_SEPARATE = {"paper": ("hatdfed-paper", "paper"), "bench": ("hatdfed-bench", "benchmarks")}


class VerbGroup(TyperGroup):
    """The commands of `hatdfed` itself, then those of other installed packages."""

    def list_commands(self, ctx: Click) -> list[str]:
        """The own commands, then the added ones that can be loaded."""
        own = super().list_commands(ctx)
        return own + [name for name, point in _added().items() if name not in own and _can_be_loaded(point)]

    def parse_args(self, ctx: Click, args: list[str]) -> list[str]:
        """Read --import as an option of `hatdfed` wherever it is typed: modules are imported before anything else."""
        return super().parse_args(ctx, move_imports(args))

    def get_command(self, ctx: Click, cmd_name: str) -> Click:
        """The command called `cmd_name`; an own command wins over an added one."""
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        point = _added().get(cmd_name)
        if point is not None:
            return _load(point)
        if cmd_name in _SEPARATE:
            package, folder = _SEPARATE[cmd_name]
            raise ConfigError(
                f"`hatdfed {cmd_name}` comes with the package {package}, which is not installed. "
                f"Install it from a checkout of hatdfed with: pip install ./{folder}"
            )
        return None


def move_imports(args: list[str]) -> list[str]:
    """The arguments with every --import in front.

    >>> move_imports(["run", "--import", "mine", "--rounds", "2", "--import=ours"])
    ['--import', 'mine', '--import=ours', 'run', '--rounds', '2']
    """
    front: list[str] = []
    others: list[str] = []
    rest = iter(args)
    for argument in rest:
        if argument == "--":
            others += [argument, *rest]
        elif argument == "--import":
            front += [argument, *([value] if (value := next(rest, None)) is not None else [])]
        else:
            (front if argument.startswith("--import=") else others).append(argument)
    return front + others


def _added() -> dict[str, EntryPoint]:
    return {point.name: point for point in sorted(entry_points(group=GROUP), key=lambda point: point.name)}


def _load(point: EntryPoint) -> Click:
    try:
        verb = point.load()
    except Exception as error:  # noqa: BLE001 (anything may go wrong in somebody else's module)
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(f"The verb {point.name!r} cannot be loaded from {point.value} ({reason}).") from None
    command = get_command(verb if isinstance(verb, typer.Typer) else as_application(verb))
    command.name = point.name
    return command


def _can_be_loaded(point: EntryPoint) -> bool:
    try:
        _load(point)
    except ConfigError:
        return False
    return True


def as_application(function: Callable[..., None]) -> typer.Typer:
    """An application with one command and no verbs."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(function)
    return app
