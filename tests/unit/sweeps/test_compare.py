"""A comparison as it is asked for, kept, stopped and gone on with, and what the command says about it."""

import io
import json
import re
import shutil
import sys

import numpy as np
import pytest
from rich.console import Console

import hatdfed
import hatdfed.cli.tables as tables
from hatdfed.cli.app import main
from hatdfed.errors import ConfigError, RunFolderError
from hatdfed.runs.calls import run
from hatdfed.runs.play import play
from hatdfed.runs.records.folder import RunFolder
from hatdfed.setup.layers import resolve
from hatdfed.setup.methods import METHODS, Method
from hatdfed.sweeps.calls import compare
from hatdfed.sweeps.catalogue import read_run

SMALL = {
    "dataset": "synthetic",
    "dataset_options": {"train": 1000, "validation": 100, "test": 100},
    "network": "linear",
    "validation_images": 60,
    "servers": 3,
    "rounds": 2,
}


def without_clock(rows):
    return [{key: value for key, value in row.items() if key not in ("seconds", "seconds_sd")} for row in rows]


@pytest.mark.parametrize(
    ("question", "sentence"),
    [
        ({"reference": "rdn"}, "Did you mean rnd?"),
        ({"reference": "d-psgd"}, "not among the methods that are compared"),
        ({"target_accuracy": 0.0}, "must be a percentage above 0"),
        ({"target_accuracy": 101.0}, "is 101"),
    ],
)
def test_a_question_without_an_answer_is_refused_before_anything_is_played(tmp_path, question, sentence):
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        compare(["rnd", "local"], seeds=1, out=tmp_path / "c", **question, **SMALL)
    assert not (tmp_path / "c").exists()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "c"
    return folder, compare(["rnd", "local"], seeds=2, out=folder, **SMALL)


@pytest.fixture
def copy(finished, tmp_path):
    return shutil.copytree(finished[0], tmp_path / "c")


def no_play(*_, **__):
    pytest.fail("played again")


def test_a_finished_comparison_is_read_and_not_played(finished, copy, monkeypatch):
    monkeypatch.setattr("hatdfed.sweeps.batches.play", no_play)
    seen = []
    again = compare(["rnd", "local"], seeds=2, out=copy, on_run=lambda _, *place: seen.append(place), **SMALL)
    assert again.summary == finished[1].summary
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_a_half_finished_comparison_plays_what_is_missing_and_gives_the_same_table(finished, copy, monkeypatch):
    (copy / "rnd-seed1" / "results.json").unlink()  # stopped before its end
    shutil.rmtree(copy / "local-seed0")  # never begun
    (copy / "local-seed1" / "run.sqlite").unlink()  # stopped at its beginning
    played = []
    monkeypatch.setattr(
        "hatdfed.sweeps.batches.play", lambda jobs, *rest, **more: played.extend(jobs) or play(jobs, *rest, **more)
    )
    again = compare(["rnd", "local"], seeds=2, out=copy, **SMALL)
    assert [(job.config.method, job.config.seed) for job in played] == [("rnd", 1), ("local", 0), ("local", 1)]
    assert without_clock(again.summary) == without_clock(finished[1].summary)


def test_a_comparison_grows_by_methods_and_seeds(copy):
    grown = compare(["rnd", "local", "full"], seeds=3, out=copy, **SMALL)
    fresh = compare(["rnd", "local", "full"], seeds=3, **SMALL)
    assert without_clock(grown.summary) == without_clock(fresh.summary)


def test_a_run_goes_on_from_its_checkpoint(tmp_path):
    settings = {**SMALL, "checkpoint_every": 1, "rounds": 3}
    whole = compare(["rnd"], seeds=1, **settings)

    def power_cut(config, record):
        if record.t == 1:
            raise KeyboardInterrupt

    config = resolve({**settings, "method": "rnd", "seed": 0})
    with pytest.raises(KeyboardInterrupt):
        run(config, out=tmp_path / "rnd-seed0", on_round=power_cut)
    again = compare(["rnd"], seeds=1, out=tmp_path, **settings)
    assert without_clock(again.summary) == without_clock(whole.summary)


def test_an_interrupted_comparison_goes_on_where_it_was_and_counts_on_from_there(tmp_path):
    settings = {**SMALL, "rounds": 25}
    whole, told = compare(["rnd", "local"], seeds=1, **settings), []

    def interrupt(done, total):
        if done == 40:  # of 50: each run has played 20 rounds, and has a checkpoint of every tenth
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as stopped:
        compare(["rnd", "local"], seeds=1, out=tmp_path, on_rounds=interrupt, **settings)
    assert stopped.value.__notes__ == [f"The same call, with out={str(tmp_path)!r}, goes on with what is missing."]
    with pytest.raises(
        RunFolderError, match=rf"2 of 2 runs are not .* `hatdfed compare` command with --out {tmp_path}"
    ):
        hatdfed.load(tmp_path)
    again = compare(["rnd", "local"], seeds=1, out=tmp_path, on_rounds=lambda *each: told.append(each), **settings)
    assert without_clock(again.summary) == without_clock(whole.summary)
    assert (told[0], told[-1]) == ((41, 50), (50, 50))


def test_a_folder_of_other_settings_is_refused_before_anything_is_played(copy, monkeypatch):
    monkeypatch.setattr("hatdfed.sweeps.batches.play", no_play)
    with pytest.raises(RunFolderError, match="has rounds 2, but 3 was asked for"):
        compare(["full", "rnd"], seeds=2, out=copy, **{**SMALL, "rounds": 3})
    assert not (copy / "full-seed0").exists()


@pytest.mark.parametrize("seeds", ["2", "10", True, 2.0, None])
def test_seeds_are_a_number_or_a_list(seeds):
    with pytest.raises(ConfigError, match=r"seeds is .*, but must be a number of seeds, or a list"):
        compare(["rnd"], seeds=seeds, **SMALL)


@pytest.mark.parametrize(
    ("name", "what"), [("config.yaml", "a run"), ("run.sqlite", "a run"), ("sweep.yaml", "a sweep")]
)
def test_a_folder_that_holds_something_else_is_refused_and_left_alone(tmp_path, monkeypatch, capfd, name, what):
    monkeypatch.setattr("hatdfed.sweeps.executors.play_jobs", no_play)
    for file in (name, "results.json"):
        (tmp_path / file).write_text("mine")
    with pytest.raises(RunFolderError, match=f"already holds {what}"):
        compare(["rnd"], seeds=1, out=tmp_path, **SMALL)
    assert command(monkeypatch, "--out", str(tmp_path)) == 2
    assert f"already holds {what}" in capfd.readouterr().err
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {name: "mine", "results.json": "mine"}


@pytest.mark.parametrize("folder", ["x" * 300, "/dev/null/c"])
def test_a_folder_that_cannot_be_is_refused_with_one_sentence(tmp_path, monkeypatch, capfd, folder):
    monkeypatch.chdir(tmp_path)
    assert command(monkeypatch, "--methods", "rnd", "--seeds", "1", "--rounds", "1", "--out", folder) == 2
    assert "Choose another one with --out" in capfd.readouterr().err
    with pytest.raises(RunFolderError, match="Choose another one with --out"):
        compare(["rnd"], seeds=1, out=folder, **SMALL)


def test_a_comparison_in_play_is_left_to_the_command_that_plays_it(tmp_path):
    def meddle(*_):
        with pytest.raises(RunFolderError, match="Another command is writing into"):
            compare(["rnd"], seeds=1, out=tmp_path / "c", **SMALL)

    played = compare(["rnd"], seeds=1, out=tmp_path / "c", on_rounds=meddle, **SMALL)
    assert played.runs["rnd"][0].summary["rounds"] == 2


def test_a_run_that_is_read_is_the_run_that_was_played(finished):
    folder, comparison = finished
    played, read = comparison.runs["rnd"][1], read_run(RunFolder(folder / "rnd-seed1"))
    for part in ("config", "summary", "rounds", "servers", "links", "ledger", "folder"):
        assert getattr(read, part) == getattr(played, part), part
    drawn = ~np.isnan(read.link_joules)
    np.testing.assert_allclose(read.link_joules[drawn], played.link_joules[drawn], rtol=1e-12)
    with pytest.raises(RunFolderError, match="is not finished"):
        read_run(RunFolder(folder / "nothing-here"))


@pytest.mark.usefixtures("blank_pictures")
def test_one_seed_has_no_deviation(monkeypatch, capfd, tmp_path):
    (row,) = compare(["rnd"], seeds=1, **SMALL).summary
    assert {value for key, value in row.items() if key.endswith("_sd")} == {None}
    given = [f"--set={key}={json.dumps(value)}" for key, value in SMALL.items()]
    assert command(monkeypatch, "--methods", "rnd", "--seeds", "1", *given, "--out", str(tmp_path / "c")) == 0
    shown = capfd.readouterr().out
    assert "one seed" in shown
    assert "±" not in shown


def test_a_method_of_another_package_can_be_compared(monkeypatch):
    theirs = Method("theirs", "From a plug-in", METHODS["rnd"].settings)
    monkeypatch.setitem(METHODS.__dict__, "_plug_ins", {"theirs": None})
    monkeypatch.setitem(METHODS._loaded, "theirs", theirs)
    comparison = compare(["theirs", "local"], seeds=1, reference="theirs", **SMALL)
    assert [row["method"] for row in comparison.summary] == ["theirs", "local"]


def command(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["hatdfed", "compare", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    return stop.value.code


def typed(folder):
    options = [f"--set={key}={json.dumps(value)}" for key, value in SMALL.items()]
    return [*options, "--methods", "rnd,local", "--seeds", "2", "--jobs", "1", "--out", str(folder)]


def test_the_command_prints_both_tables_and_writes_every_file(copy, monkeypatch, capfd):
    assert command(monkeypatch, *typed(copy), "--reference", "local", "--target-accuracy", "20") == 0
    shown = capfd.readouterr().out
    assert "mean ± sd over 2 seeds" in shown
    assert re.search(r"^ *rnd +[+−][\d.]+ \[[+−][\d.]+, [+−][\d.]+\] +\+\d+ %", shown, re.MULTILINE)
    assert re.search(r"^ *local +reference", shown, re.MULTILINE)
    assert "until 20.0 % (seeds)" in shown
    files = {"results.json", "comparison.json", "comparison.csv", "runs.csv", "regret.png", "link_use.png"}
    assert {path.name for path in copy.iterdir()} >= files


@pytest.mark.usefixtures("blank_pictures")
def test_the_command_prints_everything_as_json(copy, monkeypatch, capfd):
    assert command(monkeypatch, *typed(copy), "--json") == 0
    document = json.loads(capfd.readouterr().out)
    assert (document["reference"], len(document["runs"]), document["run_folder"]) == ("rnd", 4, str(copy))


def test_a_method_that_sees_the_test_set_is_marked_and_not_drawn(copy, monkeypatch, capfd):
    drawn, where = [], "hatdfed.report.comparison_figures.write_comparison_figures"
    monkeypatch.setattr(where, lambda runs, folder: drawn.extend(runs))
    assert command(monkeypatch, *typed(copy), "--methods", "hat-dfed-released,rnd") == 0
    assert drawn == ["rnd"]
    shown = capfd.readouterr().out
    assert re.search(r"^ *hat-dfed-released † .* –", shown, re.MULTILINE)
    assert re.search(r"^ *rnd +reference", shown, re.MULTILINE)
    assert re.search(r"^ *hat-dfed-released † +other setup: not paired +– ", shown, re.MULTILINE)


def add_method(monkeypatch, name, settings):
    monkeypatch.setitem(METHODS.__dict__, "_plug_ins", {name: None})
    monkeypatch.setitem(METHODS._loaded, name, Method(name, "Made up", {**METHODS["rnd"].settings, **settings}))


def test_a_method_at_prices_of_its_own_is_neither_paired_nor_drawn_with_the_others(monkeypatch, copy, capfd):
    add_method(monkeypatch, "cheap", {"energy": {"weak_joules_per_sample": 0.01}})
    drawn, where = [], "hatdfed.report.comparison_figures.write_comparison_figures"
    monkeypatch.setattr(where, lambda runs, folder: drawn.extend(runs))
    assert command(monkeypatch, *typed(copy), "--methods", "rnd,cheap") == 0
    assert drawn == ["rnd"]
    assert re.search(r"^ *cheap +other setup: not paired +– ", capfd.readouterr().out, re.MULTILINE)


def test_a_method_that_makes_another_world_of_a_seed_is_not_paired(monkeypatch):
    add_method(monkeypatch, "more", {"samples_per_round": 90})
    rnd, local, other = compare(["rnd", "local", "more"], seeds=2, **SMALL).summary
    assert [row["same_world"] for row in (rnd, local, other)] == [True, True, False]
    assert all(other[key] is None for key in other if "_difference" in key)
    assert local["avg_accuracy_difference_low"] is not None
    assert list(other) == list(local)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--reference", "locl"], "Did you mean local?"),
        (["--target-accuracy", "-3"], "The target accuracy is -3"),
        (["--rounds", "3"], "has rounds 2, but 3 was asked for"),
    ],
)
def test_the_command_refuses_with_one_sentence(copy, monkeypatch, capfd, arguments, sentence):
    assert command(monkeypatch, *typed(copy), *arguments) == 2
    assert sentence in capfd.readouterr().err


@pytest.mark.parametrize("width", [80, 100, 120])
def test_tables_fit_the_terminal(finished, width, monkeypatch):
    console = Console(width=width, record=True, file=io.StringIO())
    monkeypatch.setattr(tables, "out", console)
    rows = [
        {**finished[1].summary[0], "method": "hat-dfed-without-utc"},
        {**finished[1].summary[1], "method": "hat-dfed-released", "leaks_test": True},
        {**finished[1].summary[1], "method": "elsewhere", "same_world": False},
        {**finished[1].summary[1], "method": "alone", "avg_accuracy_difference_low": None, "seeds_reached": None},
    ]
    console.print(tables.make_summary_table(rows, title="made up"))
    console.print(tables.make_difference_table(rows, reference="hat-dfed-without-utc", target_accuracy=61.0))
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    for part in ("hat-dfed-released †", "sees the test set", "(one seed)", "reference", "other setup:", "± "):
        assert part in text
    assert "± standard deviation over seeds" in text.partition("Difference to")[2]
    lines = [line for line in text.splitlines() if line.startswith(" hat-dfed-without-utc")]
    assert all(("±" in line) == (width == 120) for line in lines)


def test_a_method_whose_number_of_links_changes_is_compared_without_regret(tmp_path):
    settings = {"servers": 9, "rounds": 61, "churn": 0.4, "devices": 2, "samples_per_round": 4, "network": "linear"}
    comparison = compare(["hat-dfed-plus", "rnd"], seeds=1, out=tmp_path / "both", **settings)
    rows = {row["method"]: row for row in comparison.summary}
    assert rows["hat-dfed-plus"]["regret_best_fixed"] is None
    assert rows["hat-dfed-plus"]["avg_accuracy"] > 0


def test_one_method_may_be_named_without_a_list():
    assert list(compare("rnd", seeds=1, **SMALL).runs) == ["rnd"]


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (
            {"method": "full"},
            "A comparison sets 'method' for each run by itself. Use --methods instead (methods=… in Python).",
        ),
        ({"seed": 2}, "A comparison sets 'seed' for each run by itself. Use --seeds instead (seeds=… in Python)."),
        ({"seeds": 1.5}, "seeds is 1.5, but must be a number of seeds, or a list"),
        ({"jobs": 0}, "jobs is 0, but must be a number of processes, at least 1"),
        ({"jobs": "2"}, "jobs is '2', but must be a number of processes"),
    ],
)
def test_what_a_comparison_cannot_use_is_refused(asked, sentence):
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        compare(["rnd"], **SMALL, **asked)
