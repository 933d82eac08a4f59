"""Runs in TensorBoard and MLflow: read back with their own readers, never twice, never over the network."""

import json
import os
import re
import shutil
import socket
import sqlite3
import sys
import warnings

import pytest
from tests import small_runs

import hatdfed
from hatdfed.cli.app import main
from hatdfed.errors import ConfigError, RunFolderError
from hatdfed.report.sinks import make_publishers
from hatdfed.report.sinks.mlflow import store_address

pytestmark = pytest.mark.usefixtures("blank_pictures")

SMALL = {**small_runs.SMALL, "method": "rnd"}


@pytest.fixture(scope="module", autouse=True)
def both_installed():
    """Here and not above: every worker process collects this file, and one runs it."""
    pytest.importorskip("tensorboard")
    pytest.importorskip("mlflow")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sinks") / "run"
    return hatdfed.run(out=folder, **SMALL)


def refuse_connections(monkeypatch):
    def refused(*_, **__):
        raise AssertionError("went out")

    monkeypatch.setattr(socket.socket, "connect", refused)
    monkeypatch.setattr(socket, "create_connection", refused)


@pytest.fixture
def no_network(monkeypatch):
    refuse_connections(monkeypatch)


@pytest.fixture(scope="module")
def empty_store(tmp_path_factory):
    """The file that we let MLflow make where there is none; to be copied, because that takes seconds."""
    folder = tmp_path_factory.mktemp("store")
    (publish,) = make_publishers(folder, mlflow="")
    with pytest.MonkeyPatch.context() as monkeypatch, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        refuse_connections(monkeypatch)
        publish._client()
    return folder / "mlflow.sqlite"


def events(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return found


def curve(found, name):
    return [(point.step, point.value) for point in found.Scalars(name)]


def test_events_hold_every_round_and_the_end(run, tmp_path, no_network):
    (publish,) = make_publishers(tmp_path, tensorboard=True)
    publish("one", run.folder)
    found = events(tmp_path / "tensorboard" / "one")
    columns = {
        "validation_accuracy/mean": "avg_accuracy",
        "validation_accuracy/min": "worst_accuracy",
        "validation_accuracy/max": "best_accuracy",
        "joules/upload": "upload_joules",
        "joules/training": "training_joules",
        "joules/link": "link_joules",
        "links": "links",
    }
    for name, column in columns.items():
        assert curve(found, name) == [(row["t"] + 1, pytest.approx(row[column])) for row in run.rounds], name
    assert curve(found, "final/avg_accuracy") == [(3, pytest.approx(run.summary["avg_accuracy"]))]
    text = found.Tensors("settings")[0].tensor_proto.string_val[0].decode()
    assert "| method | rnd |" in text
    assert "| learner.optimiser | adam |" in text


def test_a_run_that_is_shown_is_not_shown_again(run, empty_store, tmp_path):
    shutil.copy(empty_store, tmp_path)
    for _ in range(2):
        for publish in make_publishers(tmp_path, tensorboard=True, mlflow=""):
            publish("one", run.folder)
    assert len(list((tmp_path / "tensorboard" / "one").iterdir())) == 1
    with sqlite3.connect(tmp_path / "mlflow.sqlite") as store:
        assert store.execute("SELECT name, status FROM runs").fetchall() == [("one", "FINISHED")]
    store.close()


def test_mlflow_has_settings_curves_and_the_end_and_calls_nobody(run, empty_store, tmp_path, no_network, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(empty_store, "store.sqlite")
    (publish,) = make_publishers(tmp_path / "s", mlflow="sqlite:///store.sqlite")
    publish("one", run.folder)
    store = sqlite3.connect(tmp_path / "store.sqlite")
    params = dict(store.execute("SELECT key, value FROM params"))
    assert (params["method"], params["learner.optimiser"], params["rounds"]) == ("rnd", "adam", "3")
    mean = store.execute("SELECT step, value FROM metrics WHERE key = 'validation_accuracy/mean' ORDER BY step")
    assert mean.fetchall() == [(row["t"] + 1, pytest.approx(row["avg_accuracy"])) for row in run.rounds]
    final = store.execute("SELECT value FROM metrics WHERE key = 'final/total_energy_mj'").fetchall()
    assert final == [(pytest.approx(run.summary["total_energy_mj"]),)]
    store.close()
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert not (tmp_path / "mlruns").exists()


@pytest.mark.parametrize("address", ["./mlruns", "file:///tmp/mlruns", "mlruns", "file:mlruns"])
def test_folders_of_small_files_are_refused(tmp_path, address):
    with pytest.raises(ConfigError, match="file store is not supported"):
        store_address(address, tmp_path)


def test_a_store_that_cannot_be_used_is_one_sentence_without_its_password(run, tmp_path):
    (publish,) = make_publishers(tmp_path, mlflow="postgresql://me:secret@nowhere.invalid/runs")
    with pytest.raises(RunFolderError, match=r"postgresql://…@nowhere.invalid/runs cannot be used") as caught:
        publish("one", run.folder)
    assert "secret" not in str(caught.value)


def command(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["hatdfed", *map(str, arguments)])
    try:
        main()
    except SystemExit as stop:
        return stop.code or 0
    return 0


def settings():
    return [f"--set={key}={json.dumps(value)}" for key, value in SMALL.items() if key != "method"]


def test_a_run_that_sees_the_test_set_has_no_curve_of_validation_accuracy(empty_store, tmp_path, monkeypatch):
    folder, asked = tmp_path / "run", ["--tensorboard", "--mlflow", "--json"]
    folder.mkdir()
    shutil.copy(empty_store, folder)
    assert command(monkeypatch, "run", "--method", "hat-dfed-released", *settings(), "--out", folder, *asked) == 0
    assert command(monkeypatch, "run", "--resume", folder, "--rounds", 4, *asked) == 0
    (publish,) = make_publishers(tmp_path, tensorboard=True)
    publish("again", folder)
    for place in (folder / "tensorboard", tmp_path / "tensorboard" / "again"):
        found = events(place)
        assert [step for step, _ in curve(found, "test_accuracy/mean")] == [1, 2, 3, 4]
        assert not [name for name in found.Tags()["scalars"] if "validation" in name]
    with sqlite3.connect(folder / "mlflow.sqlite") as store:
        names = {key for (key,) in store.execute("SELECT DISTINCT key FROM metrics")}
    store.close()
    assert {"test_accuracy/mean", "test_accuracy/min", "test_accuracy/max"} <= names
    assert not [name for name in names if "validation" in name]


def test_a_run_is_shown_while_it_is_played_and_whole_after_it_went_on(empty_store, tmp_path, monkeypatch, capfd):
    folder = tmp_path / "run"
    folder.mkdir()
    shutil.copy(empty_store, folder)
    asked = ["--tensorboard", "--mlflow", "--json"]
    assert command(monkeypatch, "run", "--method", "rnd", *settings(), "--out", folder, *asked) == 0
    assert [step for step, _ in curve(events(folder / "tensorboard"), "links")] == [1, 2, 3]
    assert command(monkeypatch, "run", "--resume", folder, "--rounds", 5, *asked) == 0
    said = json.loads(capfd.readouterr().out.splitlines()[-1])
    found = events(folder / "tensorboard")
    assert [step for step, _ in curve(found, "validation_accuracy/mean")] == [1, 2, 3, 4, 5]
    assert curve(found, "final/avg_accuracy") == [(5, pytest.approx(said["avg_accuracy"]))]
    store = sqlite3.connect(folder / "mlflow.sqlite")
    active = store.execute("SELECT run_uuid FROM runs WHERE lifecycle_stage = 'active'").fetchall()
    steps = store.execute("SELECT count(*) FROM metrics WHERE key = 'links' AND run_uuid = ?", active[0]).fetchone()
    store.close()
    assert (len(active), steps) == (1, (5,))


def test_a_comparison_shows_every_run(tmp_path, monkeypatch, capfd):
    options = ["--methods", "rnd,local", "--seeds", 1, "--jobs", 1, "--out", tmp_path / "c", "--tensorboard"]
    assert command(monkeypatch, "compare", *settings(), *options) == 0
    assert {path.name for path in (tmp_path / "c" / "tensorboard").iterdir()} == {"rnd-seed0", "local-seed0"}
    assert re.search(r"rnd +[\d.]+", capfd.readouterr().out)


def test_runs_of_a_sweep_that_were_done_before_are_shown_too(tmp_path):
    sweep = {"base": SMALL, "seeds": 2}
    hatdfed.sweep(sweep, out=tmp_path / "s", jobs=1)
    shown = make_publishers(tmp_path / "s", tensorboard=True)
    hatdfed.sweep(sweep, out=tmp_path / "s", jobs=1, publishers=shown)
    assert {path.name for path in (tmp_path / "s" / "tensorboard").iterdir()} == {"seed=0", "seed=1"}
