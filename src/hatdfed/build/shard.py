"""A shard from settings: what a machine needs to know to run a block of a large fleet's servers."""

from __future__ import annotations

import torch

from hatdfed.build.program import initial_seed, make_program
from hatdfed.build.world import make_pools, make_world
from hatdfed.config import Config
from hatdfed.fleets.memory import execution_for
from hatdfed.fleets.rows import Member
from hatdfed.fleets.shard import Shard
from hatdfed.learning.datasets.base import Dataset


def make_shard(config: Config, dataset: Dataset, first: int, last: int, device: str) -> Shard:
    """Servers `first` to `last` − 1; the same models and data that they would have in one fleet."""
    world = make_world(config, dataset, make_pools(dataset))
    seeds = [initial_seed(config, server) for server in range(first, last)]
    member = Member(make_program(config, dataset), world.sources[first:last], None, seeds)
    return Shard(member, execution_for([member], torch.device(device)), first)
