"""What version 0.1.0 left on disks opens, shows and goes on in every later version.

tests/fixtures/README.md says how the folders were made. They are never made anew: where a test fails, the code is
wrong. Only the command line and the names of `hatdfed` itself are used here, because all else may move.
"""

import csv
import importlib.util
import io
import json
import re
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import numpy as np
import pytest
import yaml
from safetensors import safe_open
from tests.compat.telling import results_of, rounds_of

import hatdfed

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "v0.1.0"
FINISHED = {"run": 6, "run-plus": 8, "run-candidates": 6, "run-top-k": 4}  # rounds
UNFINISHED = {"run-stopped": (17, 24), "deployment/state": (6, 12)}  # rounds completed, rounds asked for
COMPARE = (
    *("compare", "--methods", "hat-dfed,d-psgd", "--seeds", "2", "--dataset", "digits", "--servers", "3"),
    *("--rounds", "4", "--set", "network=linear", "--set", "images_per_server=80", "--set", "validation_images=50"),
    *("--set", "learner.learning_rate=0.01", "--jobs", "1", "--out", "comparison"),
)
SWEEP = ("sweep", "sweep-file.yaml", "--jobs", "1", "--out", "sweep")
HAS_DASHBOARD = all(importlib.util.find_spec(name) for name in ("fastapi", "jinja2", "plotly", "uvicorn"))
HAS_DEPLOY = all(importlib.util.find_spec(name) for name in ("cryptography", "grpc", "google.protobuf"))
pytestmark = pytest.mark.usefixtures("blank_pictures")


class Done(NamedTuple):
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def left(tmp_path):
    """A copy of what 0.1.0 left: commands lock, write and draw there."""
    # What SQLite makes beside a database while another test reads it comes and goes.
    beside = shutil.ignore_patterns("*.sqlite-wal", "*.sqlite-shm")
    return shutil.copytree(FIXTURES, tmp_path / "left", ignore=beside)


@pytest.fixture
def call(left, monkeypatch, capfd):
    """The command `hatdfed` as `python -m` runs it, in this process: importing torch once saves much."""
    monkeypatch.chdir(left)

    def begin(*arguments, check=True):
        monkeypatch.setattr(sys, "argv", ["hatdfed", *arguments])
        capfd.readouterr()
        try:
            runpy.run_module("hatdfed", run_name="__main__")
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        done = Done(code, *capfd.readouterr())
        if check:
            assert done.returncode == 0, done.stderr
        return done

    return begin


def expected(name):
    """What 0.1.0 made of the same."""
    return json.loads((FIXTURES / "expected" / f"{name}.json").read_text(encoding="utf-8"))


def assert_played(folder, name):
    """The folder holds what 0.1.0 would have played: links exactly, accuracies to the image, joules to round-off."""
    wanted, rounds = expected(name), rounds_of(folder)
    assert [row["t"] for row in rounds] == list(range(len(wanted["rounds"])))
    for mine, theirs in zip(rounds, wanted["rounds"], strict=True):
        assert mine["links"] == theirs["links"], f"round {mine['t']} draws other links"
        assert mine["accuracy"] == pytest.approx(theirs["accuracy"], abs=1e-6)
        assert mine["joules"] == pytest.approx(theirs["joules"], rel=1e-9)
    assert_close(results_of(folder), wanted["results"])


def assert_close(mine, theirs, but=()):
    """Figures agree, one by one; what is no figure is the same."""
    assert mine.keys() >= theirs.keys()  # a later version may tell more
    for key in theirs.keys() - set(but):
        is_figure = isinstance(theirs[key], float | list)
        assert mine[key] == (pytest.approx(theirs[key], rel=1e-6, abs=1e-9) if is_figure else theirs[key]), key


def assert_same_table(folder):
    """A sweep's table is that of 0.1.0, which had Student's t to 13 digits, with standard deviations."""
    mine, theirs = (
        list(csv.DictReader((at / "summary.csv").read_text(encoding="utf-8").splitlines()))
        for at in (folder, FIXTURES / "sweep")
    )
    assert_same_values([without_deviations(row) for row in mine], theirs)
    mine, theirs = (json.loads((at / "summary.json").read_text()) for at in (folder, FIXTURES / "sweep"))
    mine["rows"] = [without_deviations(row) for row in mine["rows"]]
    assert_same_values(mine, theirs)
    assert list(mine["rows"][0]) == list(theirs["rows"][0])


def without_deviations(row):
    return {name: value for name, value in row.items() if not name.endswith("_sd")}


def assert_same_values(mine, theirs):
    if isinstance(theirs, dict | list):
        assert len(mine) == len(theirs)
        for key in theirs if isinstance(theirs, dict) else range(len(theirs)):
            assert_same_values(mine[key], theirs[key])
    elif re.fullmatch(r"-?[0-9]+\.[0-9e+-]+", str(theirs)):
        assert float(mine) == pytest.approx(float(theirs), rel=1e-12)
    else:
        assert mine == theirs


def tensors(path):
    with safe_open(path, framework="numpy") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118


def assert_model(path, name, atol=0.0):
    """The exported model is the one that 0.1.0 exported, tensor by tensor, and says the same about itself."""
    (mine, about), (theirs, wanted) = tensors(path), tensors(FIXTURES / "expected" / f"{name}.safetensors")
    assert mine.keys() == theirs.keys()
    for key in theirs:
        np.testing.assert_allclose(mine[key], theirs[key], rtol=0, atol=atol, err_msg=key)
    assert about.items() >= wanted.items()


def stamps(folder):
    """Content and time of all files: what was played again is not the same."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


# Showing


@pytest.mark.parametrize("name", FINISHED)
def test_a_finished_run_is_shown(call, name):
    shown = json.loads(call("show", name, "--json").stdout)
    results = json.loads((FIXTURES / name / "results.json").read_text(encoding="utf-8"))
    del results["config"]  # a later version may know more settings
    assert shown.items() >= results.items()
    table = call("show", name).stdout
    assert f"{results['method']} on synthetic, {len(results['accuracy_by_server'])} servers" in table
    assert f"{FINISHED[name]} rounds, seed 0" in table
    assert f"{results['avg_accuracy']:.1f}" in table


@pytest.mark.parametrize("name", UNFINISHED)
def test_a_run_that_was_stopped_says_how_far_it_is(call, name):
    played, rounds = UNFINISHED[name]
    shown = json.loads(call("show", name, "--json").stdout)
    assert (shown["rounds"], shown["config"]["rounds"], shown["finished"]) == (played, rounds, False)
    text = call("show", name).stdout
    assert f"{played} of {rounds} rounds completed" in text
    assert ("--resume" if name == "run-stopped" else "start its coordinator again") in text


# Making figures takes most of a second for each run, so no run is reported on twice.
@pytest.mark.parametrize(
    ("form", "names"),
    [("html", ("run-plus", "run-candidates", "run-top-k", "run-stopped", "deployment/state")), ("md", ("run",))],
    ids=["html", "md"],
)
def test_every_kind_of_run_goes_into_a_report(call, left, form, names):
    call("report", *names, "--format", form, "-o", f"report.{form}")
    text = (left / f"report.{form}").read_text(encoding="utf-8")
    for name in names:
        assert Path(name).name in text
    # Runs of different settings are told apart, and what is not over is said to be so.
    assert ("top-k" in text, "17 of 24" in text) == ("run-top-k" in names, "run-stopped" in names)


@pytest.mark.skipif(not HAS_DASHBOARD, reason="the extra `dashboard` is not installed")
def test_the_dashboard_reads_every_folder(left):
    command = [sys.executable, "-m", "hatdfed", "dashboard", "--runs", str(left), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            address = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())[0]
            look_at_all(address)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(timeout=20)


def look_at_all(address):
    def ask(path):
        with urllib.request.urlopen(address + path, timeout=20) as answer:  # noqa: S310 (our own address)
            return answer.read().decode()

    cards = {card["name"]: card for card in json.loads(ask("/api/runs"))}
    assert len(cards) == len(FINISHED) + len(UNFINISHED) + 4 + 4  # and those of comparison and sweep
    assert [card["trouble"] for card in cards.values()] == [None] * len(cards)
    for name in (*FINISHED, *UNFINISHED):
        card, rounds = cards[name], rounds_of(FIXTURES / name)
        assert (card["played"], card["is_finished"]) == (len(rounds), name in FINISHED)
        series = json.loads(ask(f"/api/runs/{card['id']}/series"))
        accuracy = [np.mean(row["accuracy"]) for row in rounds]
        assert series["accuracy"]["avg"] == pytest.approx(accuracy, rel=1e-5)
        assert series["total_joules"][-1] == pytest.approx(sum(sum(row["joules"]) for row in rounds), rel=1e-5)
        view = json.loads(ask(f"/api/runs/{card['id']}/rounds/1"))
        assert [[link["to"], link["from"]] for link in view["links"]] == rounds[1]["links"]
        ledger = csv.DictReader(io.StringIO(ask(f"/api/runs/{card['id']}/ledger.csv")))
        assert sum(float(line["joules"]) for line in ledger) == pytest.approx(sum(sum(row["joules"]) for row in rounds))
        assert quote(card["method"]) in ask(f"/runs/{card['id']}")
    chosen = "&".join(f"run={cards[name]['id']}" for name in FINISHED)
    worlds = json.loads(ask(f"/api/compare?{chosen}"))["worlds"]
    assert {row["label"] for world in worlds for row in world["rows"]} >= {"hat-dfed-plus"}


# Going on


def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(call, left):
    done = json.loads(call("run", "--resume", "run-stopped", "--json").stdout)
    assert done["rounds"] == 24
    assert_played(left / "run-stopped", "run-stopped")
    call("export", "run-stopped", "--server", "0", "--out", "model.safetensors")
    assert_model(left / "model.safetensors", "run-stopped", atol=1e-5)


def test_it_goes_on_the_same_with_mailboxes(left):
    hatdfed.resume(left / "run-stopped", fleet="mailbox")
    assert_played(left / "run-stopped", "run-stopped")


def test_a_finished_run_is_given_more_rounds(call, left):
    call("run", "--resume", "run", "--rounds", "9")
    assert_played(left / "run", "run")
    assert "9 rounds, seed 0" in call("show", "run").stdout


@pytest.mark.parametrize("name", ["run-plus", "run-candidates"])
def test_runs_of_other_kinds_are_given_more_rounds_in_python(left, name):
    result = hatdfed.resume(left / name, {"rounds": FINISHED[name] + 3})
    assert result.summary["rounds"] == len(result.rounds) == FINISHED[name] + 3
    assert_played(left / name, name)


@pytest.mark.parametrize("name", ["run", "run-plus", "run-candidates"])
def test_records_of_a_finished_run_come_back_in_python(left, name):
    result, rounds = hatdfed.resume(left / name), rounds_of(FIXTURES / name)  # nothing is left to play
    assert [row["t"] for row in result.rounds] == list(range(FINISHED[name]))
    assert [[row["receiver"], row["sender"]] for row in result.links] == [pair for r in rounds for pair in r["links"]]
    assert [row["accuracy"] for row in result.servers] == [value for r in rounds for value in r["accuracy"]]
    assert sum(row["joules"] for row in result.ledger) == pytest.approx(sum(sum(r["joules"]) for r in rounds))
    assert result.propensity.shape == (result.config.servers,) * 2
    assert_close(results_of(left / name), results_of(FIXTURES / name))


def test_the_settings_of_a_run_give_the_same_run_again(left):
    hatdfed.run(yaml.safe_load((left / "run" / "config.yaml").read_text(encoding="utf-8")), out=left / "again")
    rounds = rounds_of(left / "again")
    assert [row["links"] for row in rounds] == [row["links"] for row in rounds_of(FIXTURES / "run")]
    assert_close(results_of(left / "again"), results_of(FIXTURES / "run"))


def test_a_run_of_a_codec_that_is_gone_is_not_gone_on_with(call, left):
    shutil.move(left / "run-top-k", left / "old")  # the sentence has to name the codec, not only the folder
    before = stamps(left / "old")
    done = call("run", "--resume", "old", "--rounds", "6", check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    (sentence,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "top-k" in sentence
    assert stamps(left / "old") == before


# Taking models out


def test_a_model_of_a_codec_that_is_gone_is_still_exported(call, left):
    call("export", "run-top-k", "--server", "1", "--out", "model.safetensors")
    (model, about) = tensors(left / "model.safetensors")
    exported = np.concatenate([array.ravel() for array in model.values()])
    with safe_open(FIXTURES / "run-top-k" / "checkpoint.safetensors", framework="numpy") as file:
        np.testing.assert_array_equal(np.sort(exported), np.sort(file.get_tensor("1.params")))
    assert about["server"] == "1"


@pytest.mark.parametrize("name", ["run", "run-plus"])
def test_a_model_is_exported_from_a_run(call, left, name):
    call("export", name, "--server", "0", "--out", "model.safetensors")
    assert_model(left / "model.safetensors", name)


def test_a_model_is_exported_from_a_run_that_was_stopped(call):
    done = call("export", "run-stopped", "--server", "2", "--out", "model.safetensors", "--json")
    assert json.loads(done.stdout)["rounds"] == "16"  # of the checkpoint; records are ahead of it
    assert "The run is not over" in done.stderr


def test_a_model_is_exported_from_the_store_of_an_edge(call, left):
    call("export", "deployment/stores/edge-1", "--config", "deployment/state", "--out", "model.safetensors")
    assert_model(left / "model.safetensors", "edge-1")


# Many runs


def test_a_comparison_is_gone_on_with_and_plays_only_what_is_missing(call, left):
    missing, finished = "d-psgd-seed1", ("hat-dfed-seed0", "hat-dfed-seed1", "d-psgd-seed0")
    before = {name: stamps(left / "comparison" / name) for name in finished}
    assert not (left / "comparison" / missing / "results.json").exists()
    call(*COMPARE)
    assert {name: stamps(left / "comparison" / name) for name in finished} == before
    rounds = zip(*(rounds_of(folder / "comparison" / missing) for folder in (left, FIXTURES)), strict=True)
    for mine, theirs in rounds:
        assert mine["links"] == theirs["links"]
        assert mine["accuracy"] == pytest.approx(theirs["accuracy"], abs=1e-6)
    # The table is the one that 0.1.0 made when this comparison was whole.
    table, old = (json.loads((folder / "comparison" / "comparison.json").read_text()) for folder in (left, FIXTURES))
    for mine, theirs in zip(table, old, strict=True):
        assert_close(mine, theirs, but=("seconds", "seconds_sd"))


def test_a_sweep_that_is_complete_plays_nothing_and_makes_the_same_table(call, left):
    assert "4 runs (2 points, 2 seeds), 4 done, 0 to do" in call(*SWEEP, "--dry-run").stdout
    before = stamps(left / "sweep" / "runs")
    call(*SWEEP)
    assert stamps(left / "sweep" / "runs") == before
    assert (left / "sweep" / "sweep.yaml").read_bytes() == (FIXTURES / "sweep" / "sweep.yaml").read_bytes()
    assert_same_table(left / "sweep")


def test_a_sweep_file_finds_the_folder_that_it_always_had(call, left):
    shutil.move(left / "sweep", left / "runs" / "sweep-file-1bcae3c3")
    assert "4 done, 0 to do. Folder: runs/sweep-file-1bcae3c3" in call("sweep", "sweep-file.yaml", "--dry-run").stdout


def test_a_run_of_a_sweep_that_was_begun_goes_on_from_its_checkpoint(call, left):
    begun = left / "sweep" / "runs" / "method=rnd,cool_down=0.5,codec=float16,seed=1"
    (begun / "results.json").unlink()
    assert "3 done, 1 begun, 1 to do" in call(*SWEEP, "--dry-run").stdout
    call(*SWEEP)
    assert_same_table(left / "sweep")


# A deployment


@pytest.mark.processes
@pytest.mark.skipif(not HAS_DEPLOY, reason="the extra `deploy` is not installed")
def test_a_deployment_goes_on_with_its_rounds_and_models(call, left):
    folder = left / "deployment"
    settings = (folder / "settings.yaml").read_text(encoding="utf-8")
    # Whoever is slow to start is waited for: the rounds to compare with had all three servers.
    (folder / "settings.yaml").write_text(settings.replace("deploy: {", "deploy: {min_servers: 3, "), encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
    edge = ("edge", "--coordinator", where, "--insecure", "--threads", "1", "--patience", "60")
    commands = [("coordinator", "settings.yaml", "--state", "state", "--listen", where, "--insecure", "--json")]
    commands += [(*edge, "--name", f"edge-{n}", "--store", f"stores/edge-{n}") for n in (1, 2, 3)]
    with ExitStack() as stack:
        processes = [started(stack, folder, *command) for command in commands]
        for process in processes:
            assert process.wait(timeout=90) == 0, (folder / f"{process.pid}.log").read_text(encoding="utf-8")
    # What was played before is kept, and what follows is what it would have been: so the edges kept their models.
    assert rounds_of(folder / "state")[:6] == rounds_of(FIXTURES / "deployment" / "state")
    assert_played(folder / "state", "deployment")
    assert "12 rounds, seed 0" in call("show", "deployment/state").stdout
    kept = ("deployment/stores/edge-1", "--config", "deployment/state", "--out", "model.safetensors")
    assert json.loads(call("export", *kept, "--json").stdout)["rounds"] == "12"


def started(stack, folder, *arguments):
    """A process that does not outlive the test, with a log of its own."""
    log = stack.enter_context((folder / "log").open("wb"))
    process = subprocess.Popen(
        [sys.executable, "-m", "hatdfed", *arguments], cwd=folder, stdout=subprocess.DEVNULL, stderr=log
    )
    (folder / "log").rename(folder / f"{process.pid}.log")
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


@pytest.mark.skipif(not HAS_DEPLOY, reason="the extra `deploy` is not installed")
def test_the_state_of_a_deployment_can_be_backed_up_and_restored(call, left):
    call("backup", "deployment/state", "backup")
    call("restore", "backup", "restored")
    assert rounds_of(left / "restored") == rounds_of(FIXTURES / "deployment" / "state")
