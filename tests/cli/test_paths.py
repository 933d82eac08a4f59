"""Paths that a user does not mean: nothing at all, or a file that belongs to a run."""

import sys

import pytest

from hatdfed.cli.app import main
from hatdfed.runs.calls import run

OF_A_RUN = ["config.yaml", "environment.json", "results.json", "run.sqlite", "run.sqlite-wal", "checkpoint.safetensors"]


def refused(monkeypatch, capfd, *arguments):
    """The one sentence that a command ends with."""
    monkeypatch.setattr(sys, "argv", ["hatdfed", *map(str, arguments)])
    capfd.readouterr()
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    (sentence,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error: ")]
    return sentence


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    folder = tmp_path_factory.mktemp("played") / "run"
    settings = {"dataset": "synthetic", "network": "linear", "validation_images": 60, "servers": 2}
    return run(**settings, rounds=1, out=folder).folder


@pytest.mark.parametrize("name", OF_A_RUN)
@pytest.mark.parametrize("verb", [["export", "--server", "0"], ["report"]])
def test_the_files_of_a_run_are_not_written_over(played, monkeypatch, capfd, verb, name):
    before = {path.name: path.read_bytes() for path in played.iterdir()}
    assert "belongs to the run" in refused(monkeypatch, capfd, *verb, played, "--out", played / name)
    assert {path.name: path.read_bytes() for path in played.iterdir()} == before


def test_a_link_to_a_file_of_a_run_is_no_way_around(played, tmp_path, monkeypatch, capfd):
    (tmp_path / "model.safetensors").symlink_to(played / "checkpoint.safetensors")
    (tmp_path / "same").symlink_to(played)
    for way in (tmp_path / "model.safetensors", tmp_path / "same" / "checkpoint.safetensors"):
        assert "belongs to the run" in refused(monkeypatch, capfd, "export", played, "--server", "0", "--out", way)


def test_a_file_of_that_name_elsewhere_may_be_written(played, tmp_path, monkeypatch):
    for way in (tmp_path / "checkpoint.safetensors", played / "model.safetensors"):
        monkeypatch.setattr(sys, "argv", ["hatdfed", "export", str(played), "--server", "0", "--out", str(way)])
        with pytest.raises(SystemExit) as stop:
            main()
        assert not stop.value.code
        assert way.is_file()


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "--out", ""],
        ["run", "--resume", ""],
        ["compare", "--out", " "],
        ["show", ""],
        ["report", ""],
        ["report", ".", "--out", ""],
        ["export", "", "--out", "model.onnx"],
        ["export", ".", "--out", ""],
    ],
)
def test_an_empty_path_is_not_the_current_folder(tmp_path, monkeypatch, capfd, arguments):
    monkeypatch.chdir(tmp_path)
    assert "A path is empty" in refused(monkeypatch, capfd, *arguments)
    assert not list(tmp_path.iterdir())


def test_the_current_folder_can_be_named(played, monkeypatch, capfd):
    monkeypatch.chdir(played)
    monkeypatch.setattr(sys, "argv", ["hatdfed", "show", "."])
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code


def test_a_resumed_run_stays_in_its_folder(played, tmp_path, monkeypatch, capfd):
    sentence = refused(monkeypatch, capfd, "run", "--resume", played, "--out", tmp_path / "other")
    assert "Leave one of them out" in sentence
    assert not (tmp_path / "other").exists()
