"""The reference of the command line, from the commands' own definition."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from itertools import chain

from bench_tables import table
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
from typer.main import get_command

from hatdfed.cli.app import app
from hatdfed.cli.verbs import OWN_VERBS

HEAD = """\
# Command line

`hatdfed COMMAND --help` prints the same in a terminal. If something given is wrong, a command prints one sentence and
exits with code 2, or with code 3 where starting it again may help. This page is written by `docs/generate.py`.
"""
COMPLETION = ("install_completion", "show_completion")  # typer's own, only where it knows the shell


def cli_page() -> str:
    """Every command with its arguments and options."""
    group = get_command(app)
    verbs = {name: group.get_command(None, name) for name in OWN_VERBS}
    commands = [[f"[`{name}`](#hatdfed-{name})", _summary(command)] for name, command in verbs.items()]
    walks = chain.from_iterable(_walk(f"hatdfed {name}", command) for name, command in verbs.items())
    sections = [_section(name, command) for name, command in [("hatdfed", group), *walks]]
    return "\n\n".join([HEAD.rstrip(), table(("command", "what it does"), commands), *sections]) + "\n"


def _walk(name: str, command: TyperCommand | TyperGroup) -> Iterator[tuple[str, TyperCommand | TyperGroup]]:
    yield name, command
    for verb, subcommand in getattr(command, "commands", {}).items():
        yield from _walk(f"{name} {verb}", subcommand)


def _section(name: str, command: TyperCommand | TyperGroup) -> str:
    arguments = [each for each in command.params if isinstance(each, TyperArgument)]
    options = [each for each in command.params if isinstance(each, TyperOption) and each.name not in COMPLETION]
    usage = [
        name,
        "[OPTIONS]",
        *map(_spell_argument, arguments),
        *(["COMMAND"] if hasattr(command, "commands") else []),
    ]
    parts = [f"## {name}", inspect.cleandoc(command.help or ""), f"```text\n{' '.join(usage)}\n```"]
    rows = [[f"`{_spell_argument(each)}`", each.help or "", ""] for each in arguments]
    rows += [[f"`{_spell_option(each)}`", each.help or "", _default(each)] for each in options if not each.hidden]
    return "\n\n".join([*parts, table(("argument or option", "meaning", "default"), rows)] if rows else parts)


def _summary(command: TyperCommand | TyperGroup) -> str:
    return inspect.cleandoc(command.help or "").split("\n\n")[0].replace("\n", " ")


def _spell_argument(argument: TyperArgument) -> str:
    word = argument.metavar or str(argument.name).upper()
    return word if argument.required or word.startswith("[") else f"[{word}]"


def _spell_option(option: TyperOption) -> str:
    names = ", ".join([*option.opts, *option.secondary_opts])
    return names if option.is_flag else f"{names} {option.metavar or 'VALUE'}".replace("|", " or ")


def _default(option: TyperOption) -> str:
    if option.required:
        return "required"
    return "" if option.default in (None, False, "") or callable(option.default) else f"`{option.default}`"
