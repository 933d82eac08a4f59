"""The systemd units and the compose file name only options that exist, and a container stays down when it should."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from hatdfed.cli.app import app

PACKAGING = Path(__file__).resolve().parents[2] / "packaging"
UNITS = sorted((PACKAGING / "systemd").glob("*.service"))
COMPOSE = yaml.safe_load((PACKAGING / "compose" / "compose.yaml").read_text(encoding="utf-8"))


def commands():
    """What each unit and container runs, as words after `hatdfed`."""
    for unit in UNITS:
        (line,) = re.findall(r"^ExecStart=\S+/hatdfed (.*)$", unit.read_text(encoding="utf-8"), re.MULTILINE)
        yield unit.name, line.split()
    for name, service in COMPOSE["services"].items():
        yield name, service["command"][service["command"].index("hatdfed") + 1 :]


COMMANDS = list(commands())


@pytest.mark.parametrize(("where", "words"), COMMANDS, ids=[where for where, _ in COMMANDS])
def test_every_option_exists(where, words):
    command = get_command(app).commands[words[0]]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert {word for word in words if word.startswith("--")} <= known
    assert "--metrics" in words, "an alert needs something to watch"


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_every_container_has_a_health_check_and_a_log_that_ends(name):
    service = COMPOSE["services"][name]
    port = service["command"][service["command"].index("--metrics") + 1].rpartition(":")[2]
    check = service["healthcheck"]["test"]
    assert f":{port}/metrics" in check[-1] or check[1:3] == ["hatdfed", "status"]
    assert set(service["logging"]["options"]) == {"max-size", "max-file"}


def test_images_have_a_version():
    images = re.findall(r"^FROM (\S+)", (PACKAGING / "compose" / "Dockerfile").read_text(), re.MULTILINE)
    assert re.fullmatch(r"python:3\.12\.\d+-.*", images[0])


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_systemd_reads_the_units(unit, tmp_path):
    text = unit.read_text(encoding="utf-8").replace("/opt/hatdfed/bin/hatdfed", "/bin/true")  # it is not installed here
    (tmp_path / unit.name.replace("@.", "@edge-1.")).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *tmp_path.glob("*.service")], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
