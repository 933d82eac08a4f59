"""What an edge needs to take part: program, data and first model, made from the settings that the coordinator sent."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from hatdfed.data.datasets import load_dataset
from hatdfed.data.own.source import SlowMachine, Standardise, open_own_data
from hatdfed.server.codecs.base import message_share
from hatdfed.server.program import EdgeProgram
from hatdfed.server.work import DataSource, HeldOut
from hatdfed.setup.build.program import initial_seed, make_program
from hatdfed.setup.build.world import local_work, make_pools, make_world
from hatdfed.setup.config import Config

_log = logging.getLogger("hatdfed.deploy.edge")


class EdgeSetup(NamedTuple):
    """Everything but the network."""

    program: EdgeProgram
    source: DataSource
    initial_seed: int
    bits_per_sample: int
    test: HeldOut | None  # for after the last round; None of an edge with data of its own

    @property
    def layout(self) -> str:
        """A digest of all tensors' names and shapes: two edges whose digests differ cannot merge."""
        shapes = {name: list(shape) for name, (_, shape) in self.program.learner.layout.items()}
        return hashlib.sha256(json.dumps(shapes, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def message_share(self) -> float:
        """Of a float32 model that one message takes."""
        return message_share(self.program.codec, self.program.learner.num_params)


OutfitMaker = Callable[[Config, int], EdgeSetup]


def simulated_setup(
    config: Config, index: int, *, data_dir: Path | None = None, own_data: str | None = None, work_share: float = 1.0
) -> EdgeSetup:
    """The data that this server has in a simulation: its shard of a public data set, brought by made-up devices.

    With `own_data` the data set says only what images look like; what is trained on comes from there.
    """
    dataset = load_dataset(config.dataset, data_dir=data_dir, options=config.dataset_options)
    pools = make_pools(dataset)
    program, seed = make_program(config, dataset), initial_seed(config, index)
    if own_data is not None:
        source = open_own_data(
            own_data,
            image_shape=dataset.train.pixels.shape[1:],
            num_classes=dataset.num_classes,
            settings=local_work(config),
            seed=config.seed,
            server=index,
            work_share=work_share,
            standardise=Standardise(dataset.mean, dataset.std),
            warn=_log.warning,
        )
        return EdgeSetup(program, source, seed, dataset.bits_per_sample, None)
    here = config if index < config.servers else config.model_copy(update={"servers": index + 1})
    world = make_world(here, dataset, pools)
    return EdgeSetup(
        program=program,
        source=SlowMachine(world.sources[index], work_share) if work_share < 1 else world.sources[index],
        initial_seed=seed,
        bits_per_sample=dataset.bits_per_sample,
        test=world.test.of_servers(index, index + 1),
    )
