"""The models that a run ended with, as modules, and what they predict."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from hatdfed.core.fleet import Fleet, Snapshot
from hatdfed.core.task import CLASSIFICATION, MULTI_LABEL, NEXT_TOKEN, REGRESSION
from hatdfed.data.datasets import Dataset, load_dataset
from hatdfed.data.own.arrays import as_array
from hatdfed.data.own.checks import check_inputs
from hatdfed.data.own.dataset import open_own
from hatdfed.data.standardise import standardise_inputs
from hatdfed.errors import ConfigError, DataError, HatdfedError, RunFolderError
from hatdfed.runs.records.folder import RunFolder
from hatdfed.runs.result import RunResult
from hatdfed.server.learner import Learner, find_tied_parameters
from hatdfed.server.program import check_frozen
from hatdfed.setup.build.program import make_learner

_MOST_KEPT_BYTES = 1 << 30  # of the models of a run without a folder


class StoredModel(NamedTuple):
    """A server's model as a flat vector [M], and where it is from."""

    params: Tensor
    source: dict[str, str]
    frozen: NDArray[Any] | None = None  # a digest of the frozen tensors that belong to it, if that is known


@dataclass(frozen=True)
class TrainedModels:
    """The models of one run, by server, and the data set that they are for."""

    learner: Learner
    dataset: Dataset
    stored: list[StoredModel]

    def modules(self) -> list[nn.Module]:
        """A module for each server."""
        return [self._module(server) for server in range(len(self.stored))]

    def predict(self, x: Any, server: int) -> NDArray[Any]:
        """What the model of `server` says about raw samples."""
        if not 0 <= server < len(self.stored):
            raise ConfigError(f"There is no server {server}: the run has servers 0 to {len(self.stored) - 1}.")
        inputs = standardise_inputs(check_samples(x, self.dataset), self.dataset.format)
        with torch.no_grad():
            outputs = self._module(server)(inputs)
        return _interpret(outputs, self.dataset)

    def _module(self, server: int) -> nn.Module:
        model = self.stored[server]
        check_size(model, self.learner)
        return make_module(self.learner, self.learner.state_dict(model.params))


def load_trained(result: RunResult, dataset: Any = None, data_dir: Path | None = None) -> TrainedModels:
    """The models of a finished run, from memory or from its folder."""
    config = result.config
    if dataset is None:
        known = load_dataset(config.dataset, data_dir=data_dir, options=config.dataset_options)
    else:
        kind, _ = open_own(dataset, config.dataset_options, config.task)
        if kind.name.rpartition("-")[2] != config.dataset.rpartition("-")[2]:
            raise DataError(f"These data are {kind.name!r}, but the run learned from {config.dataset!r}. Give those.")
        known = kind.load(None, None)
    return TrainedModels(make_learner(config, known), known, _find_stored(result))


def _find_stored(result: RunResult) -> list[StoredModel]:
    servers = range(result.config.servers)
    if result.last_models is not None:
        arrays = result.last_models
        return [
            StoredModel(torch.from_numpy(arrays[f"{i}.params"]), {"server": str(i)}, arrays.get(f"{i}.frozen"))
            for i in servers
        ]
    if result.folder is None:
        raise RunFolderError(
            "The models of this run were not kept: it was played without a folder, in a comparison or with models of "
            "more than 1 GiB together. Play it with out=…, which keeps them there."
        )
    checkpoint = RunFolder(result.folder).checkpoint
    if not checkpoint.is_file():
        raise RunFolderError(
            f"{result.folder} holds no models: there is no checkpoint.safetensors. Play the run with checkpoint_every "
            "above 0; of a deployment, the edges have the models (`hatdfed export`)."
        )
    return [read_checkpoint_model(checkpoint, i) for i in servers]


def keep_models(fleet: Fleet) -> Snapshot | None:
    """The models of a run that has no folder, if they are not too large to be kept in memory."""
    if 4 * fleet.num_servers * fleet.num_params > _MOST_KEPT_BYTES:
        return None
    return {name: array for name, array in fleet.snapshot().items() if name.endswith((".params", ".frozen"))}


def read_checkpoint_model(path: Path, server: int | None) -> StoredModel:
    """One server's model from a simulation's checkpoint."""
    try:
        with safe_open(path, framework="pt") as file:
            names: list[str] = [name for name in file.keys() if name.endswith(".params")]  # noqa: SIM118
            if server is None or f"{server}.params" not in names:
                raise ConfigError(
                    f"{path.parent} holds the models of {len(names)} servers. Choose one by --server, 0 to "
                    f"{len(names) - 1}."
                )
            digest = f"{server}.frozen"
            frozen = file.get_tensor(digest).numpy() if digest in file.keys() else None  # noqa: SIM118
            return StoredModel(file.get_tensor(f"{server}.params"), {"server": str(server)}, frozen)
    except (SafetensorError, OSError) as error:
        raise RunFolderError(f"The checkpoint {path} cannot be read ({error}). Check the path.") from None


def check_size(model: StoredModel, learner: Learner) -> None:
    """Refuse a model that is not one of the settings' network."""
    if len(model.params) != learner.num_kept:
        raise ConfigError(
            f"The model has {len(model.params)} numbers, but the settings describe one of "
            f"{learner.num_kept}. Give the config.yaml of the run that it belongs to."
        )
    check_frozen(model.frozen, learner)


def make_module(learner: Learner, tensors: Mapping[str, Tensor]) -> nn.Module:
    """Make the module with these tensors; only step counters and tied parameters may be missing among them."""
    module = copy.deepcopy(learner.module).eval()
    missing, unexpected = module.load_state_dict(dict(tensors), strict=False)
    counters = {name for name, buffer in module.named_buffers() if not buffer.is_floating_point()}
    if unexpected or not set(missing) <= counters | find_tied_parameters(module).keys():
        raise HatdfedError(f"The module has no tensors {unexpected}, or misses {missing}.")
    return module


def check_samples(x: Any, dataset: Dataset) -> NDArray[Any]:
    """Raw samples as the data set has them; a sentence for whatever does not go with it."""
    samples, shape = check_inputs(as_array(x, "x")), dataset.sample_shape
    wanted = dataset.train.x.dtype
    if samples.shape[1:] != shape or samples.dtype.kind != wanted.kind:
        raise DataError(
            f"x holds samples of {samples.dtype} of shape {list(samples.shape[1:])}, but the run learned from {wanted} "
            f"of shape {list(shape)}. Give raw samples in that form, [n, {', '.join(map(str, shape))}]."
        )
    return samples


def _interpret(outputs: Tensor, dataset: Dataset) -> NDArray[Any]:
    """A task's answers, from the outputs of its network; outputs as they are of a task of one's own."""
    task = dataset.task
    if task.name == REGRESSION:
        values: NDArray[Any] = outputs.double().numpy() * np.array(task.target_std) + np.array(task.target_mean)
        return values[:, 0] if task.num_outputs == 1 else values
    if task.name == MULTI_LABEL:
        return (outputs > 0).long().numpy()
    return outputs.argmax(dim=-1).numpy() if task.name in (CLASSIFICATION, NEXT_TOKEN) else outputs.numpy()
