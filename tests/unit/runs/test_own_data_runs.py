"""Runs on a user's own data: named by their contents, resumed with the same ones, compared in one process or many."""

import shutil

import numpy as np
import pytest

import hatdfed
from hatdfed.data.datasets import DATASETS
from hatdfed.errors import ConfigError, DataError, HatdfedError, RunFolderError
from hatdfed.setup.run_identity import resume_digest

RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 5)).astype(np.float32)
Y = X @ np.array([3.0, -2.0, 1.0, 0.0, 0.0]) + 100
SMALL = {"rounds": 3, "servers": 3}


@pytest.fixture(autouse=True)
def _forgotten_data(monkeypatch):
    monkeypatch.setattr(DATASETS, "_loaded", dict(DATASETS._loaded))


@pytest.fixture
def table(tmp_path):
    np.savez(tmp_path / "table.npz", x=X, y=Y)
    return tmp_path / "table.npz"


def test_a_file_and_its_arrays_are_the_same_run(table):
    one, other = hatdfed.run(dataset=str(table), **SMALL), hatdfed.run(dataset=(X, Y), **SMALL)
    assert one.config.task == other.config.task == "regression"
    assert one.summary["metrics"] == other.summary["metrics"]
    assert one.config.dataset.rpartition("-")[2] == other.config.dataset.rpartition("-")[2]
    assert one.summary["personal_accuracy"] is None
    assert {"rmse", "mae", "r2"} == one.summary["metrics"].keys()


def test_learning_lowers_the_error():
    errors = [hatdfed.run(dataset=(X, Y), rounds=rounds, servers=3).summary["metrics"]["rmse"] for rounds in (1, 25)]
    assert errors[1] < 0.5 * errors[0]


def test_a_run_is_resumed_with_the_same_data_wherever_they_are(table, tmp_path):
    whole = hatdfed.run(dataset=str(table), **{**SMALL, "rounds": 6})
    hatdfed.run(dataset=str(table), out=tmp_path / "run", horizon=6, **SMALL)
    (tmp_path / "elsewhere").mkdir()
    moved = shutil.move(table, tmp_path / "elsewhere" / "table.npz")
    with pytest.raises(DataError, match=r"table.npz cannot be read .* Name the place where they are now by --dataset"):
        hatdfed.resume(tmp_path / "run", {"rounds": 6})
    result = hatdfed.resume(tmp_path / "run", {"rounds": 6, "dataset": str(moved)})
    assert result.summary["accuracy_by_server"] == whole.summary["accuracy_by_server"]


def test_a_copy_in_the_data_folder_will_do(table, tmp_path):
    hatdfed.run(dataset=str(table), out=tmp_path / "run", **SMALL)
    (tmp_path / "data").mkdir()
    shutil.move(table, tmp_path / "data" / "table.npz")
    config = hatdfed.resolve({"dataset": str(tmp_path / "data" / "table.npz"), **SMALL})
    lost = config.model_copy(update={"dataset_options": {**config.dataset_options, "file": str(table)}})
    assert resume_digest(lost) == resume_digest(config)
    assert hatdfed.run(lost, data_dir=tmp_path / "data").summary["rounds"] == 3


def test_other_data_under_the_same_name_are_refused(table, tmp_path):
    hatdfed.run(dataset=str(table), out=tmp_path / "run", **SMALL)
    np.savez(table, x=X, y=Y + 1)
    with pytest.raises(DataError, match="they have changed"):
        hatdfed.resume(tmp_path / "run", {"rounds": 6})
    with pytest.raises(RunFolderError, match=r"has dataset 'table-.*', but 'table-.*' was asked for"):
        hatdfed.resume(tmp_path / "run", {"rounds": 6, "dataset": str(table)})


def test_python_objects_are_given_again(tmp_path, monkeypatch):
    hatdfed.run(dataset=(X, Y), out=tmp_path / "run", **SMALL)
    monkeypatch.setattr(DATASETS, "_loaded", {})  # as in another process
    with pytest.raises(ConfigError, match=r"were given as Python objects, which this process does not have. Give"):
        hatdfed.resume(tmp_path / "run", {"rounds": 4})
    assert hatdfed.resume(tmp_path / "run", {"rounds": 4, "dataset": (X, Y)}).summary["rounds"] == 4


def test_comparisons_in_several_processes_take_files_but_no_objects(table):
    settings = {"seeds": 2, "jobs": 2, **SMALL}
    with pytest.raises(ConfigError, match=r"which worker processes do not have. Use one process"):
        hatdfed.compare(["local", "full"], dataset=(X, Y), **settings)
    rows = hatdfed.compare(["local", "full"], dataset=str(table), **settings).summary
    alone = hatdfed.compare(["local", "full"], dataset=(X, Y), **{**settings, "jobs": 1}).summary
    assert [row["metrics"] for row in rows] == [row["metrics"] for row in alone]


def test_a_column_to_be_learned_is_named_by_target():
    class Frame(dict):
        iloc, columns = None, property(list)

        def __getitem__(self, name):
            return Column(super().__getitem__(name))

    class Column(np.ndarray):
        def __new__(cls, values):
            return np.asarray(values).view(cls)

        def isna(self):
            return np.isnan(self)

    frame = Frame(a=X[:, 0], b=X[:, 1], price=Y)
    result = hatdfed.run(dataset=frame, target="price", **SMALL)
    assert result.config.dataset_options["target"] == "price"
    assert result.config.task == "regression"


@pytest.mark.parametrize("method", ["hat-dfed-plus", "hat-dfed-trust", "harmless"])
def test_methods_about_labels_run_on_any_task(method):
    more = {"method": "rnd", "aggregator": {"name": "harmless-mean"}} if method == "harmless" else {"method": method}
    result = hatdfed.run(dataset=(X, Y), **SMALL, **more)
    assert 0 < result.summary["avg_accuracy"] <= 100
    told = [note for note in result.summary["notes"] if "loss label-prior has no effect" in note]
    assert len(told) == (method != "harmless")


def test_a_classification_keeps_its_label_skew_and_personal_accuracy():
    summary = hatdfed.run(dataset=(X, (Y > 100).astype(int)), **SMALL).summary
    assert summary["personal_accuracy"] is not None
    assert summary["metrics"] == {}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            {"world": {"groups": 2, "differ": "labels"}},
            "world.differ is labels, but samples of this task have no class",
        ),
        ({"world": {"groups": 2, "differ": "inputs"}}, "only 8-bit images can be turned"),
        (
            {"world": {"bad_labels": 0.4}},
            r"world.bad_labels is 0.4, but samples of task regression have no class label",
        ),
        (
            {"world": {"liars": 0.4, "attack": "label-flip"}},
            "world.attack is label-flip, but samples of task regression",
        ),
        ({"network": "small-cnn"}, "network small-cnn is for images"),
        ({"network": "decoder"}, "reads token ids, which are integers"),
        ({"task": "multi-label"}, "several labels at once are 0 or 1"),
        ({"split": "groups"}, "does not say whom its samples come from"),
        ({"images_per_server": 1000}, "the training pool has 140 images"),
        ({"dataset_options": {"colour": 1}}, "Own data have no option 'colour'"),
    ],
)
def test_what_does_not_go_with_the_data_is_refused(more, said):
    with pytest.raises(HatdfedError, match=said):
        hatdfed.run(dataset=(X, Y), **{**SMALL, **more})


def test_a_task_that_a_data_set_is_not_for_is_refused():
    with pytest.raises(ConfigError, match="task is 'regression', but the data set digits is for classification"):
        hatdfed.resolve({"dataset": "digits", "task": "regression"})


def test_broken_sensors_are_simulated_for_any_samples():
    for dataset in ((X, Y), RNG.integers(5, size=(100, 6))):
        settings = {"world": {"broken_sensors": 0.4}, "network": "mlp" if dataset[0] is X else "lstm"}
        assert hatdfed.run(dataset=dataset, **SMALL, **settings).summary["rounds"] == 3


def test_servers_of_a_regression_differ_in_their_targets():
    from hatdfed.data.datasets import load_dataset
    from hatdfed.setup.build.world import make_world

    spreads = []
    for concentration in (0.1, 1000.0):
        config = hatdfed.resolve({"dataset": (X, Y), "label_concentration": concentration, "images_per_server": 25})
        world = make_world(config, load_dataset(config.dataset))
        spreads.append(np.std([float(source.pool.y[source.shard].mean()) for source in world.sources]))
    assert spreads[0] > 2 * spreads[1]
