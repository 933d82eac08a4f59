"""Where an edge's first model comes from: its own disk, a peer that is further, or a fresh start."""

from __future__ import annotations

import asyncio
import logging

import grpc
import torch

from hatdfed.deploy.edge.peers import Peers
from hatdfed.deploy.edge.round_mailbox import RoundMailbox
from hatdfed.deploy.edge.setup import EdgeSetup
from hatdfed.deploy.edge.store import EdgeStore, Kept, clear_other_runs
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.errors import WireError
from hatdfed.server.exchange import MessageContext, pack_offer_parts
from hatdfed.server.message import Buffer, compute_overhead, unpack
from hatdfed.server.program import Offer, ServerState

_log = logging.getLogger("hatdfed.deploy.edge")
_WHOLE = "model"  # what a whole model is called in a message between edges of any codec
_COPY_SECONDS = 300.0


async def first_state(outfit: EdgeSetup, store: EdgeStore, welcome: pb.Welcome, peers: Peers) -> Kept:
    """What the edge goes on from."""
    kept = await asyncio.to_thread(store.load, welcome.run)
    if kept is not None:
        _log.info("goes on with its own model, before round %d", kept.round)
        return kept
    await asyncio.to_thread(clear_other_runs, store, welcome.run)
    fresh = await asyncio.to_thread(outfit.program.start, outfit.initial_seed)
    for peer in welcome.copy_from:
        try:
            data = await peers.copy(peer, _COPY_SECONDS)
            model = await asyncio.to_thread(unpacked_model, data, welcome.run, len(fresh.params))
        except (WireError, grpc.aio.AioRpcError) as error:
            _log.warning("the model of %s could not be had: %s", peer.name, error)
            continue
        _log.info("begins with the model of %s", peer.name)
        return Kept(welcome.run, welcome.round, fresh._replace(params=model), b"")
    if welcome.round:
        _log.warning("begins with a fresh model in round %d: no peer gave its own", welcome.round)
    return Kept(welcome.run, welcome.round, fresh, b"")


def packed_model(server: ServerState, exchange: RoundMailbox) -> list[Buffer]:
    """The model as it is, whole, whatever the codec of the run."""
    mark = MessageContext(exchange.run, _WHOLE)
    return pack_offer_parts(Offer({_WHOLE: server.params}, 0, 1.0), mark, t=0, sender=exchange.index)


def unpacked_model(data: Buffer, run: str, num_params: int) -> torch.Tensor:  # -> [P]
    """A peer's model, checked as any other."""
    message = unpack(data, max_bytes=4 * num_params + compute_overhead())
    model = message.payload.get(_WHOLE)
    if (message.run, message.codec) != (run, _WHOLE) or model is None:
        raise WireError("foreign", "A peer sent something else than its model.")
    if model.shape != (num_params,) or str(model.dtype) != "float32":
        raise WireError("wrong-shape", f"A peer's model has {model.size} numbers of {model.dtype}.")
    tensor = torch.from_numpy(model)
    if not bool(torch.isfinite(tensor).all()):
        raise WireError("not-finite", "A peer's model holds numbers that are none.")
    return tensor
