"""Shards as Ray actors: a process each, on whichever machine has capacity; letters go from one to another.

An actor puts its letters into Ray's object store and tells only where they lie; the receiving actor fetches them from
there. What passes through this process is orders, reports and checkpoints.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from hatdfed.data.datasets.base import Dataset
from hatdfed.errors import ClusterError, HatdfedError
from hatdfed.fleets.sharded.fleet import FindLost, Works, letters_for, list_works
from hatdfed.fleets.sharded.orders import Lost, ShardOrder
from hatdfed.fleets.sharded.ray_connection import connected
from hatdfed.fleets.sharded.ray_nodes import ANSWER_SECONDS, Need, Node, check_versions, nodes_of
from hatdfed.fleets.sharded.shard import Letter, Shard, ShardReport, Trained
from hatdfed.fleets.stacked.memory import execution_for
from hatdfed.fleets.stacked.rows import RunServers
from hatdfed.registry import Source, import_sources, list_sources
from hatdfed.setup.build.program import initial_seed, make_program
from hatdfed.setup.build.world import make_world
from hatdfed.setup.config import Config
from hatdfed.setup.layers import validate

_SHARES = (1.0, 0.5, 0.25, 0.1)  # of a CPU, and of a GPU where there is one: as much for each shard as there is


class ShardActor:
    """A shard in a process of its own, which reads and writes Ray's object store."""

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)
        self._shard: Shard | None = None

    def build(
        self,
        sources: Sequence[Source],
        settings: Mapping[str, Any],
        dataset: Dataset,
        first: int,
        last: int,
        device: str,
    ) -> None:
        """Make the shard; the data set comes from the object store, so its machine need not have it."""
        import_sources(sources)
        self._shard = make_shard(validate(settings), dataset, first, last, device)

    def train(self, order: ShardOrder) -> Trained:
        """The first half of a round: for each shard that wants something, where its letter lies."""
        import ray

        trained = self._built.train(order)
        return trained._replace(letters={shard: ray.put(letter) for shard, letter in trained.letters.items()})

    def merge(self, lost: Lost, *letters: Letter) -> ShardReport:
        """The second half."""
        return self._built.merge(letters, lost)

    def do(self, verb: str, *arguments: Any) -> Any:
        """Any other method of a shard."""
        return getattr(self._built, verb)(*arguments)

    def pid(self) -> int:
        """Which process this is."""
        return os.getpid()

    def memory(self) -> dict[str, int]:
        """Bytes that this process has to itself now, and the most that it has had with what it shares."""
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        known = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
        return {"own": 1024 * int(known["RssAnon"][0]), "peak_with_shared": 1024 * int(known["VmHWM"][0])}

    @property
    def _built(self) -> Shard:
        if self._shard is None:
            raise ValueError("a shard is built before it is asked for anything")
        return self._shard


class RayShards:
    """One actor a shard; `close` whatever happens (`fleets.sharded.Shards`)."""

    def __init__(
        self, config: Config, dataset: Dataset, bounds: Sequence[int], device: str, address: str | None
    ) -> None:
        self.bounds = tuple(bounds)
        self._exits = ExitStack()
        try:
            self._ray = self._exits.enter_context(connected(address))
            self._actors = self._start(device)
            data = self._ray.put(dataset)
            settings, sources = config.model_dump(mode="json"), list_sources()
            self._get([a.build.remote(sources, settings, data, *block, device) for a, block in self._blocks()])
        except BaseException:
            self._exits.close()
            raise

    def play(self, orders: Sequence[ShardOrder], find_lost: FindLost) -> tuple[Works, list[ShardReport]]:
        """All shards at once, twice."""
        trained: list[Trained] = self._get(
            [actor.train.remote(order) for actor, order in zip(self._actors, orders, strict=True)]
        )
        works = list_works(trained)
        lost = find_lost(works)
        merging = [
            actor.merge.remote(lost[number], *letters_for(number, trained)) for number, actor in enumerate(self._actors)
        ]
        return works, self._get(merging)

    def each(self, verb: str, *arguments: Sequence[Any]) -> list[Any]:
        """All shards at once."""
        return self._get(
            [actor.do.remote(verb, *(those[n] for those in arguments)) for n, actor in enumerate(self._actors)]
        )

    def memory(self) -> list[dict[str, int]]:
        """Of each shard's process."""
        return self._get([actor.memory.remote() for actor in self._actors])

    def close(self) -> None:
        """End the actors, and a cluster of our own."""
        self._exits.close()

    def _start(self, device: str) -> list[Any]:
        ray, nodes = self._ray, nodes_of(self._ray)
        need = need_of_shards(nodes, len(self.bounds) - 1, device)
        check_versions(ray, nodes)
        maker = ray.remote(num_cpus=need.cpus, num_gpus=need.gpus, scheduling_strategy="SPREAD")(ShardActor)
        actors = [maker.remote(need.threads) for _ in pairwise(self.bounds)]
        for actor in actors:
            self._exits.callback(ray.kill, actor)
        waiting = [actor.pid.remote() for actor in actors]
        ready, _ = ray.wait(waiting, num_returns=len(waiting), timeout=ANSWER_SECONDS)
        if len(ready) < len(waiting):
            raise ClusterError(
                f"Only {len(ready)} of {len(waiting)} shards were placed on the Ray cluster in {ANSWER_SECONDS:g} s. "
                "Wait until other work there has ended, or use fewer shards."
            )
        return actors

    def _blocks(self) -> list[tuple[Any, tuple[int, int]]]:
        return list(zip(self._actors, pairwise(self.bounds), strict=True))

    def _get(self, answers: Sequence[Any]) -> list[Any]:
        """What all actors answer; the first one that does not is named."""
        gotten = []
        for answer, (first, last) in zip(answers, pairwise(self.bounds), strict=True):
            try:
                gotten.append(self._ray.get(answer))
            except self._ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, HatdfedError):
                    raise error.cause from None
                raise
            except self._ray.exceptions.RayError:
                raise ClusterError(
                    f"The shard with servers {first} to {last - 1} was lost with its process or machine, so the run "
                    "stops here. Go on from its last checkpoint by --resume, with as many shards as fit."
                ) from None
        return gotten


def need_of_shards(nodes: Sequence[Node], shards: int, device: str) -> Need:
    """The share of the cluster for each shard: as many CPUs and GPUs, or parts of them, for all alike."""
    for share in _SHARES:
        need = Need(share, share if device == "cuda" else 0.0)
        if sum(need.places(node) for node in nodes) >= shards:
            return need
    cpus, gpus = sum(node.cpus for node in nodes), sum(node.gpus for node in nodes)
    raise ClusterError(
        f"{shards} shards on {device} do not fit on a Ray cluster with {cpus:g} CPUs and {gpus:g} GPUs, even with a "
        f"tenth of one each. Use fewer shards{', or --device cpu' if device == 'cuda' else ''}."
    )


def make_shard(config: Config, dataset: Dataset, first: int, last: int, device: str) -> Shard:
    """Servers `first` to `last` − 1; the same models and data that they would have in one fleet."""
    world = make_world(config, dataset)
    seeds = [initial_seed(config, server) for server in range(first, last)]
    test = world.test.of_servers(first, last)
    member = RunServers(make_program(config, dataset), world.sources[first:last], None, seeds, test)
    return Shard(member, execution_for([member], torch.device(device)), first)
