"""docs/deploy.md names only what there is, and all of what it lists."""

import re
from pathlib import Path

import pytest
from typer.main import get_command

from hatdfed.cli.app import app
from hatdfed.cli.verbs import OWN_VERBS
from hatdfed.deploy.coordinator.settings import DeploySettings

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
# Adjacent pieces of one sentence, joined as Python does.
SOURCE = re.sub(r'"\s*\n\s*f?"', "", "\n".join(p.read_text("utf-8") for p in (ROOT / "src").rglob("*.py")))


def test_every_setting_of_a_deployment_is_explained_with_its_default():
    table = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", PAGE, re.MULTILINE))
    assert set(DeploySettings.model_fields) <= set(table)
    for name, field in DeploySettings.model_fields.items():
        if field.default is not None:
            assert float(table[name]) == field.default, name


def commands():
    """Every command by the words that name it."""
    found = {"": get_command(app)}
    for verb in OWN_VERBS:
        found[verb] = found[""].get_command(None, verb)
        found |= {f"{verb} {name}": each for name, each in getattr(found[verb], "commands", {}).items()}
    return found


COMMANDS = commands()


def command(words):
    """The command behind the words, and how many of them name it."""
    found, used = COMMANDS[""], 0
    while used < len(words) and (name := " ".join(words[: used + 1])) in COMMANDS:
        found, used = COMMANDS[name], used + 1
    return found, used


@pytest.mark.parametrize("line", re.findall(r"(?:^|=\S+ )(hatdfed [^\n#]+)", PAGE, re.MULTILINE))
def test_every_command_has_its_options(line):
    words = line.split()[1:]
    found, used = command(words)
    assert used, line
    known = {option for parameter in found.params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert {word for word in words if word.startswith("--")} <= known, line


def test_every_option_that_the_page_names_exists():
    parameters = [parameter for command in COMMANDS.values() for parameter in command.params]
    known = {option for parameter in parameters for option in (*parameter.opts, *parameter.secondary_opts)} | {
        "--token"
    }
    assert set(re.findall(r"`(--[a-z-]+)", PAGE)) <= known


def test_every_message_is_a_real_one():
    part = PAGE[PAGE.index("## When it does not work") :]
    messages = re.findall(r"^\| `([^`]+)` \|", part, re.MULTILINE)
    assert len(messages) > 15
    for message in messages:
        fixed = re.sub(r"\d+ of at least \d+|round \d+ waits for", "…", message)
        for piece in re.split(r"…|\(", fixed):
            assert piece.strip(" ).") in SOURCE or piece.strip(" )") == "Connection refused", message
