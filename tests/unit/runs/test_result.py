"""Results in Python: read again, their models, what these predict, plots, and how they are shown."""

import json

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from tests.small_runs import SMALL

import hatdfed
from hatdfed.data.datasets import load_dataset
from hatdfed.errors import ConfigError, DataError, RunFolderError
from hatdfed.runs import progress


@pytest.fixture(scope="module")
def dataset():
    return load_dataset("synthetic", options=SMALL["dataset_options"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("results") / "run"
    hatdfed.run("rnd", out=path, **SMALL)
    return path


@pytest.fixture(scope="module")
def comparison():
    return hatdfed.compare(["rnd", "full"], seeds=2, **SMALL)


def test_the_first_argument_may_be_a_method():
    assert hatdfed.run("full", **SMALL).config.method == "full"
    with pytest.raises(ConfigError, match="named twice: 'full' and 'rnd'"):
        hatdfed.run("full", method="rnd")


@pytest.mark.parametrize("fleet", ["stacked", "mailbox"])
def test_models_predict_what_the_run_has_measured(dataset, fleet):
    result = hatdfed.run("rnd", **SMALL, fleet=fleet)
    right = [100 * np.mean(result.predict(dataset.test.x, server=i) == dataset.test.y) for i in range(3)]
    assert right == pytest.approx(result.summary["accuracy_by_server"])
    assert all(isinstance(model, torch.nn.Module) and not model.training for model in result.models())


def test_a_run_is_read_again_with_its_models(folder, dataset):
    read = hatdfed.load(folder)
    right = 100 * np.mean(read.predict(dataset.test.x, server=2) == dataset.test.y)
    assert right == pytest.approx(read.summary["accuracy_by_server"][2])
    assert len(read.models()) == 3


def test_models_of_a_resumed_run_are_those_of_its_last_round(folder, dataset):
    longer = hatdfed.resume(folder, {"rounds": 4})
    right = 100 * np.mean(longer.predict(dataset.test.x) == dataset.test.y)
    assert right == pytest.approx(longer.summary["accuracy_by_server"][0])


def test_regressions_are_predicted_in_the_units_of_the_data():
    x = np.random.default_rng(1).normal(size=(200, 3))
    y = 1000 + 50 * x[:, 0]
    result = hatdfed.run("full", dataset=(x, y), servers=2, rounds=15, network="linear")
    found = result.predict(x)
    assert found.shape == (200,)
    assert abs(found.mean() - 1000) < 50


def test_data_that_were_python_objects_are_given_again(tmp_path, monkeypatch):
    from hatdfed.data.datasets import DATASETS

    x = np.random.default_rng(2).normal(size=(60, 3)).astype(np.float32)
    y = (x[:, 0] > 0).astype(int)
    monkeypatch.setattr(DATASETS, "_loaded", dict(DATASETS._loaded))
    played = hatdfed.run("rnd", dataset=(x, y), servers=2, rounds=1, out=tmp_path / "run")
    DATASETS._loaded.pop(played.config.dataset)  # as in another process
    read = hatdfed.load(tmp_path / "run")
    with pytest.raises(ConfigError, match="were given as Python objects"):
        read.models()
    assert read.predict(x, dataset=(x, y)).shape == (60,)
    with pytest.raises(DataError, match="but the run learned from"):
        read.models(dataset=(x + 1, y))


def test_samples_of_another_kind_are_refused(folder, dataset):
    result = hatdfed.load(folder)
    for wrong in (dataset.test.x.astype(float), dataset.test.x[:, :, :3]):
        with pytest.raises(DataError, match=r"x holds samples of .* but the run learned from uint8"):
            result.predict(wrong)
    with pytest.raises(ConfigError, match="There is no server 3: the run has servers 0 to 2"):
        result.predict(dataset.test.x, server=3)


def test_runs_without_models_say_how_to_keep_them(comparison, tmp_path):
    with pytest.raises(RunFolderError, match="Play it with out="):
        comparison.runs["rnd"][0].models()
    without = hatdfed.run("rnd", **SMALL, checkpoint_every=0, out=tmp_path / "run")
    with pytest.raises(RunFolderError, match="checkpoint_every above 0"):
        without.models()


def test_a_comparison_is_read_again(tmp_path):
    played = hatdfed.compare(["rnd", "full"], seeds=[3, 1], reference="full", out=tmp_path / "all", **SMALL)
    read = hatdfed.load(tmp_path / "all")
    assert list(read.runs) == ["rnd", "full"]
    assert (read.reference, read.target_accuracy) == ("full", played.target_accuracy)
    assert [run.config.seed for run in read.runs["rnd"]] == [1, 3]
    by_method = {row["method"]: row["avg_accuracy"] for row in played.summary}
    assert {row["method"]: row["avg_accuracy"] for row in read.summary} == pytest.approx(by_method)


def test_a_comparison_of_some_of_the_runs_in_its_folder_is_read_again_as_it_was_made(tmp_path):
    hatdfed.compare(["rnd", "full"], seeds=[0, 1], out=tmp_path, **SMALL)
    last = hatdfed.compare(["full"], seeds=[1], out=tmp_path, **SMALL)
    read = hatdfed.load(tmp_path)
    assert [(row["method"], row["seeds"]) for row in read.summary] == [("full", [1])]
    assert read.summary[0]["avg_accuracy"] == pytest.approx(last.summary[0]["avg_accuracy"])


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"rounds": 2}, "a and b differ in the setting rounds"),
        ({"dataset_options": {"train": 301, "validation": 60, "test": 30}}, "differ in the setting dataset_options"),
        ({"method": "full", "dataset": "digits", "dataset_options": {}}, "differ in the setting dataset"),
        ({"seed": 0}, "a and b differ in nothing"),
    ],
)
def test_runs_that_are_no_comparison_are_not_averaged(tmp_path, other, said):
    hatdfed.run(SMALL, method="rnd", seed=0, out=tmp_path / "a")
    hatdfed.run({**SMALL, "method": "rnd", "seed": 1, **other}, out=tmp_path / "b")
    with pytest.raises(RunFolderError, match=f"holds runs that are no comparison: .*{said}"):
        hatdfed.load(tmp_path)


def test_a_sweep_is_read_again(tmp_path):
    plan = {"base": {**SMALL, "method": "rnd"}, "grid": {"rounds": [1, 2]}, "seeds": 1}
    played = hatdfed.sweep(plan, out=tmp_path / "sweep", jobs=1)
    read = hatdfed.load(tmp_path / "sweep")
    assert read.rows == json.loads(json.dumps(played.rows))
    assert repr(read) == f"<SweepResult: 2 points in {tmp_path / 'sweep'}>"
    assert read._repr_html_().count("<tr>") == 3


def test_folders_that_hold_no_results_are_refused(tmp_path):
    with pytest.raises(RunFolderError, match="neither a run"):
        hatdfed.load(tmp_path)
    (tmp_path / "sweep.yaml").write_text("base: {}")
    with pytest.raises(RunFolderError, match="is not finished: there is no summary"):
        hatdfed.load(tmp_path)


def test_results_are_one_line_and_a_small_table(folder, comparison):
    read = hatdfed.load(folder)
    assert repr(read).startswith("<RunResult: rnd on synthetic, 3 servers, seed 0, ")
    assert len(repr(read)) < 120
    assert repr(comparison) == "<Comparison: rnd, full on synthetic, 3 servers, 3 rounds, 2 seeds>"
    assert comparison._repr_html_().count("<tr>") == 3
    assert comparison._repr_html_().count("% (sd)") >= 2, "energies have their spread, too"


def test_energies_have_names_with_whole_units_and_the_older_ones(folder, comparison):
    summary = hatdfed.load(folder).summary
    assert summary["total_energy_megajoules"] == summary["total_energy_mj"] > summary["link_energy_megajoules"]
    row = comparison.summary[0]
    assert row["link_energy_megajoules_sd"] == row["link_energy_mj_sd"]
    assert row["total_energy_megajoules_difference"] == row["total_energy_mj_difference"] == 0


def test_older_results_get_the_new_names_when_they_are_read(folder, tmp_path):
    content = json.loads((folder / "results.json").read_text())
    for name in [name for name in content if "megajoules" in name]:
        del content[name]
    old = tmp_path / "old"
    old.mkdir()
    for name in ("config.yaml", "run.sqlite"):
        (old / name).write_bytes((folder / name).read_bytes())
    (old / "results.json").write_text(json.dumps(content))
    read = hatdfed.load(old)
    assert read.summary["total_energy_megajoules"] == content["total_energy_mj"]
    assert " J" in repr(read) or " kJ" in repr(read)


@pytest.mark.parametrize("name", ["accuracy", "energy", "accuracy_vs_energy", "links"])
def test_plots_of_a_run_are_drawn_on_the_axes_that_are_given(folder, name):
    axes = Figure().subplots()
    assert getattr(hatdfed.load(folder).plot, name)(axes) is axes
    assert axes.get_xlabel()
    assert axes.has_data()


@pytest.mark.parametrize("name", ["accuracy", "energy", "accuracy_vs_energy"])
def test_plots_of_a_comparison_show_every_method(comparison, name):
    axes = Figure().subplots()
    getattr(comparison.plot, name)(axes)
    words = [text.get_text() for text in axes.texts] + [label.get_text() for label in axes.get_yticklabels()]
    words += [] if axes.get_legend() is None else [text.get_text() for text in axes.get_legend().get_texts()]
    assert {"rnd", "full"} <= set(words)


@pytest.mark.parametrize("layout", ["constrained", "none"])
@pytest.mark.parametrize("width", [7, 5])
def test_the_legend_of_energy_fits_the_axes_that_are_given(comparison, layout, width):
    figure = Figure(figsize=(width, 3), layout=layout)
    axes = figure.subplots(1, 2)[1]
    comparison.plot.energy(axes)
    figure.draw_without_rendering()
    legend = axes.get_legend().get_window_extent()
    assert axes.bbox.x0 - 1 <= legend.x0 < legend.x1 <= axes.bbox.x1 + 1
    assert 0 <= legend.y0 < legend.y1 <= figure.bbox.y1


def test_energy_is_drawn_on_axes_of_a_subfigure(comparison):
    axes = Figure(layout="constrained").subfigures(1, 2)[0].subplots()
    assert comparison.plot.energy(axes).get_legend() is not None


def test_progress_is_shown_to_whoever_looks_on_and_can_be_switched(monkeypatch, capsys):
    hatdfed.run("rnd", **SMALL)
    hatdfed.compare(["rnd"], seeds=1, **SMALL)
    assert capsys.readouterr().err == ""
    hatdfed.run("rnd", **SMALL, show_progress=True)
    assert "round 3/3" in capsys.readouterr().err
    monkeypatch.setattr(progress, "is_notebook", lambda: True)
    rounds = []
    hatdfed.run("rnd", **SMALL, on_round=lambda config, record: rounds.append(record.t))
    told = capsys.readouterr().err
    assert told.startswith("\r")
    assert "round 3/3" in told
    assert rounds == [0, 1, 2]
    hatdfed.compare(["rnd"], seeds=1, **SMALL)
    assert "round 3/3" in capsys.readouterr().err
    hatdfed.run("rnd", **SMALL, show_progress=False)
    assert capsys.readouterr().err == ""


def test_results_without_settings_are_refused(tmp_path):
    hatdfed.run("rnd", **SMALL, out=tmp_path / "run", show_progress=False)
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    del results["config"]
    (tmp_path / "run" / "results.json").write_text(json.dumps(results))
    with pytest.raises(RunFolderError, match="holds no settings"):
        hatdfed.load(tmp_path / "run")
