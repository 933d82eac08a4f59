"""docs/deploy.md names only what there is, and all of what it lists."""

import re
from pathlib import Path

import pytest
from typer.main import get_command

from hatdfed.cli.app import app
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


def command(words):
    """The command behind the words, and how many of them name it."""
    found, used = get_command(app), 0
    for word in words:
        if word not in getattr(found, "commands", {}):
            break
        found, used = found.commands[word], used + 1
    return found, used


@pytest.mark.parametrize("line", re.findall(r"(?:^|=\S+ )(hatdfed [^\n#]+)", PAGE, re.MULTILINE))
def test_every_command_has_its_options(line):
    words = line.split()[1:]
    found, used = command(words)
    assert used, line
    known = {option for parameter in found.params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert {word for word in words if word.startswith("--")} <= known, line


def test_every_option_that_the_page_names_exists():
    commands = [get_command(app)]
    known = {"--token"}
    while commands:
        here = commands.pop()
        commands += getattr(here, "commands", {}).values()
        known |= {option for parameter in here.params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert set(re.findall(r"`(--[a-z-]+)", PAGE)) <= known


def test_every_message_is_a_real_one():
    part = PAGE[PAGE.index("## When it does not work") :]
    messages = re.findall(r"^\| `([^`]+)` \|", part, re.MULTILINE)
    assert len(messages) > 15
    for message in messages:
        fixed = re.sub(r"\d+ of at least \d+|round \d+ waits for", "…", message)
        for piece in re.split(r"…|\(", fixed):
            assert piece.strip(" ).") in SOURCE or piece.strip(" )") == "Connection refused", message
