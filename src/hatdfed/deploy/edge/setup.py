"""What an edge needs to take part: program, data and first model, made from the settings that the coordinator sent."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import grpc
import torch

from hatdfed.data.datasets import load_dataset
from hatdfed.data.own.source import SlowMachine, Standardise, open_own_data
from hatdfed.deploy.edge.peers import Peers
from hatdfed.deploy.edge.round_mailbox import RoundMailbox
from hatdfed.deploy.edge.store import EdgeStore, SavedState, delete_other_runs
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.errors import WireError
from hatdfed.server.codecs.base import message_share
from hatdfed.server.exchange import MessageContext, pack_offer_parts
from hatdfed.server.message import Buffer, compute_overhead, unpack
from hatdfed.server.program import EdgeProgram, Offer, ServerState
from hatdfed.server.work import DataSource, HeldOut
from hatdfed.setup.build.program import initial_seed, make_program
from hatdfed.setup.build.world import local_work, make_pools, make_world
from hatdfed.setup.config import Config

_log = logging.getLogger("hatdfed.deploy.edge")
_WHOLE_MODEL = "model"  # the codec and the payload of a message with a whole model, whatever the run's codec
_COPY_SECONDS = 300.0


class EdgeSetup(NamedTuple):
    """Everything that an edge needs for rounds, but the network."""

    program: EdgeProgram
    source: DataSource
    initial_seed: int
    bits_per_sample: int
    test: HeldOut | None  # for after the last round; None for an edge with its own data

    @property
    def layout(self) -> str:
        """A digest of all tensors' names and shapes: models whose digests differ cannot be merged."""
        shapes = {name: list(shape) for name, (_, shape) in self.program.learner.layout.items()}
        return hashlib.sha256(json.dumps(shapes, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def message_share(self) -> float:
        """The size of one message, as a share of a float32 model."""
        return message_share(self.program.codec, self.program.learner.num_params)


MakeSetup = Callable[[Config, int], EdgeSetup]


def make_edge_setup(
    config: Config, index: int, *, data_dir: Path | None = None, own_data: str | None = None, work_share: float = 1.0
) -> EdgeSetup:
    """Set up an edge with the same data as in a simulation: its shard of a public data set, from simulated devices.

    With `own_data` the edge trains on that instead, and the data set only says what images look like.
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


async def load_first_state(setup: EdgeSetup, store: EdgeStore, welcome: pb.Welcome, peers: Peers) -> SavedState:
    """Get the state to begin with: the edge's own from disk, else a peer's model, else a fresh one."""
    saved = await asyncio.to_thread(store.load, welcome.run)
    if saved is not None:
        _log.info("goes on with its own model, before round %d", saved.round)
        return saved
    await asyncio.to_thread(delete_other_runs, store, welcome.run)
    fresh = await asyncio.to_thread(setup.program.start, setup.initial_seed)
    for peer in welcome.copy_from:
        try:
            data = await peers.copy_model(peer, _COPY_SECONDS)
            model = await asyncio.to_thread(unpack_model, data, welcome.run, len(fresh.params))
        except (WireError, grpc.aio.AioRpcError) as error:
            _log.warning("the model of %s could not be copied: %s", peer.name, error)
            continue
        _log.info("begins with the model of %s", peer.name)
        return SavedState(welcome.run, welcome.round, fresh._replace(params=model), b"")
    if welcome.round:
        _log.warning("begins with a fresh model in round %d: no peer gave its own", welcome.round)
    return SavedState(welcome.run, welcome.round, fresh, b"")


def pack_model(server: ServerState, mailbox: RoundMailbox) -> list[Buffer]:
    """Pack the whole current model, whatever the codec of the run."""
    context = MessageContext(mailbox.run, _WHOLE_MODEL)
    return pack_offer_parts(Offer({_WHOLE_MODEL: server.params}, 0, 1.0), context, t=0, sender=mailbox.index)


def unpack_model(data: Buffer, run: str, num_params: int) -> torch.Tensor:  # -> [P]
    """Unpack a peer's whole model, with the same checks as any other message."""
    message = unpack(data, max_bytes=4 * num_params + compute_overhead())
    model = message.payload.get(_WHOLE_MODEL)
    if (message.run, message.codec) != (run, _WHOLE_MODEL) or model is None:
        raise WireError("foreign", "A peer sent something else than its model.")
    if model.shape != (num_params,) or str(model.dtype) != "float32":
        raise WireError("wrong-shape", f"A peer's model has {model.size} numbers of {model.dtype}.")
    tensor = torch.from_numpy(model)
    if not bool(torch.isfinite(tensor).all()):
        raise WireError("not-finite", "A peer's model holds numbers that are not finite.")
    return tensor
