"""`hatdfed export`: what is in the file is the model, whoever reads it."""

import importlib.util
import json
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from tests.deploy.deployment import settings
from typer.testing import CliRunner

import hatdfed
from hatdfed.cli.app import app
from hatdfed.data.datasets import load_dataset
from hatdfed.deploy.edge.export import Exporter, read_run_settings, read_stored_model
from hatdfed.deploy.edge.store import EdgeStore, SavedState
from hatdfed.errors import ConfigError, HatdfedError, MissingDependencyError, RunFolderError
from hatdfed.runs.records.folder import RunFolder
from hatdfed.runs.trained_models import StoredModel
from hatdfed.server.learner import Learner
from hatdfed.server.networks import NETWORKS, find_network
from hatdfed.server.optimisers import Adam
from hatdfed.setup.build.program import make_program
from hatdfed.setup.build.world import make_pools


@pytest.fixture(scope="module")
def config():
    return settings()


@pytest.fixture(scope="module")
def dataset(config):
    return load_dataset(config.dataset, options=config.dataset_options)


@pytest.fixture
def edge(tmp_path, config, dataset):
    """A coordinator's run folder and an edge's store, as a deployment leaves them."""
    program = make_program(config, dataset)
    RunFolder.create(tmp_path / "run", config)
    server = program.start(7)
    EdgeStore(tmp_path / "store").save(SavedState("run-1", 4, server, b""))
    return tmp_path, program.learner, server.params


def answered_alone(path, config, dataset, images):
    """By the plain module of the network, with nothing of the learner in between."""
    _, *shape = dataset.train.x.shape
    module = find_network(config.network)(tuple(shape), dataset.task.num_outputs)
    with safe_open(path, framework="pt") as file:
        module.load_state_dict({name: file.get_tensor(name) for name in file.keys()}, strict=False)  # noqa: SIM118
    with torch.no_grad():
        return module.eval()(images)


def test_safetensors_have_the_names_of_the_module_and_give_the_same_answers(edge, config, dataset):
    folder, learner, params = edge
    images = make_pools(dataset).test.x
    done = CliRunner().invoke(
        app, ["export", str(folder / "store"), "--config", str(folder / "run"), "--out", str(folder / "m.safetensors")]
    )
    assert done.exit_code == 0, done.output
    assert "Images go in as pixels / 255" in done.output
    answers = answered_alone(folder / "m.safetensors", config, dataset, images)
    torch.testing.assert_close(answers, learner.logits(params, images))


def test_the_file_says_what_it_is(edge):
    folder, learner, _ = edge
    Exporter.from_config(read_run_settings(folder / "run", None)).write(
        read_stored_model(folder / "store"), folder / "m.safetensors"
    )
    with safe_open(folder / "m.safetensors", framework="numpy") as file:
        about, names = file.metadata(), set(file.keys())
    assert names == set(learner.layout)
    assert (about["network"], about["run"], about["rounds"]) == ("small-cnn", "run-1", "4")
    assert len(json.loads(about["image_shape"])) == 3
    assert len(json.loads(about["mean"])) == json.loads(about["image_shape"])[0]


def test_torchscript_runs_without_this_package(edge, dataset):
    folder, learner, params = edge
    images = make_pools(dataset).test.x[:5]  # another number than it was traced with
    Exporter.from_config(read_run_settings(folder / "run", None)).write(
        read_stored_model(folder / "store"), folder / "m.pt"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        loaded = torch.jit.load(str(folder / "m.pt"))
    torch.testing.assert_close(loaded(images).detach(), learner.logits(params, images))


def test_onnx_is_written_or_the_packages_are_named(edge):
    folder, _, _ = edge
    exporter, model = Exporter.from_config(read_run_settings(folder / "run", None)), read_stored_model(folder / "store")
    if all(importlib.util.find_spec(name) for name in ("onnx", "onnxscript", "onnxruntime")):
        assert exporter.write(model, folder / "m.onnx") < 1e-4
    else:
        with pytest.raises(MissingDependencyError, match="pip install onnx"):
            exporter.write(model, folder / "m.onnx")
        assert not (folder / "m.onnx").exists()


@pytest.mark.parametrize("ending", ["safetensors", "pt"])
@pytest.mark.parametrize("network", NETWORKS.built_in)
def test_every_built_in_network_can_be_exported(network, ending, tmp_path):
    shape = {"lstm": (5, 3), "decoder": (5,)}.get(network, (1, 8, 8))
    learner = Learner(partial(find_network(network), shape, 7), Adam())
    samples = torch.randint(7, (4, *shape)) if network == "decoder" else torch.randn(4, *shape)
    exporter = Exporter(learner, samples, {"network": network})
    assert exporter.write(StoredModel(learner.init(0), {"run": "run-1"}), tmp_path / f"m.{ending}") < 1e-4
    if ending == "pt":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            loaded = torch.jit.load(str(tmp_path / "m.pt"))
        some = samples[:3]  # another number than it was traced with
        torch.testing.assert_close(loaded(some).detach(), learner.logits(learner.init(0), some), atol=1e-4, rtol=1e-4)


def test_parameters_that_layers_share_are_exported_once(tmp_path):
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.second(torch.tanh(self.first(x)))

    learner = Learner(Tied, Adam())
    exporter = Exporter(learner, torch.randn(4, 4), {"network": "tied"})
    assert exporter.write(StoredModel(learner.init(0), {"run": "run-1"}), tmp_path / "m.safetensors") < 1e-6
    with safe_open(tmp_path / "m.safetensors", framework="pt") as file:
        assert set(file.keys()) == {"first.weight", "first.bias", "second.bias"}


def test_a_simulation_gives_the_model_of_any_server(tmp_path):
    hatdfed.run(dataset="digits", rounds=2, servers=3, seed=5, out=tmp_path / "sim")
    arguments = ["export", str(tmp_path / "sim"), "--server", "2", "--out", str(tmp_path / "m.safetensors"), "--json"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["server"] == "2"
    with safe_open(tmp_path / "sim" / "checkpoint.safetensors", framework="numpy") as file:
        whole = file.get_tensor("2.params")
    with safe_open(tmp_path / "m.safetensors", framework="numpy") as file:
        parts = sum(file.get_tensor(name).sum() for name in file.keys())  # noqa: SIM118
    np.testing.assert_allclose(parts, whole.sum(), rtol=1e-4)


def test_a_model_is_exported_with_its_personal_and_its_frozen_part(tmp_path, dataset):
    chosen = settings(parameters={"personal": ["11.*"], "frozen": ["0.*"]}, rounds=1)
    hatdfed.run(chosen, out=tmp_path / "run")
    exporter = Exporter.from_config(chosen)
    models = [read_stored_model(tmp_path / "run", server) for server in (0, 1)]
    for server, model in enumerate(models):
        exporter.write(model, tmp_path / f"{server}.safetensors")
    first, second = (load_file(tmp_path / f"{server}.safetensors") for server in (0, 1))
    assert torch.equal(first["0.weight"], second["0.weight"])
    assert not torch.equal(first["11.weight"], second["11.weight"])
    images = make_pools(dataset).test.x
    answers = answered_alone(tmp_path / "0.safetensors", chosen, dataset, images)
    torch.testing.assert_close(answers, exporter.learner.logits(models[0].params, images))


def test_a_model_is_not_exported_with_other_frozen_values(tmp_path):
    chosen = settings(parameters={"frozen": ["0.*"]}, rounds=1)
    hatdfed.run(chosen, out=tmp_path / "run")
    exporter = Exporter.from_config(chosen)
    exporter.learner.frozen["0.weight"].add_(1)
    with pytest.raises(RunFolderError, match="frozen parameters"):
        exporter.write(read_stored_model(tmp_path / "run", 0), tmp_path / "m.safetensors")


def test_a_server_that_is_not_there_is_refused(tmp_path):
    hatdfed.run(dataset="digits", rounds=1, servers=2, out=tmp_path / "sim")
    for server in (None, 2):
        with pytest.raises(ConfigError, match="--server, 0 to 1"):
            read_stored_model(tmp_path / "sim", server)


def test_a_model_of_other_settings_is_refused(edge):
    folder, _, params = edge
    with pytest.raises(ConfigError, match=r"Give the config.yaml of the run"):
        Exporter.from_config(read_run_settings(folder / "run", None)).write(
            StoredModel(params[:-1], {}), folder / "m.safetensors"
        )


def test_a_file_that_answers_otherwise_is_removed(edge, monkeypatch):
    folder, _, _ = edge
    exporter = Exporter.from_config(read_run_settings(folder / "run", None))
    monkeypatch.setattr(Exporter, "_run", lambda self, module: module(self.images).detach() + 1)
    with pytest.raises(HatdfedError, match="answers otherwise"):
        exporter.write(read_stored_model(folder / "store"), folder / "m.safetensors")
    assert not (folder / "m.safetensors").exists()


def test_a_folder_without_models_and_one_without_settings_are_named(tmp_path):
    with pytest.raises(RunFolderError, match="holds no model"):
        read_stored_model(tmp_path)
    with pytest.raises(ConfigError, match=r"no config.yaml"):
        read_run_settings(tmp_path, None)


def test_a_model_of_a_regression_says_how_its_answers_become_values(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 3)).astype(np.float32)
    hatdfed.run(dataset=(x, 50 + 9 * x[:, 0]), servers=2, rounds=2, out=tmp_path / "run", network="mlp")
    exporter = Exporter.from_config(read_run_settings(tmp_path / "run", None))
    exporter.write(read_stored_model(tmp_path / "run", 0), tmp_path / "model.safetensors")
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        about = file.metadata()
    assert about["task"] == "regression"
    assert json.loads(about["target_mean"]) == pytest.approx([50], abs=5)
    assert about["inputs"].startswith("Features go in as they are, minus [")
    assert about["inputs"].endswith("multiplied by target_std and added to target_mean.")
