"""Runs, ready to be played: one by one with mailboxes, or many in one stacked fleet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from hatdfed.core.coordinator import Coordinator
from hatdfed.core.delivery import Delivery
from hatdfed.core.fleet import Fleet, FleetGroup, SeparateFleets
from hatdfed.core.timing.deadline import Deadline
from hatdfed.data.datasets.base import Dataset
from hatdfed.data.standardise import make_tensors
from hatdfed.errors import ConfigError
from hatdfed.fleets.mailbox import MailboxFleet
from hatdfed.fleets.sharded.fleet import ShardedFleet
from hatdfed.fleets.sharded.orders import even_bounds
from hatdfed.fleets.stacked.choose_model import choose_model
from hatdfed.fleets.stacked.fleet import StackedFleet
from hatdfed.fleets.stacked.memory import execution_for
from hatdfed.fleets.stacked.rows import RunServers
from hatdfed.fleets.stacked.step_timer import Load
from hatdfed.server.program import EdgeProgram
from hatdfed.setup.build.placement import Placement, choose_placement
from hatdfed.setup.build.program import describe_flops, find_forward_flops, initial_seed, make_actors, make_learner
from hatdfed.setup.build.world import World, make_worlds
from hatdfed.setup.config import Config
from hatdfed.setup.run_identity import sources_key

_TRIED_SAMPLES = 8


class Simulation(NamedTuple):
    """A run, ready to be played."""

    coordinator: Coordinator
    fleet: Fleet


class SimulatedRuns(NamedTuple):
    """Runs that are played together."""

    coordinators: list[Coordinator]
    fleets: FleetGroup
    placement: Placement
    num_total: int  # parameters of the network, sent or not
    notes: list[list[str]]  # what a user should know about how each run was prepared

    @property
    def simulations(self) -> list[Simulation]:
        """The two halves of each."""
        return [Simulation(*pair) for pair in zip(self.coordinators, self.fleets.fleets, strict=True)]


class _Parts(NamedTuple):
    coordinator: Coordinator
    program: EdgeProgram
    world: World
    seeds: list[int]


def _refuse_measured(configs: Sequence[Config]) -> None:
    if any(config.energy.source == "measured" for config in configs):
        raise ConfigError(
            "energy.source is measured, but in a simulation there are no machines to measure. Use modelled, or "
            "calibrated with a profile that `hatdfed calibrate` has made."
        )


def make_batch(
    configs: Sequence[Config], dataset: Dataset, placement: Placement, names: Sequence[str]
) -> SimulatedRuns:
    """Compatible runs in one fleet, where `placement` allows it; `names` mark their messages."""
    _refuse_measured(configs)
    parts = _parts(configs, dataset)
    placement = choose_placement(placement)
    fleets: FleetGroup
    if placement.fleet == "mailbox":
        fleets = SeparateFleets(*map(_with_mailboxes, configs, parts, names))
    elif placement.fleet == "sharded":
        (config,), (part,) = configs, parts
        fleets = SeparateFleets(_in_shards(config, part, dataset, placement))
    else:
        members = [
            RunServers(
                program=part.program,
                sources=part.world.sources,
                prices=part.coordinator.prices,
                initial_seeds=part.seeds,
                test=part.world.test,
                liars=part.world.liars,
                delivery=_find_delivery(part),
            )
            for part in parts
        ]
        fleets = StackedFleet(members, execution_for(members, torch.device(placement.device)))
    num_total = parts[0].program.learner.num_total
    notes = [
        describe_flops(config, find_forward_flops(config, dataset, part.program.learner))
        for config, part in zip(configs, parts, strict=True)
    ]
    return SimulatedRuns([part.coordinator for part in parts], fleets, placement, num_total, notes)


def describe_computation(computed_by: Mapping[str, str | int]) -> str:
    """Describe which fleet computes the servers of a run, on which device, how, and why."""
    how = f"{computed_by['fleet']} fleet on {computed_by['device']}: {computed_by['kernels']}"
    return f"{how}, because {computed_by['because']}" if "because" in computed_by else how


def foresee_computation(config: Config, dataset: Dataset, placement: Placement) -> str:
    """Describe the same for a run that has not begun; a trial step with a few samples finds out."""
    device = choose_placement(placement).device
    few = make_tensors(dataset.train.take(slice(0, _TRIED_SAMPLES)), dataset.format)
    load = Load(config.servers, min(config.batch_size, config.samples_per_round))
    model = choose_model(make_learner(config, dataset), few, torch.device(device), load)
    computed_by: dict[str, str | int] = {"fleet": "stacked", "device": device, "kernels": model.kernels}
    return describe_computation(computed_by if model.reason is None else {**computed_by, "because": model.reason})


def _parts(configs: Sequence[Config], dataset: Dataset) -> list[_Parts]:
    distinct = {sources_key(config): config for config in configs}
    worlds = dict(zip(distinct, make_worlds(list(distinct.values()), dataset), strict=True))
    parts = []
    for config in configs:
        seeds = [initial_seed(config, server) for server in range(config.servers)]
        parts.append(_Parts(*make_actors(config, dataset), worlds[sources_key(config)], seeds))
    return parts


def _in_shards(config: Config, parts: _Parts, dataset: Dataset, placement: Placement) -> ShardedFleet:
    from hatdfed.setup.build.ray_shards import RayShards  # for those who ask for it

    if parts.world.liars is not None:
        raise ConfigError("world.liars is not simulated in shards. Use --fleet stacked.")
    bounds = even_bounds(config.servers, placement.shards or 1)
    shards = RayShards(config, dataset, bounds, placement.device, placement.address)
    return ShardedFleet(shards, parts.coordinator.prices, parts.world.test, _find_delivery(parts))


def _find_delivery(parts: _Parts) -> Delivery:
    pace = parts.coordinator.pace
    return Delivery(parts.world.loss, pace if isinstance(pace, Deadline) else None)


def _with_mailboxes(config: Config, parts: _Parts, run: str) -> MailboxFleet:
    return MailboxFleet(
        parts.program,
        parts.world.sources,
        parts.coordinator.prices,
        parts.world.test,
        initial_seeds=parts.seeds,
        codec_name=config.codec,
        run=run,
        liars=parts.world.liars,
        delivery=_find_delivery(parts),
    )
