"""What others send over a network: models, frames, calls of edges, requests to join and answers to them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from unittest import mock

import grpc
import numpy as np
import torch
from tests.fuzz.damage import change_json, change_message, damage, draw_json, draw_noise, draw_text
from tests.fuzz.harness import MIB, DefectError, Target, memory_folder

from hatdfed.core.coordinator import Coordinator
from hatdfed.deploy.coordinator.edge_hub import EdgeHub
from hatdfed.deploy.coordinator.journal import Journal
from hatdfed.deploy.coordinator.remote_fleet import RemoteFleet
from hatdfed.deploy.coordinator.services import PROTOCOL, AccessControl, CoordinationService
from hatdfed.deploy.coordinator.settings import DeploySettings
from hatdfed.deploy.coordinator.status import DeploymentProgress, make_status
from hatdfed.deploy.identity import join as joining
from hatdfed.deploy.identity.certificates import (
    certificate_from_pem,
    compute_pin,
    make_csr,
    make_key,
    public_key_from_csr,
)
from hatdfed.deploy.identity.files import IdentityFolder
from hatdfed.deploy.identity.identity_store import IdentityStore, create_identity_store
from hatdfed.deploy.identity.join_server import JoinServer
from hatdfed.deploy.identity.names import edge_id
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.deploy.transport.endpoints import Endpoints
from hatdfed.deploy.transport.frames import IncomingMessage, LeastRate, collect_chunks, read_header
from hatdfed.errors import WireError
from hatdfed.runs.round_row import round_row
from hatdfed.server.codecs import CODECS, codec_for
from hatdfed.server.message import MAGIC, Message, compute_overhead, pack, unpack
from hatdfed.setup.build.coordinator import make_coordinator, make_prices
from hatdfed.setup.config import Config
from hatdfed.setup.layers import resolve, validate
from hatdfed.setup.plain_yaml import parse_assignment

NUM_PARAMS = 2100  # a large tensor, of which codecs send levels, and a small one
_SIZES = [2000, 100]
_FRAME_LIMIT = 4 * NUM_PARAMS + compute_overhead()
_SERVERS = 3


def wait_for(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine on the one event loop of all cases: a loop for each would take most of the time."""
    return _event_loop().run_until_complete(work)


@cache
def _event_loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


# Models.


def _pack_model(codec: str) -> bytes:
    coder = codec_for(codec, _SIZES)
    model = torch.linspace(-1, 1, NUM_PARAMS)
    payload, _ = coder.encode(model, coder.init(NUM_PARAMS))
    return pack(Message("run", 3, 1, 42, 1.0, codec, {name: part.numpy() for name, part in payload.items()}))


_MODELS = {codec: _pack_model(codec) for codec in sorted(CODECS.built_in)}


def _seal(body: bytes) -> bytes:
    return MAGIC + hashlib.sha256(body).digest() + body


def _split(message: bytes) -> tuple[dict[str, Any], bytes]:
    """The header of a message and the bytes of its tensors."""
    body = message[len(_seal(b"")) :]
    end = 8 + int.from_bytes(body[:8], "little")
    return json.loads(body[8:end]), body[end:]


def forge_model(rng: Random) -> bytes | bytearray:
    """A message whose digest is right, with a damaged body or a header that claims something else; or plain damage."""
    message = _MODELS[rng.choice(sorted(_MODELS))]
    how = rng.choice(("damaged", "sealed", "header", "header", "values"))
    if how == "damaged":
        data = damage(rng, message)
    elif how == "sealed":
        data = _seal(damage(rng, message[len(_seal(b"")) :]))
    else:
        header, tensors = _split(message)
        if how == "header":
            header = change_json(rng, header)
        else:
            tensors = damage(rng, tensors)[: len(tensors)].ljust(len(tensors), b"\xff")
        text = json.dumps(header).encode("utf-8", "surrogatepass")
        data = _seal(len(text).to_bytes(8, "little") + text + tensors)
    return bytearray(data) if rng.random() < 0.5 else data


def _read_model(data: bytes | bytearray, _: Path) -> None:
    message = unpack(data, max_bytes=_FRAME_LIMIT)
    if message.codec not in _MODELS:
        raise WireError("foreign", "A message belongs to another codec.")
    payload = {name: torch.from_numpy(array) for name, array in message.payload.items()}
    model = codec_for(message.codec, _SIZES).decode(payload, NUM_PARAMS)
    if model.shape != (NUM_PARAMS,) or not bool(torch.isfinite(model).all()):
        raise DefectError("a model that is no model was accepted")


# Frames.

_SENT = bytes(range(100))
_CHUNKS = (b"", _SENT[:50], _SENT[50:], _SENT, bytes(2**20 + 1))


def _make_parcel(rng: Random) -> pb.Frame:
    """The header of a transfer: as version 0.1 sends it, or with digests of parts of any size."""
    parcel = pb.Parcel(run="run", size=len(_SENT))
    if rng.random() < 0.7:
        parcel.part_bytes = rng.choice((1, 30, 100, 2**20))
        parts = [_SENT[start : start + parcel.part_bytes] for start in range(0, len(_SENT), parcel.part_bytes)]
        parcel.part_digests = b"".join(hashlib.sha256(part).digest() for part in parts)
        parcel.digest = hashlib.sha256(parcel.part_digests).digest()
    return change_message(rng, pb.Frame(parcel=parcel))


def _make_transfer(rng: Random) -> tuple[pb.Frame, list[bytes]]:
    if rng.random() < 0.3:
        return _make_parcel(rng), [_SENT[:50], damage(rng, _SENT[50:], most_edits=1)]
    chunks = [rng.choice(_CHUNKS) if rng.random() < 0.5 else draw_noise(rng, 60) for _ in range(rng.randint(0, 5))]
    return _make_parcel(rng), chunks


def _read_transfer(case: tuple[pb.Frame, list[bytes]], _: Path) -> None:
    first, chunks = case

    async def stream() -> AsyncIterator[pb.Frame]:
        yield first
        for chunk in chunks:
            yield pb.Frame(chunk=chunk)

    async def receive() -> IncomingMessage:
        frames = stream()
        incoming = IncomingMessage(await read_header(frames, 5.0), _FRAME_LIMIT)
        await collect_chunks(frames, incoming, LeastRate(0.0, 5.0), idle_seconds=5.0)
        return incoming

    incoming = wait_for(receive())
    if len(incoming.data) > sum(map(len, chunks)) or (incoming.digest and bytes(incoming.data) != _SENT):
        raise DefectError("a transfer brought other bytes than were sent")


# Calls of edges to the coordinator.


class RefusedCallError(WireError):
    """How a call that is refused ends, where gRPC would end it."""


class CallContext:
    """The context of a call by an edge, in plain text."""

    def __init__(self, name: str) -> None:
        self._name = name

    def invocation_metadata(self) -> list[tuple[str, str]]:
        """What the caller says about itself."""
        return [("user-agent", f"hatdfed-node/edge/{self._name} grpc-python")]

    def peer(self) -> str:
        """Where the caller is."""
        return "ipv4:127.0.0.1:1"

    async def send_initial_metadata(self, _: object) -> None:
        """Nothing: nobody listens."""

    async def abort(self, code: grpc.StatusCode, sentence: str) -> None:
        """End the call."""
        raise RefusedCallError(code.name.lower(), sentence)


class _Deployment(NamedTuple):
    """A coordinator in the middle of a round, without a network."""

    journal: Journal
    coordinator: Coordinator
    config: Config


@cache
def _deployment() -> _Deployment:
    config = resolve({"servers": _SERVERS, "rounds": 4, "dataset": "synthetic", "network": "linear"})
    prices = make_prices(config, bits_per_sample=512, num_params=NUM_PARAMS)
    journal = Journal(Path(tempfile.mkdtemp(dir=memory_folder())) / "journal.sqlite")
    journal._db.execute("PRAGMA synchronous=OFF")  # nothing here must survive a crash
    for index in range(_SERVERS):
        journal.add_member(index, f"edge-{index}")
    return _Deployment(journal, make_coordinator(config, prices), config)


_CALLS = [
    pb.Hello(protocol=PROTOCOL, version="0.2", address="10.0.0.1:7000", run="run", process="p"),
    pb.Prepared(epoch=1, num_params=NUM_PARAMS, bits_per_sample=512, layout="ab", message_share=1.0, accuracy=0.1),
    pb.Outcome(
        epoch=1,
        accuracy=0.5,
        num_samples=30,
        devices_online=3,
        slots=[pb.Slot(server=0, importance=0.5, scores={"loss": 0.3}), pb.Slot(server=1, importance=0.5)],
        sent=[pb.Sent(receiver=1, share=1.0, delivered=True), pb.Sent(receiver=2, share=1.0)],
        refused={"damaged": 1},
    ),
    pb.Reachable(epoch=1, yes=[1], no=[2], lost=[1]),
    pb.FinalFigures(epoch=1, has_test=True, accuracy=0.9, personal_accuracy=0.8, validation_accuracy=0.7),
    pb.Pulse(epoch=1, doing="trains"),
    pb.Goodbye(why="stopped"),
    pb.SigningRequest(csr=make_csr(make_key())),
]
_METHODS = {
    pb.Hello: "Join", pb.Prepared: "Ready", pb.Outcome: "Report", pb.Reachable: "Reached", pb.FinalFigures: "Final",
    pb.Pulse: "Beat", pb.Goodbye: "Leave", pb.SigningRequest: "Renew",
}  # fmt: skip


def _make_calls(rng: Random) -> list[Any]:
    return [change_message(rng, rng.choice(_CALLS)) for _ in range(rng.randint(1, 3))]


def _call_coordinator(calls: list[Any], _: Path) -> None:
    """Make the calls of an edge in the middle of a round, then close it, learn from it and finish the run."""
    journal, coordinator, config = _deployment()
    journal._db.execute("DELETE FROM facts")
    hub = EdgeHub(journal, DeploySettings(), _SERVERS, epoch=1, next_round=0)
    service: Any = CoordinationService(hub, AccessControl(Endpoints(None)), "run", config, identity_store())
    start = coordinator.start(np.zeros(_SERVERS))
    plan = coordinator.plan(start)
    hub.open_round.open(plan, set(range(_SERVERS)), coordinator.prices)
    refusals = []
    for call in calls:
        try:
            wait_for(getattr(service, _METHODS[type(call)])(call, CallContext("edge-0")))
        except RefusedCallError as error:
            refusals.append(error)
    _check_status(hub)
    _check_round(coordinator, start, plan, hub)
    _check_final(hub)
    if len(refusals) == len(calls) > 0:
        raise refusals[0]


def _check_status(hub: EdgeHub) -> None:
    text = json.dumps(make_status(hub, DeploymentProgress("run", 4)), allow_nan=False)
    if len(text) > 64 * 1024:
        raise DefectError(f"the status of {_SERVERS} edges has {len(text)} letters")


def _check_round(coordinator: Coordinator, start: Any, plan: Any, hub: EdgeHub) -> None:
    state, record = coordinator.learn(start, plan, hub.open_round.close())
    json.dumps(round_row(record, 1.0), allow_nan=False)
    if not np.isfinite(state.accuracy).all() or not all(0 <= row.joules < 1e15 for row in record.report.energy):
        raise DefectError("a report was learned from that gives no numbers")


def _check_final(hub: EdgeHub) -> None:
    if not hub.final:
        return
    manifest: Any = mock.Mock(num_params=NUM_PARAMS)
    waiting: Callable[[Any], None] = lambda work: work.close()  # noqa: E731
    figures = RemoteFleet(hub, manifest, mock.Mock(), waiting, final_seconds=0.0).final_accuracy()  # type: ignore[arg-type]
    for values in (figures.overall, figures.personal):
        if not ((values >= 0) & (values <= 1)).all():
            raise DefectError(f"final accuracies of {values}")


# Joining.


@cache
def identity_store() -> IdentityStore:
    return create_identity_store(Path(tempfile.mkdtemp(dir=memory_folder())) / "ca")


@cache
def _pem_samples() -> list[bytes]:
    store = identity_store()
    own = store.authority.sign(make_csr(edge_key()), edge_id("edge-1"), store.lifetime)
    return [store.authority.pem, store.identity.read().cert_pem, make_csr(edge_key()), own]


_PROOF = {"proof": "MEUCIQ=="}


@cache
def _join_requests() -> list[dict[str, Any]]:
    return [
        {"ask": "authority"},
        {"ask": "enroll", "token": "hatdfed_x", "csr": make_csr(make_key()).decode()},
        {"ask": "renew", "cert": _pem_samples()[-1].decode(), "csr": make_csr(edge_key()).decode()},
        {"ask": "explain", "cert": identity_store().identity.read().cert_pem.decode()},
        {"ask": "refuse", "word": "wrong-pin"},
    ]


def _make_join_request(rng: Random) -> bytes:
    """The lines of a caller: a request, and a proof, for which the server asks if it is to renew a certificate."""
    request, proof = (json.dumps(change_json(rng, line)).encode() + b"\n" for line in (_draw_request(rng), _PROOF))
    return (request if rng.random() < 0.5 else damage(rng, request)) + proof


def _draw_request(rng: Random) -> dict[str, Any]:
    return rng.choice(_join_requests())


def _answer_join(line: bytes, _: Path) -> None:
    server = JoinServer(identity_store(), host="127.0.0.1", port=0)
    answer = wait_for(_ask_server(server, line))
    json.dumps(answer, allow_nan=False)
    if "error" in answer:
        raise WireError(answer["word"], answer["error"])


async def _ask_server(server: JoinServer, line: bytes) -> dict[str, Any]:
    reader = asyncio.StreamReader(limit=joining.MAX_LINE_BYTES)
    reader.feed_data(line)
    reader.feed_eof()
    return await server._answer(reader, mock.Mock(drain=mock.AsyncMock()), "a caller")


def _make_join_answers(rng: Random) -> list[Any]:
    """What a join server may answer to the two requests of an edge; the first often with the right authority."""
    pem = identity_store().authority.pem.decode()
    first = {"ca": pem} if rng.random() < 0.7 else change_json(rng, {"ca": pem})
    cert = _make_pem(rng).decode("utf-8", "replace") if rng.random() < 0.7 else draw_json(rng)
    second = {"node": "edge-1", "cert": cert, "ca": pem}
    refused = {"error": draw_json(rng), "word": draw_json(rng)}
    return [json.dumps(first), json.dumps(rng.choice((second, second, refused, draw_json(rng)))), "{}"]


def _join(answers: list[str], folder: Path) -> None:
    left = list(answers)

    async def ask(*_: Any) -> dict[str, Any]:
        reader = asyncio.StreamReader(limit=joining.MAX_LINE_BYTES)
        reader.feed_data(left.pop(0).encode() + b"\n")
        return await joining.receive_line(reader)

    shutil.rmtree(folder / "new", ignore_errors=True)
    pin = compute_pin(certificate_from_pem(identity_store().authority.pem, "The authority"))
    with mock.patch.object(joining, "_ask", ask), mock.patch.object(joining, "make_key", edge_key):
        wait_for(joining.join("host", 1, "token", pin, IdentityFolder(folder / "new")))


@cache
def edge_key() -> Any:
    return make_key()


def _make_pem(rng: Random) -> bytes:
    return damage(rng, rng.choice(_pem_samples()), most_edits=2)


def _read_pem(data: bytes, folder: Path) -> None:
    store = identity_store()
    public_key_from_csr(data) if b"REQUEST" in data else certificate_from_pem(data, "What was sent")
    if (refused := store.check_certificate(data)) is not None:
        raise refused


# Settings that come over the network or from the command line.


@cache
def _complete_settings() -> dict[str, Any]:
    return resolve({}).model_dump(mode="json")


def _read_settings(settings: dict[str, Any], _: Path) -> None:
    config = validate(settings)
    if not math.isfinite(config.link_share):
        raise DefectError("a setting that is no number")


_ASSIGNMENTS = ("policy={name: ring, a: [1, 2]}", "seed=0x10", "dataset_options={train: 1e3}", "energy.model_bits=1e6")


def _make_assignment(rng: Random) -> str:
    if rng.random() < 0.3:
        return f"{rng.choice(('seed', 'policy', 'a.b.c', draw_text(rng)))}={draw_text(rng)}"
    return damage(rng, rng.choice(_ASSIGNMENTS).encode()).decode("utf-8", "replace")


def _assign(text: str, _: Path) -> None:
    resolve(parse_assignment(text))


MESSAGES = [
    Target("model", "message", forge_model, _read_model, lambda data: 8 * len(data) + MIB),
    Target("transfer", "message", _make_transfer, _read_transfer, lambda _: _FRAME_LIMIT + 4 * MIB),
    Target("call", "message", _make_calls, _call_coordinator, lambda _: 4 * MIB),
    Target("join-request", "message", _make_join_request, _answer_join, lambda line: 8 * len(line) + MIB),
    Target("join-answer", "message", _make_join_answers, _join, lambda _: 2 * MIB),
    Target("certificate", "message", _make_pem, _read_pem, lambda _: 2 * MIB),
    Target(
        "settings", "message", lambda rng: change_json(rng, _complete_settings()), _read_settings, lambda _: 4 * MIB
    ),
    Target("assignment", "message", _make_assignment, _assign, lambda _: 4 * MIB),
]
