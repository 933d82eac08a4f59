"""Runs, ready to be played: one by one with mailboxes, or many in one stacked fleet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from hatdfed.core.coordinator import Coordinator
from hatdfed.core.round import RoundPlan, RoundReport
from hatdfed.data.datasets.base import Dataset
from hatdfed.fleets.mailbox import MailboxFleet
from hatdfed.fleets.sharded.fleet import ShardedFleet
from hatdfed.fleets.sharded.orders import even_bounds
from hatdfed.fleets.stacked.fleet import StackedFleet
from hatdfed.fleets.stacked.memory import execution_for
from hatdfed.fleets.stacked.rows import RunServers
from hatdfed.fleets.stacked.run_view import RunView
from hatdfed.server.program import EdgeProgram
from hatdfed.server.work import Batch
from hatdfed.setup.build.placement import Placement, chosen_placement
from hatdfed.setup.build.program import initial_seed, make_actors, make_program
from hatdfed.setup.build.world import Pools, World, make_pools, make_world
from hatdfed.setup.config import Config
from hatdfed.setup.run_identity import sources_key


class Simulation(NamedTuple):
    """A run, ready to be played."""

    coordinator: Coordinator
    fleet: MailboxFleet | RunView | ShardedFleet
    test: Batch  # for after the last round
    label_shares: NDArray[np.float64]  # [N, classes] of each server's own images


class Batched(NamedTuple):
    """Runs that are played together."""

    simulations: list[Simulation]
    placement: Placement
    stack: StackedFleet | None  # None: mailboxes, or shards

    def run_rounds(self, plans: Mapping[int, RoundPlan]) -> Mapping[int, RoundReport]:
        """One round of the runs that have a plan."""
        if self.stack is not None:
            return self.stack.run_rounds(plans)
        return {run: self.simulations[run].fleet.run_round(plan) for run, plan in plans.items()}

    def close(self) -> None:
        """Give back what the fleets occupy elsewhere."""
        for simulation in self.simulations:
            if isinstance(simulation.fleet, ShardedFleet):
                simulation.fleet.close()


class _Parts(NamedTuple):
    coordinator: Coordinator
    program: EdgeProgram
    world: World
    seeds: list[int]


def make_simulation(config: Config, dataset: Dataset, *, run: str = "") -> Simulation:
    """One run with mailboxes: everything that `config` names, put together."""
    pools = make_pools(dataset)
    return _with_mailboxes(config, _parts([config], dataset, pools)[0], pools, run)


def settled_placement(config: Config, dataset: Dataset, placement: Placement) -> Placement:
    """What `placement` comes to for this network; nothing is made for it."""
    return _settled(placement, make_program(config, dataset), dataset)


def _settled(placement: Placement, program: EdgeProgram, dataset: Dataset) -> Placement:
    channels, height, width = dataset.train.pixels.shape[1:]
    return chosen_placement(placement, program, (channels, height, width))


def make_batch(configs: Sequence[Config], dataset: Dataset, placement: Placement, names: Sequence[str]) -> Batched:
    """Compatible runs in one fleet, where `placement` allows it; `names` mark their messages."""
    pools = make_pools(dataset)
    parts = _parts(configs, dataset, pools)
    placement = _settled(placement, parts[0].program, dataset)
    if placement.fleet == "mailbox":
        alone = [_with_mailboxes(*each[:2], pools, each[2]) for each in zip(configs, parts, names, strict=True)]
        return Batched(alone, placement, None)
    if placement.fleet == "sharded":
        (config,), (part,) = configs, parts
        return Batched([_in_shards(config, part, dataset, pools, placement)], placement, None)
    members = [RunServers(part.program, part.world.sources, part.coordinator.prices, part.seeds) for part in parts]
    stack = StackedFleet(members, execution_for(members, torch.device(placement.device)))
    simulations = [
        Simulation(part.coordinator, RunView(stack, run), pools.test, part.world.label_shares)
        for run, part in enumerate(parts)
    ]
    return Batched(simulations, placement, stack)


def _parts(configs: Sequence[Config], dataset: Dataset, pools: Pools) -> list[_Parts]:
    worlds: dict[str, World] = {}
    parts = []
    for config in configs:
        key = sources_key(config)
        if key not in worlds:
            worlds[key] = make_world(config, dataset, pools)
        seeds = [initial_seed(config, server) for server in range(config.servers)]
        parts.append(_Parts(*make_actors(config, dataset), worlds[key], seeds))
    return parts


def _in_shards(config: Config, parts: _Parts, dataset: Dataset, pools: Pools, placement: Placement) -> Simulation:
    from hatdfed.setup.build.ray_shards import RayShards  # for those who ask for it

    bounds = even_bounds(config.servers, placement.shards or 1)
    shards = RayShards(config, dataset, bounds, placement.device, placement.address)
    return Simulation(
        parts.coordinator, ShardedFleet(shards, parts.coordinator.prices), pools.test, parts.world.label_shares
    )


def _with_mailboxes(config: Config, parts: _Parts, pools: Pools, run: str) -> Simulation:
    fleet = MailboxFleet(
        parts.program,
        parts.world.sources,
        parts.coordinator.prices,
        initial_seeds=parts.seeds,
        codec_name=config.codec,
        run=run,
    )
    return Simulation(parts.coordinator, fleet, pools.test, parts.world.label_shares)
