"""The verbs of `hatdfed`: its own, and those that other packages add by an entry point in the group `hatdfed.verbs`.

An entry point names a Typer application or a function. It is imported when its verb is typed, or shown in the help.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from hatdfed.errors import ConfigError, did_you_mean

GROUP = "hatdfed.verbs"
_OWN = {
    "run": "run:run_command",
    "compare": "compare:compare_app",
    "sweep": "sweep:sweep_command",
    "methods": "listing:methods_command",
    "datasets": "listing:datasets_command",
    "traces": "traces:traces_app",
    "profiles": "profiles:profiles_command",
    "calibrate": "calibrate:calibrate_command",
    "networks": "listing:networks_command",
    "policies": "listing:policies_command",
    "settings": "listing:settings_command",
    "show": "show:show_command",
    "dashboard": "dashboard:dashboard_command",
    "figures": "figures:figures_command",
    "report": "report:report_command",
    "doctor": "doctor:doctor_command",
    "coordinator": "coordinator:coordinator_command",
    "edge": "edge:edge_app",
    "relay": "relay:relay_command",
    "ca": "identity:ca_app",
    "token": "identity:token_app",
    "viewer": "identity:viewer_app",
    "status": "operate:status_command",
    "drain": "operate:drain_command",
    "undrain": "operate:undrain_command",
    "stop": "operate:stop_command",
    "backup": "backup:backup_command",
    "restore": "backup:restore_command",
    "export": "export:export_command",
}
OWN_VERBS = {name: EntryPoint(name, f"hatdfed.cli.{place}", GROUP) for name, place in _OWN.items()}
Click = Any  # a context or command of click, which typer takes from its own copy or from the package, by version
# Packages of the repository that are installed by themselves: the verb, the package, its folder.
_SEPARATE = {"paper": ("hatdfed-paper", "paper"), "bench": ("hatdfed-bench", "benchmarks")}


class VerbGroup(TyperGroup):
    """The commands of `hatdfed` itself, then those of other installed packages."""

    def list_commands(self, ctx: Click) -> list[str]:
        """The own commands, then the added ones that can be loaded."""
        added = _added()
        return [*OWN_VERBS, *(name for name in added if name not in OWN_VERBS and _can_be_loaded(added[name]))]

    def parse_args(self, ctx: Click, args: list[str]) -> list[str]:
        """Read --import as an option of `hatdfed` wherever it is typed: modules are imported before anything else."""
        return super().parse_args(ctx, move_imports(args))

    def get_command(self, ctx: Click, cmd_name: str) -> Click:
        """The command called `cmd_name`; an own command wins over an added one."""
        if cmd_name in OWN_VERBS:
            return _load(OWN_VERBS[cmd_name])
        point = _added().get(cmd_name)
        if point is not None:
            return _load_added(point)
        if cmd_name in _SEPARATE:
            package, folder = _SEPARATE[cmd_name]
            raise ConfigError(
                f"`hatdfed {cmd_name}` comes with the package {package}, which is not installed. "
                f"Install it from a checkout of hatdfed with: pip install ./{folder}"
            )
        raise ConfigError(f"There is no command {cmd_name!r}. {did_you_mean(cmd_name, [*OWN_VERBS, *_SEPARATE])}")


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
    verb = point.load()
    command = get_command(verb if isinstance(verb, typer.Typer) else as_application(verb))
    command.name = point.name
    return command


def _load_added(point: EntryPoint) -> Click:
    try:
        return _load(point)
    except Exception as error:  # noqa: BLE001 (anything may go wrong in somebody else's module)
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(f"The verb {point.name!r} cannot be loaded from {point.value} ({reason}).") from None


def _can_be_loaded(point: EntryPoint) -> bool:
    try:
        _load_added(point)
    except ConfigError:
        return False
    return True


def as_application(function: Callable[..., None], cls: type[TyperCommand] = TyperCommand) -> typer.Typer:
    """An application with one command and no verbs."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(cls=cls)(function)
    return app
