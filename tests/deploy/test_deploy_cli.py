"""The commands of a deployment as an operator types them."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

from hatdfed.cli.app import main
from hatdfed.cli.edge import _resolve_listen
from hatdfed.errors import ConfigError
from hatdfed.runs.records.folder import RunFolder
from hatdfed.setup.layers import resolve

RUN = "dataset: synthetic\nnetwork: linear\nservers: 2\nrounds: 2\n"
SECONDS = 60


@pytest.fixture
def hatdfed(monkeypatch, capfd, tmp_path):
    """The command in this process; its exit code and what it said on standard error."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(RUN)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["hatdfed", *arguments])
        capfd.readouterr()
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        return code, capfd.readouterr().err

    return call


@pytest.fixture
def start(tmp_path):
    """Starts a command as a process, which does not outlive the test."""
    running = []

    def begin(*arguments, env=None):
        command = [sys.executable, "-m", "hatdfed", *arguments]
        with (tmp_path / f"{len(running)}.log").open("wb") as log:
            process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=log, env=env)
        process.log = tmp_path / f"{len(running)}.log"
        running.append(process)
        return process

    yield begin
    for process in running:
        process.kill()
        process.communicate()


def waited(process, pattern):
    """The log of a process, once it has a line like this."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        text = process.log.read_text()
        if found := re.search(pattern, text):
            return found
        assert process.poll() is None, text
        time.sleep(0.05)
    raise AssertionError(process.log.read_text())


def port_of(coordinator):
    return waited(coordinator, r"listens at port (\d+)")[1]


COORDINATOR = ("coordinator", "run.yaml", "--state", "run")


def test_a_coordinator_without_certificates_says_how_to_make_them(hatdfed, tmp_path):
    code, said = hatdfed(*COORDINATOR)
    assert code == 2
    assert "hatdfed ca init" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "command",
    [
        (*COORDINATOR, "--insecure", "--listen", "0.0.0.0:0"),
        (*COORDINATOR, "--insecure", "--listen", "[::]:0"),
        ("edge", "--coordinator", "192.0.2.1:7444", "--insecure", "--name", "a", "--listen", ""),
        ("edge", "--coordinator", "127.0.0.1:7444", "--insecure", "--name", "a", "--listen", "0.0.0.0:7999"),
        ("status", "--coordinator", "192.0.2.1:7444", "--insecure"),
        ("drain", "edge-1", "--coordinator", "coordinator.example:7444", "--insecure"),
        ("stop", "--coordinator", "192.0.2.1:7444", "--insecure"),
    ],
)
def test_plain_text_stays_on_this_machine(hatdfed, command):
    code, said = hatdfed(*command)
    assert code == 2
    assert "--insecure-anywhere" in said


def test_plain_text_is_loud_and_can_be_insisted_on(hatdfed, start, tmp_path):
    (tmp_path / "run.yaml").write_text(RUN)
    coordinator = start(*COORDINATOR, "--insecure", "--insecure-anywhere", "--listen", "0.0.0.0:0")
    line = waited(coordinator, r".*INSECURE: everything is sent in plain text.*")[0]
    assert json.loads(line)["level"] == "warning"
    port_of(coordinator)
    coordinator.send_signal(signal.SIGTERM)
    assert coordinator.wait(SECONDS) == 0
    assert all(json.loads(line) for line in coordinator.log.read_text().splitlines())


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("edge",), "--coordinator HOST:PORT"),
        (("edge", "--coordinator", "127.0.0.1:7444"), "hatdfed edge join"),
        (("edge", "--coordinator", "127.0.0.1:7444", "--insecure"), "--name"),
        (("edge", "--coordinator", "7444"), "HOST:PORT"),
        (("edge", "--coordinator", "127.0.0.1:7444", "--work-share", "0"), "--work-share"),
        (("edge", "--coordinator", "127.0.0.1:7444", "--identity", "nowhere"), "nowhere"),
        (("status", "--coordinator", "7444", "--insecure"), "HOST:PORT"),
        (("status",), "--ca FOLDER"),
        (("status", "--coordinator", "127.0.0.1:1", "--insecure"), "does not answer (Connection refused)"),
        ((*COORDINATOR, "--set", "deploy.round_second=3", "--insecure"), "deploy.round_second"),
        ((*COORDINATOR, "--listen", "7444", "--insecure"), "--listen"),
    ],
)
def test_what_is_missing_or_wrong_is_said_in_a_sentence(hatdfed, command, words):
    code, said = hatdfed(*command)
    assert code == 2
    assert words in said
    assert "Traceback" not in said


def test_a_port_that_is_taken_is_named_and_grpc_keeps_quiet(hatdfed, start, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        process = start(*COORDINATOR, "--insecure", "--listen", address)
        assert process.wait(SECONDS) == 2
    *_, last = process.log.read_text().splitlines()
    assert address in last
    assert "add_port" not in process.log.read_text()


def test_an_edge_that_waits_for_its_coordinator_leaves_when_asked(hatdfed, start):
    edge = start("edge", "--coordinator", "127.0.0.1:1", "--insecure", "--name", "edge-1")
    waited(edge, r"the coordinator is away")
    edge.send_signal(signal.SIGTERM)
    assert edge.wait(20) == 0
    assert "asked to leave" in edge.log.read_text()


def test_what_the_coordinator_refuses_is_no_silence(hatdfed, start):
    coordinator = start(*COORDINATOR, "--insecure", "--listen", "127.0.0.1:0")
    where = f"127.0.0.1:{port_of(coordinator)}"
    code, said = hatdfed("drain", "edge-9", "--coordinator", where, "--insecure")
    assert code == 2
    assert "The coordinator refuses: There is no server called 'edge-9'" in said
    assert hatdfed("stop", "--coordinator", where, "--insecure")[0] == 0
    assert coordinator.wait(SECONDS) == 0


def test_a_finished_run_shows_its_results_and_waits_for_nobody(hatdfed, tmp_path):
    config = resolve({"dataset": "synthetic", "network": "linear", "servers": 2, "rounds": 2})
    folder = RunFolder.create(tmp_path / "run", config)
    figures = {"avg_accuracy": 50.0, "run_folder": "run", "config": config.model_dump(mode="json")}
    folder.write_json("results.json", figures)
    code, said = hatdfed(*COORDINATOR, "--json", "--insecure")
    assert code == 0
    assert "has all its rounds already" in said


@pytest.mark.parametrize(
    ("listen", "advertise", "expected"),
    [
        (None, "", ("127.0.0.1:0", "")),
        ("", "", ("", "")),
        ("127.0.0.1:7445", "", ("127.0.0.1:7445", "")),
        ("0.0.0.0:7445", "", ("0.0.0.0:7445", "127.0.0.1:7445")),
        ("[::]:7445", "", ("[::]:7445", "127.0.0.1:7445")),
        ("0.0.0.0:7445", "edge.example:80", ("0.0.0.0:7445", "edge.example:80")),
    ],
)
def test_others_are_told_an_address_that_can_be_dialled(listen, advertise, expected):
    assert _resolve_listen(listen, advertise, "127.0.0.1", 7444) == expected


def test_an_edge_at_any_address_and_any_port_is_refused():
    with pytest.raises(ConfigError, match="Name a port"):
        _resolve_listen("0.0.0.0:0", "", "127.0.0.1", 7444)


@pytest.fixture
def without_torch(tmp_path):
    """An environment in which the packages that train and draw cannot be imported."""
    stubs = tmp_path / "stubs"
    stubs.mkdir()
    for name in ("torch", "sklearn", "matplotlib", "scipy", "pandas"):
        (stubs / f"{name}.py").write_text(f"raise ModuleNotFoundError('No module named {name}', name='{name}')\n")
    return {**os.environ, "PYTHONPATH": str(stubs)}


@pytest.mark.processes
def test_a_coordinator_runs_where_there_is_no_torch(hatdfed, start, tmp_path, without_torch):
    def done(*arguments):
        command = [sys.executable, "-m", "hatdfed", *arguments]
        found = subprocess.run(command, cwd=tmp_path, env=without_torch, capture_output=True, text=True)
        assert found.returncode == 0, found.stderr
        return found.stdout

    done("ca", "init", "ca")
    done("token", "create", "--ca", "ca", "--node", "edge-1")
    metrics = ("--metrics", "127.0.0.1:0")
    coordinator = start(*COORDINATOR, "--ca", "ca", "--listen", "127.0.0.1:0", *metrics, env=without_torch)
    where = f"127.0.0.1:{port_of(coordinator)}"
    status = json.loads(done("status", "--coordinator", where, "--json"))  # ./ca is found by itself
    assert (status["round"], status["rounds"], status["servers"]) == (0, 2, [])
    done("ca", "init", "another")
    code, said = hatdfed("status", "--coordinator", where, "--ca", "another")
    assert code == 2
    assert "its certificate is of another authority" in said
    assert "waits for servers" in done("status", "--coordinator", where, "--ca", "ca")
    assert "ends now" in done("stop", "--coordinator", where, "--ca", "ca")
    assert coordinator.wait(SECONDS) == 0
    assert "Stopped" in coordinator.log.read_text()


def test_an_edge_without_torch_says_what_to_install(hatdfed, monkeypatch):
    monkeypatch.setattr("hatdfed.cli.console.find_spec", lambda name: None)
    code, said = hatdfed("edge", "--coordinator", "127.0.0.1:1", "--insecure", "--name", "a")
    assert code == 2
    assert "hatdfed[sim]" in said
