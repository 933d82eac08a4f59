"""What an edge needs to take part: program, data and first model, made from the settings that the coordinator sent."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import torch

from hatdfed.data.datasets import load_dataset
from hatdfed.data.own.function import UserSource
from hatdfed.data.own.source import SlowMachine, open_own_data
from hatdfed.deploy import history
from hatdfed.deploy.edge.peers import Peers
from hatdfed.deploy.edge.round_mailbox import RoundMailbox
from hatdfed.deploy.edge.store import EdgeStore, SavedState, set_aside_other_runs
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.errors import ConfigError, IdentityError, WireError
from hatdfed.meters.base import ESTIMATE, Meter
from hatdfed.meters.choose import Metering, choose_meter, measure_idle, require_meter
from hatdfed.server.codecs.base import message_share
from hatdfed.server.exchange import Limits, MessageContext, check_norm, pack_offer_parts
from hatdfed.server.message import Buffer, compute_overhead, unpack
from hatdfed.server.private_steps import secret_noise
from hatdfed.server.program import EdgeProgram, Offer, ServerState
from hatdfed.server.work import DataSource, HeldOut
from hatdfed.setup.build.program import find_forward_flops, initial_seed, make_program
from hatdfed.setup.build.world import local_work, make_world
from hatdfed.setup.config import Config
from hatdfed.setup.layers import find_removed_choice, validate
from hatdfed.setup.versions import fill_in
from hatdfed.version import __version__

_log = logging.getLogger("hatdfed.deploy.edge")
_WHOLE_MODEL = "model"  # codec and payload of a message with all numbers that are sent, whatever the run's codec
_COPY_SECONDS = 300.0


class EdgeSetup(NamedTuple):
    """Everything that an edge needs for rounds, but the network."""

    program: EdgeProgram
    source: DataSource
    initial_seed: int
    bits_per_sample: int
    test: HeldOut | None  # for after the last round; None for an edge with its own data
    forward_flops: float = 0.0  # of a sample; 0: not counted, as no machine has a profile
    meter: Meter | None = None  # None: energy is not measured here

    @property
    def layout(self) -> str:
        """A digest of all tensors' names, shapes and roles, and of what is frozen: edges that differ cannot merge."""
        learner = self.program.learner
        described: dict[str, Any] = {name: list(shape) for name, (_, shape) in learner.layout.items()}
        others = {name: role for name, role in learner.roles.items() if role != "shared"}
        if others:
            described = {"tensors": described, "roles": others, "frozen": learner.frozen_digest}
        return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def message_share(self) -> float:
        """The size of one message, as a share of a float32 model."""
        return message_share(self.program.codec, self.program.learner.num_params)


MakeSetup = Callable[[Config, int], EdgeSetup]


def make_edge_setup(
    config: Config,
    index: int,
    *,
    data_dir: Path | None = None,
    own_data: str | None = None,
    work_share: float = 1.0,
    metering: Metering | None = None,
) -> EdgeSetup:
    """Set up an edge with the same data as in a simulation: its shard of a public data set, from simulated devices.

    With `own_data` the edge trains on that instead, and the data set only says what samples look like.
    """
    setup = _make_setup(config, index, data_dir, own_data, work_share)
    return setup._replace(meter=find_meter(config, metering))


def find_meter(config: Config, metering: Metering | None) -> Meter | None:
    """The edge's meter, where it was told to measure or the run wants it; its idle power is measured first."""
    if metering is None and config.energy.source != "measured":
        return None
    wanted = metering or Metering()
    if ESTIMATE in wanted.order:
        raise ConfigError("An edge's energy cannot be measured by an estimate. Name another meter.")
    meter = require_meter(choose_meter(wanted.order, wanted.options))
    idle = measure_idle(meter, wanted.idle_seconds)
    _log.info("energy is measured by %s (%s); idle %.3g W", meter.source, ", ".join(meter.domains), idle.gross_watts)
    return meter.with_idle(idle.gross_watts)


def _make_setup(
    config: Config, index: int, data_dir: Path | None, own_data: str | None, work_share: float
) -> EdgeSetup:
    dataset = load_dataset(config.dataset, data_dir=data_dir, options=config.dataset_options)
    program, seed = make_program(config, dataset, secret_noise), initial_seed(config, index)
    # A metric that fails costs no round here: it is logged, and unknown.
    program = replace(program, metrics=replace(program.metrics, on_failure=_log.warning))
    flops = find_forward_flops(config, dataset, program.learner)
    counted = 0.0 if flops is None else flops.operations
    if own_data is not None:
        source = open_own_data(
            own_data,
            form=dataset.format,
            settings=local_work(config),
            seed=config.seed,
            server=index,
            work_share=work_share,
            warn=_log.warning,
        )
        if program.learner.private is not None:
            refuse_uncounted(own_data, source)
        return EdgeSetup(program, source, seed, dataset.bits_per_sample, None, counted)
    here = config if index < config.servers else config.model_copy(update={"servers": index + 1})
    world = make_world(here, dataset)
    return EdgeSetup(
        program=program,
        source=SlowMachine(world.sources[index], work_share) if work_share < 1 else world.sources[index],
        initial_seed=seed,
        bits_per_sample=dataset.bits_per_sample,
        test=world.test.of_servers(index, index + 1),
        forward_flops=counted,
    )


def refuse_uncounted(where: str, source: DataSource) -> None:
    """Refuse a source of work of the user's own for private training: it may train on one image any number of times."""
    inner = source.source if isinstance(source, SlowMachine) else source
    if isinstance(inner, UserSource):
        raise ConfigError(
            f"privacy.clip is set, but {where} chooses its batches itself, so nobody can tell how often one image is "
            "trained on. Use a folder, an .npz file or a function(t)."
        )


def make_limits(config: Config, program: EdgeProgram, index: int) -> Limits:
    """What other edges may send and claim, as far as this edge can know it."""
    return Limits(
        num_params=program.learner.num_params,
        norm=program.learner.largest_norm,
        num_samples=config.samples_per_round,  # the same for all, whatever data they have
        mass=float(max(config.servers, index + 1)),  # all masses sum to the number of servers
        num_labels=program.num_labels,
    )


def read_settings(welcome: pb.Welcome) -> Config:
    """Read the run's settings as the coordinator sent them; it may run another version of hatdfed."""
    try:
        settings = json.loads(welcome.config)
        if not isinstance(settings, dict):
            raise ConfigError("they are no settings.")
        config = validate(fill_in(settings))
        if (removed := find_removed_choice(config)) is not None:
            raise ConfigError(f"{removed}.")
    except (ValueError, RecursionError, ConfigError) as error:
        raise ConfigError(
            f"The settings that the coordinator sent cannot be used here: {error} The coordinator runs hatdfed "
            f"{welcome.version[:40] or '0.1'}, this edge {__version__}: install the same version on both."
        ) from None
    return config


async def load_first_state(
    setup: EdgeSetup, store: EdgeStore, welcome: pb.Welcome, peers: Peers, limits: Limits
) -> SavedState:
    """Get the state to begin with: the edge's own from disk, else a peer's model, else a fresh one."""
    saved = await asyncio.to_thread(store.load, welcome.run)
    if saved is not None:
        _log.info("goes on with its own model, before round %d", saved.round)
        return _note_load(welcome, "own", saved)
    await asyncio.to_thread(set_aside_other_runs, store, welcome.run)
    fresh = await asyncio.to_thread(setup.program.start, setup.initial_seed)
    for peer in welcome.copy_from:
        try:
            data = await peers.copy_model(peer, _COPY_SECONDS)
            model = await asyncio.to_thread(unpack_model, data, welcome.run, limits)
        except (WireError, IdentityError, grpc.aio.AioRpcError) as error:
            _log.warning("the model of %s could not be copied: %s", peer.name, error)
            continue
        _log.info("begins with the model of %s", peer.name)
        params = setup.program.learner.sent.put(fresh.params, model)
        copied = SavedState(welcome.run, welcome.round, fresh._replace(params=params), b"")
        return _note_load(welcome, peer.index, copied, model)
    if welcome.round:
        _log.warning("begins with a fresh model in round %d: no peer gave its own", welcome.round)
    return _note_load(welcome, "fresh", SavedState(welcome.run, welcome.round, fresh, b""))


def _note_load(
    welcome: pb.Welcome, source: str | int, saved: SavedState, model: torch.Tensor | None = None
) -> SavedState:
    """Note what the edge begins with; `model` is what a peer gave, if that is not all of it."""
    if history.is_kept():
        params = saved.server.params
        finite, digest = bool(params.isfinite().all()), history.digest_numbers(params if model is None else model)
        history.note("load", welcome.index, round=saved.round, source=source, model=digest, finite=finite)
    return saved


def pack_model(server: ServerState, mailbox: RoundMailbox) -> list[Buffer]:
    """Pack the current model, as far as it is ever sent, whatever the codec of the run."""
    model = mailbox.program.learner.sent.take(server.params)
    if history.is_kept():
        history.note("give", mailbox.index, model=history.digest_numbers(model))
    context = MessageContext(mailbox.run, _WHOLE_MODEL)
    return pack_offer_parts(Offer({_WHOLE_MODEL: model}, 0, 1.0), context, t=0, sender=mailbox.index)


def unpack_model(data: Buffer, run: str, limits: Limits) -> torch.Tensor:  # -> [P]
    """Unpack a peer's model, with the same checks as any other message."""
    message = unpack(data, max_bytes=4 * limits.num_params + compute_overhead())
    model = message.payload.get(_WHOLE_MODEL)
    if (message.run, message.codec) != (run, _WHOLE_MODEL) or model is None:
        raise WireError("foreign", "A peer sent something else than its model.")
    if model.shape != (limits.num_params,) or str(model.dtype) != "float32":
        raise WireError("wrong-shape", f"A peer's model has {model.size} numbers of {model.dtype}.")
    tensor = torch.from_numpy(model)
    check_norm(tensor, limits.norm)
    return tensor
