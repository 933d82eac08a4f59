"""A sweep from its file to its table: nothing is played twice, and the table does not tell how often it was stopped."""

import io
import json
import re
import shutil
import sys

import pytest
from rich.console import Console
from tests.unit.sweeps.small import SMALL

import hatdfed
from hatdfed.cli import tables
from hatdfed.cli.app import main
from hatdfed.errors import ConfigError, RunFolderError
from hatdfed.report.sweep_figure import sweep_figure
from hatdfed.runs.play import play
from hatdfed.runs.records.folder import RunFolder
from hatdfed.runs.statistics import summarise_runs
from hatdfed.sweeps.file import read_sweep
from hatdfed.sweeps.points import points
from hatdfed.sweeps.table import pareto, table

SWEEP = {"base": SMALL, "grid": {"method": ["rnd", "local"], "learner.cool_down": [0.0, 0.5]}, "seeds": 2}
TABLES = ("summary.json", "summary.csv", "summary.tex", "pareto.png")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "s"
    return folder, hatdfed.sweep(SWEEP, out=folder, jobs=1)


@pytest.fixture
def copy(finished, tmp_path):
    return shutil.copytree(finished[0], tmp_path / "s")


def same_tables(one, other):
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in TABLES)


def no_play(*_, **__):
    pytest.fail("played again")


def test_rows_are_means_of_what_is_in_the_run_folders(finished):
    folder, result = finished
    assert [row["settings"] for row in result.rows] == [
        {"method": method, "learner.cool_down": value} for method in ("rnd", "local") for value in (0.0, 0.5)
    ]
    runs = [result.run(f"method=rnd,cool_down=0.5,seed={seed}") for seed in (0, 1)]
    with pytest.raises(RunFolderError, match=r"has no run 'method=rnd,seed=0'\. Did you mean method=rnd,cool_down"):
        result.run("method=rnd,seed=0")
    row = result.rows[1]
    assert row["avg_accuracy"] == pytest.approx(sum(run.summary["avg_accuracy"] for run in runs) / 2)
    assert row["validation_accuracy"] == pytest.approx(sum(run.rounds[-1]["avg_accuracy"] for run in runs) / 2)
    assert row["total_joules"] == pytest.approx(sum(run.summary["total_energy_mj"] for run in runs) / 2 * 1e6)
    assert row["validation_accuracy_low"] <= row["validation_accuracy"] <= row["validation_accuracy_high"]
    assert json.loads((folder / "summary.json").read_text())["rows"] == result.rows
    assert not result.failed


def test_a_finished_sweep_is_read_and_not_played(finished, copy, monkeypatch):
    monkeypatch.setattr("hatdfed.sweeps.batches.play", no_play)
    for name in TABLES:
        (copy / name).unlink()
    seen = []
    again = hatdfed.sweep(SWEEP, out=copy, jobs=1, on_run=lambda name, figures, *place: seen.append(place))
    assert again.rows == finished[1].rows
    assert seen == [(number, 8) for number in range(1, 9)]
    assert same_tables(copy, finished[0])


def test_what_is_missing_is_played_what_was_begun_goes_on_and_the_table_is_the_same(finished, copy, monkeypatch):
    shutil.rmtree(copy / "runs" / "method=local,cool_down=0,seed=1")  # never begun
    (copy / "runs" / "method=rnd,cool_down=0.5,seed=0" / "results.json").unlink()  # killed before its end
    folder = copy / "runs" / "method=rnd,cool_down=0,seed=0"  # killed at its beginning
    for name in ("results.json", "checkpoint.safetensors"):
        (folder / name).unlink()
    played = []
    monkeypatch.setattr(
        "hatdfed.sweeps.batches.play", lambda jobs, *rest, **more: played.extend(jobs) or play(jobs, *rest, **more)
    )
    again = hatdfed.sweep(SWEEP, out=copy, jobs=1)
    assert {job.out.name: job.resumed for job in played} == {
        "method=rnd,cool_down=0,seed=0": False,
        "method=rnd,cool_down=0.5,seed=0": True,
        "method=local,cool_down=0,seed=1": False,
    }
    assert again.rows == finished[1].rows
    assert same_tables(copy, finished[0])


def test_a_run_that_fails_is_named_and_tried_again_the_next_time(finished, tmp_path, monkeypatch):
    def failing(jobs, *rest, **more):
        if any(job.config.method == "local" and job.config.seed == 1 for job in jobs):
            raise ValueError("bad luck")
        return play(jobs, *rest, **more)

    monkeypatch.setattr("hatdfed.sweeps.batches.play", failing)
    result = hatdfed.sweep(SWEEP, out=tmp_path / "s", jobs=1)
    assert set(result.failed) == {"method=local,cool_down=0,seed=1", "method=local,cool_down=0.5,seed=1"}
    assert set(result.failed.values()) == {"ValueError: bad luck"}
    assert [row["missing_seeds"] for row in result.rows] == [[], [], [1], [1]]
    monkeypatch.setattr("hatdfed.sweeps.batches.play", play)
    assert hatdfed.sweep(SWEEP, out=tmp_path / "s", jobs=1).rows == finished[1].rows


def test_a_setting_that_a_policy_does_not_know_is_refused_before_anything_is_played(tmp_path):
    with pytest.raises(ConfigError, match="has no setting 'thrft'"):
        hatdfed.sweep({"base": SMALL, "grid": {"policy.thrft": [1, 2]}}, out=tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_plus_minus_is_the_standard_deviation_over_seeds_as_in_a_comparison(finished, monkeypatch):
    result = finished[1]
    runs = [result.run(f"method=rnd,cool_down=0,seed={seed}") for seed in range(2)]
    (row,) = [row for row in result.rows if row["settings"] == {"method": "rnd", "learner.cool_down": 0.0}]
    told = summarise_runs({"rnd": runs}).summary[0]
    for name in ("avg_accuracy", "worst_accuracy", "validation_accuracy", "links_per_round"):
        assert (row[name], row[f"{name}_sd"]) == pytest.approx((told[name], told[f"{name}_sd"]))
    assert row["total_joules_sd"] == pytest.approx(1e6 * told["total_energy_mj_sd"])
    console = Console(width=200, record=True, file=io.StringIO())
    monkeypatch.setattr(tables, "out", console)
    console.print(tables.make_sweep_table(result.rows, title=tables.describe_spread(result.rows)))
    text = console.export_text()
    assert "mean ± sd over 2 seeds" in text
    assert f"{told['avg_accuracy']:.1f} ± {told['avg_accuracy_sd']:.1f}" in text


@pytest.mark.parametrize(
    ("accuracies", "title"), [((60, 50, 40), "1 of 3 points is"), ((60, 60, 40), "2 of 3 points are")]
)
def test_the_figure_of_a_sweep_says_in_words_and_rings_what_is_on_the_front(accuracies, title):
    rows = [
        {"point": str(place), "settings": {"method": method}, "seeds": [0], "validation_accuracy": accuracy}
        for place, (method, accuracy) in enumerate(zip(("rnd", "full", "local"), accuracies, strict=True))
    ]
    rows = [{**row, "total_joules": 10.0, "is_on_front": False} for row in rows]
    figure = sweep_figure(rows, ["one"] * 3, "total_joules", "validation_accuracy")
    assert title in " ".join(text.get_text() for text in figure.texts)
    assert "Rings: on the front." in " ".join(text.get_text() for text in figure.texts)
    (ring,) = [line for line in figure.axes[0].lines if line.get_fillstyle() == "none"]
    assert len(ring.get_xdata()) == int(title[0])
    points = [line for line in figure.axes[0].lines if line.get_marker() == "o" and line is not ring]
    assert {line.get_markerfacecolor() for line in points} == {
        handle.get_markerfacecolor() for handle in figure.axes[0].get_legend().legend_handles
    }


def show(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["hatdfed", "show", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


def test_a_stopped_sweep_says_how_to_go_on_and_shows_how_far_its_runs_are(tmp_path, monkeypatch, capfd):
    def interrupt(name, figures, done, total):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as stopped:
        hatdfed.sweep(SWEEP, out=tmp_path / "s", jobs=1, on_run=interrupt)
    assert stopped.value.__notes__ == [f"What is done is in {tmp_path / 's'}; the same call goes on."]
    assert show(monkeypatch, tmp_path / "s") == 0
    told = capfd.readouterr().out
    assert "This sweep is not finished." in told
    assert "method=rnd,cool_down=0.5,seed=0: 3 of 3 rounds" in told
    assert show(monkeypatch, tmp_path / "s", "--json") == 0
    assert json.loads(capfd.readouterr().out)["finished"] is False
    with pytest.raises(RunFolderError, match=r"is not finished.* hatdfed sweep .*sweep\.yaml --out "):
        hatdfed.load(tmp_path / "s")


def test_a_sweep_from_python_shows_progress_if_asked(finished, copy, capfd):
    hatdfed.sweep(SWEEP, out=copy, jobs=1, show_progress=True)
    assert "run 8 of 8: method=local" in capfd.readouterr().err
    hatdfed.sweep(SWEEP, out=copy, jobs=1)
    assert capfd.readouterr().err == ""


def row(accuracy, joules, leaks=False):
    return {"validation_accuracy": accuracy, "total_joules": joules, "leaks_test": leaks}


def test_the_front_has_every_row_to_which_none_is_better_at_one_thing_and_worse_at_none():
    rows = [row(50, 10), row(60, 10), row(60, 12), row(70, 20), row(60, 10), row(99, 1, leaks=True), row(None, 1)]
    assert pareto(rows, ["accuracy", "joules"]) == {1, 3, 4}, "equal rows together"
    assert pareto(rows, ["accuracy"]) == {3}
    assert pareto(rows, ["joules"]) == {6}  # its accuracy is not asked for


def test_what_is_marked_does_not_depend_on_the_test_set():
    found = points(read_sweep({"base": SMALL, "grid": {"link_share": [0.3, 0.6]}}))
    figures = {
        point.runs[0].name: {
            "validation_accuracy": 50.0 + number, "validation_worst": 40.0, "avg_accuracy": 90.0 - 50 * number,
            "worst_accuracy": 1.0, "total_joules": 5.0, "link_joules": 1.0, "links_per_round": 2.0, "leaks_test": False,
        }
        for number, point in enumerate(found)
    }  # fmt: skip
    assert [row["is_on_front"] for row in table(found, figures)] == [False, True]


def command(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["hatdfed", "sweep", *map(str, arguments)])
    try:
        main()
    except SystemExit as stop:
        return stop.code or 0
    return 0


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(json.dumps(SWEEP))
    return path


def test_the_command_says_its_plan_and_prints_the_table(file, copy, monkeypatch, capfd):
    shutil.rmtree(copy / "runs" / "method=local,cool_down=0,seed=1")
    assert command(monkeypatch, file, "--out", copy, "--jobs", 1) == 0
    shown = capfd.readouterr()
    assert "small: 8 runs (4 points, 2 seeds), 7 done, 1 to do." in shown.err
    assert "run 8 of 8: method=local,cool_down=0,seed=1, validation accuracy" in shown.err
    assert re.search(r"★? +local +0 +[\d.]+ ± [\d.]+", shown.out)
    assert "no other point is better at one of validation accuracy and energy and worse at none" in " ".join(
        shown.out.split()
    )


def test_a_dry_run_touches_nothing(file, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr("hatdfed.sweeps.batches.play", no_play)
    assert command(monkeypatch, file, "--out", tmp_path / "new", "--dry-run") == 0
    assert not (tmp_path / "new").exists()
    shown = capfd.readouterr().out
    assert "8 runs (4 points, 2 seeds), 0 done, 8 to do" in shown
    assert shown.count("open   method=") == 8


def test_a_failure_is_one_line_a_reason_and_an_exit_code(file, copy, monkeypatch, capfd):
    for method in ("rnd", "local"):
        shutil.rmtree(copy / "runs" / f"method={method},cool_down=0,seed=1")

    def failing(*_, **__):
        raise ValueError("bad luck")

    monkeypatch.setattr("hatdfed.sweeps.batches.play", failing)
    assert command(monkeypatch, file, "--out", copy, "--jobs", 1, "--retries", 0) == 1
    shown = capfd.readouterr()
    assert shown.err.count("ValueError: bad luck") == 1
    assert "2 runs failed; all others are kept. The same command tries them again." in shown.err
    assert "1 of 2" in shown.out


def test_the_command_tells_of_a_sweep_in_which_every_run_failed(file, tmp_path, monkeypatch, capfd):
    def failing(*_, **__):
        raise ValueError("bad luck")

    monkeypatch.setattr("hatdfed.sweeps.batches.play", failing)
    assert command(monkeypatch, file, "--out", tmp_path / "new", "--jobs", 1, "--retries", 0) == 1
    shown = capfd.readouterr()
    assert "8 runs failed" in shown.err
    assert "0 of 2" in shown.out


def test_json_is_the_summary(file, finished, copy, monkeypatch, capfd):
    assert command(monkeypatch, file, "--out", copy, "--jobs", 1, "--json") == 0
    said = json.loads(capfd.readouterr().out)
    assert said["rows"] == finished[1].rows
    assert said["folder"] == str(copy)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--executor", "rya"], "Did you mean ray?"),
        (["--address", "host:1"], "--address is for a cluster"),
        (["--executor", "ray", "--jobs", "2"], "--cpus-per-batch"),
        (["--mlflow-uri", "./mlruns"], "must be a database or a server"),
    ],
)
def test_options_that_do_not_go_together_are_one_sentence(file, copy, monkeypatch, capfd, options, sentence):
    assert command(monkeypatch, file, "--out", copy, *options) == 2
    assert sentence in capfd.readouterr().err


@pytest.mark.parametrize(
    ("package", "options", "sentence"),
    [
        ("ray", ["--executor", "ray"], "pip install 'hatdfed[ray]'"),
        ("tensorboard", ["--tensorboard"], "pip install 'hatdfed[tensorboard]'"),
        ("mlflow", ["--mlflow"], "pip install 'hatdfed[mlflow]'"),
    ],
)
def test_a_package_that_is_not_installed_is_one_sentence(file, copy, monkeypatch, capfd, package, options, sentence):
    for module in ("hatdfed.sweeps.executors", "hatdfed.report.sinks.tensorboard", "hatdfed.report.sinks.mlflow"):
        __import__(module)
        monkeypatch.setattr(f"{module}.find_spec", lambda name: None if name == package else object())
    assert command(monkeypatch, file, "--out", copy, *options) == 2
    assert sentence in capfd.readouterr().err


def test_runs_of_a_sweep_are_run_folders_like_any_other(finished):
    folder = RunFolder.open(finished[0] / "runs" / "method=rnd,cool_down=0,seed=0")
    assert folder.config().method == "rnd"
