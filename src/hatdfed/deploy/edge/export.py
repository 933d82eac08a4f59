"""Exports a model from an edge's store or a simulation's checkpoint to a file that other programs read.

.safetensors   tensors under the names of the module, with what a reader must know about them as metadata
.pt            TorchScript, which runs without this package
.onnx          ONNX, where the packages for it are installed

Every file is read back and must give the same outputs as the model it was made from; one that does not is removed.
"""

from __future__ import annotations

import importlib.util
import io
import json
import warnings
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from hatdfed.data.datasets import Dataset, load_dataset
from hatdfed.deploy.edge.private_rounds import PrivateRounds
from hatdfed.deploy.edge.state_files import refuse_folder_without_models
from hatdfed.deploy.edge.store import EdgeStore
from hatdfed.errors import ConfigError, HatdfedError, MissingDependencyError, RunFolderError, require_one_of
from hatdfed.runs.privacy_loss import bound_epsilon, count_rounds_trained
from hatdfed.runs.records.checkpoint import write_atomically
from hatdfed.runs.records.folder import RunFolder
from hatdfed.runs.trained_models import StoredModel, check_size, make_module, read_checkpoint_model
from hatdfed.server.learner import Learner
from hatdfed.setup.build.program import make_learner
from hatdfed.setup.build.world import make_pools
from hatdfed.setup.config import Config
from hatdfed.setup.layers import read_config

_IMAGES = 64  # of the validation data, on which a file is compared with its model
_TOLERANCE = 1e-4  # other runtimes sum in another order


@dataclass(frozen=True)
class Exporter:
    """Writes models of one architecture; `images` are standardised as in training."""

    learner: Learner
    images: Tensor  # [n, C, H, W]
    about: dict[str, str]

    @classmethod
    def from_config(cls, config: Config, *, data_dir: Path | None = None) -> Exporter:
        """Make an exporter for the models of a run; its data set says what samples look like."""
        dataset = load_dataset(config.dataset, data_dir=data_dir, options=config.dataset_options)
        images = make_pools(dataset).validation.x[:_IMAGES]
        about = {
            "network": config.network,
            "dataset": config.dataset,
            "task": dataset.task.name,
            "classes": str(dataset.task.num_outputs),  # or whatever else the task has as outputs
            "image_shape": json.dumps(list(images.shape[1:])),  # the shape of a sample, if it is no image
            "mean": json.dumps(list(dataset.mean)),  # of pixels / 255, or of features: what is to be subtracted
            "std": json.dumps(list(dataset.std)),  # and divided by
            "inputs": _describe_inputs(dataset),
        }
        if dataset.task.target_mean:
            about["target_mean"] = json.dumps(list(dataset.task.target_mean))
            about["target_std"] = json.dumps(list(dataset.task.target_std))
        return cls(make_learner(config, dataset), images, about)

    def write(self, model: StoredModel, path: Path) -> float:
        """Write a file in the format of the ending of `path`; returns how far its outputs differ from the model's."""
        check_size(model, self.learner)
        require_one_of("The ending of --out", path.suffix, _WRITERS)
        logits = _WRITERS[path.suffix](self, model, path)
        expected = self.learner.logits(model.params, self.images)
        difference = float((logits - expected).abs().max())
        if not difference <= _TOLERANCE * max(1.0, float(expected.abs().max())):
            path.unlink()
            raise HatdfedError(
                f"The file that was written answers otherwise than the model, by {difference:.3g}. It was removed; "
                "choose another format."
            )
        return difference

    def _write_safetensors(self, model: StoredModel, path: Path) -> Tensor:
        tensors = self.learner.state_dict(model.params)
        write_atomically(path, save(tensors, metadata={**self.about, **model.source}))
        return self._run(make_module(self.learner, load_file(path)))

    def _write_torchscript(self, model: StoredModel, path: Path) -> Tensor:
        module, buffer = make_module(self.learner, self.learner.state_dict(model.params)), io.BytesIO()
        extra = {"hatdfed.json": json.dumps({**self.about, **model.source})}
        with torch.no_grad(), warnings.catch_warnings():
            # TorchScript is deprecated, but it is what runs without Python today.
            warnings.simplefilter("ignore", DeprecationWarning)
            warnings.simplefilter("ignore", torch.jit.TracerWarning)  # type: ignore[attr-defined] # of checks in group norm
            torch.jit.save(torch.jit.trace(module, self.images), buffer, _extra_files=extra)  # type: ignore[no-untyped-call]
            write_atomically(path, buffer.getvalue())
            return self._run(torch.jit.load(str(path)))  # type: ignore[no-untyped-call]

    def _write_onnx(self, model: StoredModel, path: Path) -> Tensor:
        for package in ("onnx", "onnxscript", "onnxruntime"):
            if importlib.util.find_spec(package) is None:
                raise MissingDependencyError(
                    f"ONNX files are made and checked with the package {package}: pip install onnx onnxscript "
                    "onnxruntime. Or export to .safetensors or .pt, which need nothing more."
                )
        return _export_onnx(make_module(self.learner, self.learner.state_dict(model.params)), self.images, path)

    @torch.no_grad()
    def _run(self, module: Callable[[Tensor], Tensor]) -> Tensor:
        return module(self.images)


def _describe_inputs(dataset: Dataset) -> str:
    """How samples go into a model, in a sentence."""
    if not dataset.mean:
        return "Token ids go in as integers."
    what = "Images go in as pixels / 255" if dataset.has_images else "Features go in as they are"
    sentence = f"{what}, minus {json.dumps(list(dataset.mean))}, divided by {json.dumps(list(dataset.std))}."
    if not dataset.task.target_mean:
        return sentence
    return f"{sentence} What comes out is multiplied by target_std and added to target_mean."


def _export_onnx(module: nn.Module, images: Tensor, path: Path) -> Tensor:
    """Write a file that takes any number of images, and return its outputs as computed by ONNX Runtime."""
    import onnxruntime  # type: ignore[import-not-found]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they come from other packages
        torch.onnx.export(
            module,
            (images,),
            str(path),
            input_names=["images"],
            output_names=["logits"],
            dynamic_shapes=({0: torch.export.Dim("n")},),
            external_data=False,
            verbose=False,
        )
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {"images": images.numpy()})
    return torch.from_numpy(logits)


_WRITERS: dict[str, Callable[[Exporter, StoredModel, Path], Tensor]] = {
    ".safetensors": Exporter._write_safetensors,
    ".pt": Exporter._write_torchscript,
    ".onnx": Exporter._write_onnx,
}


def read_stored_model(source: Path, server: int | None = None) -> StoredModel:
    """Read the newest model from an edge's store, or one server's model from a simulation's run folder."""
    checkpoint = RunFolder(source).checkpoint
    if checkpoint.is_file():
        return read_checkpoint_model(checkpoint, server)
    if server is not None:
        raise ConfigError(
            f"--server chooses one of a simulation's servers, but {source} is no simulation's run folder."
        )
    refuse_folder_without_models(source)
    saved = EdgeStore(source).load()
    if saved is None:
        raise RunFolderError(f"The states in {source} were moved away meanwhile. Try again.")
    return StoredModel(saved.server.params, {"run": saved.run, "rounds": str(saved.round)})


def add_privacy(model: StoredModel, folder: Path, config: Config) -> StoredModel:
    """Add what a private run has given away about the images of the server whose model this is."""
    if config.privacy.clip is None:
        return model
    if "run" in model.source:
        rounds = PrivateRounds(folder).read(model.source["run"])
    else:
        with closing(RunFolder(folder).read()) as database:
            rounds = count_rounds_trained(database.records("servers"), config.servers)[int(model.source["server"])]
    told = {**config.privacy.model_dump(), "rounds_trained": rounds, "epsilon": bound_epsilon(config, rounds)}
    return model._replace(source={**model.source, "privacy": json.dumps(told)})


def read_run_settings(source: Path, config: Path | None) -> Config:
    """Read the run's settings from a config.yaml or a run folder that has one; by default from the source itself."""
    where = source if config is None else config
    path = where / "config.yaml" if where.is_dir() else where
    if not path.is_file():
        raise ConfigError(
            f"There is no config.yaml in {where}, so it is not known what the model's tensors are. Give the "
            "coordinator's run folder, or a copy of its config.yaml, by --config."
        )
    return read_config(path)
