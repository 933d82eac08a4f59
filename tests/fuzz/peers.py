"""What edges send to each other and to a relay: models that are pushed, questions about them, lines of control."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from unittest import mock

import torch
from tests.fuzz.damage import change_json, change_message, damage, draw_noise
from tests.fuzz.harness import MIB, DefectError, Target
from tests.fuzz.messages import CallContext, RefusedCallError, forge_model, wait_for

from hatdfed.data.datasets import load_dataset
from hatdfed.deploy.edge.peer_service import PeerService
from hatdfed.deploy.edge.round_mailbox import RoundMailbox
from hatdfed.deploy.edge.transfers import Incoming
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.deploy.relay.relay import Relay
from hatdfed.deploy.relay.wire import PROTOCOL, receive_line
from hatdfed.deploy.transport.callers import CallerCheck
from hatdfed.deploy.transport.endpoints import Endpoints
from hatdfed.deploy.transport.frames import describe_message, split_into_frames
from hatdfed.errors import HatdfedError, IdentityError, WireError
from hatdfed.server.exchange import Limits, MessageContext, pack_offer_parts
from hatdfed.server.program import EdgeProgram, Offer, ServerState
from hatdfed.setup.build.program import make_program
from hatdfed.setup.config import Config
from hatdfed.setup.layers import resolve

_ROUND, _RECEIVER, _SENDER = 3, 0, 1


class _Edge(NamedTuple):
    """What an edge has all the time."""

    config: Config
    program: EdgeProgram
    server: ServerState
    sent: bytes  # a message that it would accept


@cache
def _edge() -> _Edge:
    options = {"train": 60, "validation": 30, "test": 30}
    config = resolve(
        {"servers": 3, "rounds": 9, "dataset": "synthetic", "dataset_options": options, "network": "linear"}
    )
    program = make_program(config, load_dataset(config.dataset, options=config.dataset_options))
    server = program.start(_SENDER)
    payload, _ = program.codec.encode(server.params, server.codec_memory)
    context = MessageContext("run", config.codec)
    parts = pack_offer_parts(Offer(payload, 30, 1.0), context, t=_ROUND, sender=_SENDER)
    return _Edge(config, program, server, b"".join(map(bytes, parts)))


class _Push(NamedTuple):
    """The frames of one push."""

    frames: list[pb.Frame]


def _make_push(rng: Random) -> _Push:
    """A model that is right or forged, in frames of which some are changed, lost or doubled."""
    data = _edge().sent if rng.random() < 0.5 else bytes(forge_model(rng))
    if rng.random() < 0.3:
        data = damage(rng, data)
    packed = describe_message([data])
    frames = list(split_into_frames(packed.make_header("run", _ROUND, _SENDER), packed.parts))
    if rng.random() < 0.5:
        frames[0] = change_message(rng, frames[0])
    for _ in range(rng.randint(0, 2)):
        frames.insert(rng.randint(0, len(frames)), rng.choice([*frames, pb.Frame(chunk=draw_noise(rng))]))
    if len(frames) > 1 and rng.random() < 0.2:
        del frames[rng.randrange(len(frames))]
    return _Push(frames)


_QUESTIONS = [
    pb.Wanted(run="run", round=_ROUND, confirms=True),
    pb.Wanted(run="run", round=_ROUND, digest=bytes(32), offset=10, confirms=True),
    pb.Wanted(run="run", round=-1),
    pb.Parcel(run="run", round=_ROUND, sender=_SENDER, size=100, digest=bytes(32)),
]


def _make_calls(rng: Random) -> list[Any]:
    return [
        _make_push(rng) if rng.random() < 0.7 else change_message(rng, rng.choice(_QUESTIONS))
        for _ in range(rng.randint(1, 3))
    ]


class _Context(CallContext):
    """A call that also reads what it is sent."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.read = 0

    async def write(self, frame: pb.Frame) -> None:
        """Count what is sent."""
        self.read += len(frame.chunk)


async def _stream(frames: list[pb.Frame]) -> AsyncIterator[pb.Frame]:
    for frame in frames:
        yield frame


async def _make_mailbox() -> RoundMailbox:
    """An edge that has trained, in the middle of a round with one sender, which is also its receiver."""
    edge = _edge()
    limits = Limits(edge.program.learner.num_params, 1e6)
    mailbox = RoundMailbox("run", edge.config.codec, _RECEIVER, edge.program, limits, Incoming(0.2))
    other = pb.Neighbour(index=_SENDER, name="edge-1")
    await mailbox.begin(pb.RoundOrder(round=_ROUND, seconds=0.5, senders=[other], receivers=[other]))
    payload, _ = edge.program.codec.encode(edge.server.params, edge.server.codec_memory)
    await mailbox.offer(Offer(payload, 30, 1.0))
    return mailbox


async def _call_edge(calls: list[Any]) -> list[HatdfedError]:
    mailbox = await _make_mailbox()
    refusals: list[HatdfedError] = []
    service = PeerService(CallerCheck(Endpoints(None)), mailbox, 0.2, lambda: [_edge().sent])
    for call in calls:
        try:
            if isinstance(call, _Push):
                answer = await service.Push(_stream(call.frames), _Context("edge-1"))
                if not answer.accepted:
                    refusals.append(WireError(answer.reason, "It was refused."))
            elif isinstance(call, pb.Wanted):
                await service.Pull(call, _Context("edge-1"))
            else:
                await service.HowFar(call, _Context("edge-1"))
        except RefusedCallError as error:
            refusals.append(error)
    for received in mailbox.received.values():
        if not bool(torch.isfinite(received.model).all()):
            raise DefectError("a model that is not finite was kept")
    if (sent := mailbox.sent.get(_SENDER)) is not None and not 0 <= sent.sent.share < 10:
        raise DefectError(f"{sent.sent.share} models were sent")
    await mailbox.close()
    return refusals


def _call(calls: list[Any], _: Path) -> None:
    refusals = wait_for(_call_edge(calls))
    if len(refusals) == len(calls):
        raise refusals[0]


# Lines to a relay.

_LINES = [
    {"protocol": PROTOCOL, "name": "edge-1"},
    {"beat": True},
    {"ask": "call", "to": "edge-2", "id": 7},
    {"ask": "call", "to": "nobody", "id": 8},
]


def _make_lines(rng: Random) -> bytes:
    """What an edge says over its control connection: mostly the right first line, then anything."""
    lines = [_LINES[0] if rng.random() < 0.7 else change_json(rng, _LINES[0])]
    lines += [change_json(rng, rng.choice(_LINES)) for _ in range(rng.randint(0, 4))]
    text = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    return text if rng.random() < 0.5 else damage(rng, text)


def _make_writer() -> Any:
    """A connection on which all can be sent at once."""
    transport = mock.Mock(**{"get_write_buffer_size.return_value": 0, "is_closing.return_value": False})
    return mock.Mock(drain=mock.AsyncMock(), transport=transport)


async def _talk_to_relay(text: bytes) -> None:
    relay = Relay(None)
    relay._limit = mock.Mock()
    other = asyncio.StreamReader()
    waiting = asyncio.ensure_future(relay._serve_edge((other, _make_writer())))
    other.feed_data(json.dumps({"protocol": PROTOCOL, "name": "edge-2"}).encode() + b"\n")
    await asyncio.sleep(0)
    reader = asyncio.StreamReader(limit=64 * 1024)
    reader.feed_data(text)
    reader.feed_eof()
    try:
        await relay._serve_edge((reader, _make_writer()))
    finally:
        other.feed_eof()
        await waiting
        if relay._waiting or len(relay._sessions) > text.count(b"\n"):
            raise DefectError("a relay keeps what nobody needs")


def _say(text: bytes, _: Path) -> None:
    try:
        wait_for(_talk_to_relay(text))
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        raise IdentityError("bad-line", "A line is too long.") from None


async def _read_lines(text: bytes) -> None:
    reader = asyncio.StreamReader(limit=1024)
    reader.feed_data(text)
    reader.feed_eof()
    while await receive_line(reader) is not None:
        pass


def _listen(text: bytes, _: Path) -> None:
    wait_for(_read_lines(text))


PEERS = [
    Target("peer-call", "message", _make_calls, _call, lambda _: 8 * MIB),
    Target("relay-line", "message", _make_lines, _say, lambda text: 8 * len(text) + 2 * MIB),
    Target("relay-answer", "message", _make_lines, _listen, lambda text: 8 * len(text) + MIB),
]
