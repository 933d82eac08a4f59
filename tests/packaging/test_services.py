"""The systemd units and the compose file name only options that exist, and a container stays down when it should."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from hatdfed.cli.app import app

PACKAGING = Path(__file__).resolve().parents[2] / "packaging"
UNITS = sorted((PACKAGING / "systemd").glob("*.service"))
DOCKERFILE = (PACKAGING / "compose" / "Dockerfile").read_text(encoding="utf-8")
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
    command = get_command(app).get_command(None, words[0])
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
    images = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    assert re.fullmatch(r"python:3\.12\.\d+-.*", images[0])


def test_images_do_not_run_as_root():
    for stage in re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)[1:]:
        assert re.findall(r"^USER (\S+)", stage, re.MULTILINE)[-1] == "7444"
    assert "useradd --system --uid 7444" in DOCKERFILE


@pytest.fixture(scope="module")
def container_path(tmp_path_factory):
    """A PATH with `hatdfed` and `supervise`, as the images have them."""
    folder = tmp_path_factory.mktemp("bin")
    (folder / "hatdfed").write_text(f'#!/bin/sh\nexec {sys.executable} -m hatdfed "$@"\n')
    (folder / "hatdfed").chmod(0o755)
    (folder / "supervise").symlink_to(PACKAGING / "compose" / "supervise")
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def test_an_image_starts_with_help(container_path):
    (words,) = [json.loads(words) for words in re.findall(r"^CMD (.*)$", DOCKERFILE, re.MULTILINE)]
    done = subprocess.run(words, env={**os.environ, "PATH": container_path}, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "hatdfed [OPTIONS] COMMAND" in done.stdout


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_containers_start_a_command_with_options_that_exist(name, container_path):
    """The first unknown option is refused, with an exit code after which `supervise` does not start it again."""
    words = [*COMPOSE["services"][name]["command"], "--unknown"]
    done = subprocess.run(words, env={**os.environ, "PATH": container_path}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert f"hatdfed {words[words.index('hatdfed') + 1]}" in done.stderr
    assert "No such option: --unknown" in done.stderr


def test_a_coordinator_without_certificates_stays_down(container_path, tmp_path):
    words = [word.replace("/etc/hatdfed", str(tmp_path)) for word in COMPOSE["services"]["coordinator"]["command"]]
    (tmp_path / "run.yaml").write_text("rounds: 1\n")
    done = subprocess.run(
        words, cwd=tmp_path, env={**os.environ, "PATH": container_path}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_systemd_reads_the_units(unit, tmp_path):
    text = unit.read_text(encoding="utf-8").replace("/opt/hatdfed/bin/hatdfed", "/bin/true")  # it is not installed here
    (tmp_path / unit.name.replace("@.", "@edge-1.")).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *tmp_path.glob("*.service")], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
