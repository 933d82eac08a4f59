"""The files for containers: nothing floats, a coordinator says whether it is well, and no process restarts for ever."""

import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml

COMPOSE = Path(__file__).resolve().parents[2] / "packaging" / "compose"


def test_images_and_packages_are_pinned():
    lines = (COMPOSE / "Dockerfile").read_text(encoding="utf-8").splitlines()
    bases = [line.split()[1] for line in lines if line.startswith("FROM") and "coordinator AS" not in line]
    assert all(re.fullmatch(r"python:\d+\.\d+\.\d+-[a-z-]+", base) for base in bases), bases
    assert all("--constraint" in line for line in lines if "pip install" in line)


def test_services_are_watched_and_do_not_restart_for_ever():
    services = yaml.safe_load((COMPOSE / "compose.yaml").read_text(encoding="utf-8"))["services"]
    assert services["coordinator"]["healthcheck"]["test"][:3] == ["CMD", "hatdfed", "status"]
    for name, service in services.items():
        assert service["restart"] == "on-failure:3"
        assert service["command"][:3] == ["supervise", "3" if name == "coordinator" else "0 3", "hatdfed"]
        assert name == "coordinator" or service["depends_on"] == {"coordinator": {"condition": "service_healthy"}}


def supervise(folder, codes, ends):
    """Supervise a command that ends with these codes, one after the other; its own code and how often it was run."""
    command = folder / "command"
    command.write_text(
        f'#!/bin/sh\nset -- {ends}\necho x >> {folder}/runs\nshift "$(($(wc -l < {folder}/runs) - 1))"\nexit "$1"\n'
    )
    command.chmod(0o755)
    env = {"PATH": "/usr/bin:/bin", "SUPERVISE_SECONDS": "0"}
    done = subprocess.run(["/bin/sh", COMPOSE / "supervise", codes, command], env=env, timeout=20, check=False)
    return done.returncode, len((folder / "runs").read_text().splitlines())


@pytest.mark.parametrize(
    ("codes", "ends", "expected"),
    [
        ("3", "3 3 2", (2, 3)),
        ("3", "0", (0, 1)),
        ("0 3", "0 3 0 2", (2, 4)),
        ("3", "2 0", (2, 1)),
        ("3", "137", (137, 1)),
    ],
)
def test_a_process_is_started_again_only_where_that_helps(tmp_path, codes, ends, expected):
    assert supervise(tmp_path, codes, ends) == expected


def test_a_supervised_process_is_asked_to_stop_and_waited_for(tmp_path):
    command = tmp_path / "command"
    command.write_text(
        f"#!/bin/sh\ntrap 'echo asked > {tmp_path}/asked; exit 0' TERM\n"
        f"touch {tmp_path}/runs\nwhile :; do sleep 0.05; done\n"
    )
    command.chmod(0o755)
    with subprocess.Popen(["/bin/sh", COMPOSE / "supervise", "0 3", command]) as process:
        while not (tmp_path / "runs").exists():
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    assert (tmp_path / "asked").read_text() == "asked\n"
