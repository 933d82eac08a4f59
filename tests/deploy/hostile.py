"""A member with a good certificate and bad intentions, and the bytes that it sends."""

import asyncio
import contextlib
import hashlib
import io
import json
import marshal
import os
import pickle  # noqa: TID251 (only an attacker uses it)

import grpc
import numpy as np
import torch
from safetensors.numpy import save

from hatdfed.deploy.coordinator.services import PROTOCOL
from hatdfed.deploy.edge.setup import make_edge_setup
from hatdfed.deploy.identity.names import COORDINATOR, EDGE_ROLE, NodeId
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.deploy.protocol.hatdfed_pb2_grpc import CoordinationStub, PeerStub
from hatdfed.server.message import MAGIC


class Trap:
    """Whoever unpickles this makes a folder."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


def sealed(body):
    """With the envelope of a good message, so that only its content is bad."""
    return MAGIC + hashlib.sha256(body).digest() + body


def bad_bytes(trap):
    """What should never be accepted, by name."""
    pickled, torch_file, npy = pickle.dumps(Trap(trap)), io.BytesIO(), io.BytesIO()
    torch.save({"params": torch.zeros(3), "trap": Trap(trap)}, torch_file)
    np.save(npy, np.array([Trap(trap)], dtype=object), allow_pickle=True)
    header = json.dumps({"__metadata__": {"run": "x"}}).encode()
    return {
        "pickle": pickled,
        "sealed pickle": sealed(pickled),
        "sealed torch.save": sealed(torch_file.getvalue()),
        "sealed object array": sealed(npy.getvalue()),
        "sealed marshal": sealed(marshal.dumps(compile("1", "x", "eval"))),
        "sealed header without tensors": sealed(len(header).to_bytes(8, "little") + header),
        "sealed endless header": sealed((2**63 - 1).to_bytes(8, "little") + b"{"),
        "sealed pickle as a tensor": sealed(save({"params": np.frombuffer(pickled, dtype=np.uint8)})),
        "broken digest": MAGIC + bytes(32) + pickled,
        "one byte": b"\x80",
    }


class HostileMember:
    """Joins and gets ready like everybody else; then `attack(self, order)` is played in every round."""

    def __init__(self, deployment, name, attack, *, prepare=None, final=None):
        """`prepare` and `final` are fields in which what it says of its model and its results are false."""
        self.endpoints = deployment.endpoints(name)
        self.prepare, self.final = prepare or {}, final or {"validation_accuracy": 0.5}
        self.config, self.address = deployment.config, f"127.0.0.1:{deployment.port}"
        self.attack = attack
        self.answers = []

    async def serve(self):
        async with self.endpoints.open_channel(self.address, COORDINATOR) as channel:
            self.stub = CoordinationStub(channel)
            self.welcome = await self.stub.Join(pb.Hello(protocol=PROTOCOL, version="0"))
            call = self.stub.Watch(pb.Watching(epoch=self.welcome.epoch))
            await call.initial_metadata()
            await self.stub.Ready(self.prepared())
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
                async for order in call:
                    match order.WhichOneof("what"):
                        case "round":
                            await self.attack(self, order.round)
                        case "probe":
                            answer = pb.Reachable(epoch=self.welcome.epoch, yes=[p.index for p in order.probe.peers])
                            await self.stub.Reached(answer)
                        case "finish":
                            with contextlib.suppress(grpc.aio.AioRpcError):
                                await self.stub.Final(pb.FinalFigures(epoch=self.welcome.epoch, **self.final))
                        case "stop" | "leave":
                            return

    def prepared(self):
        setup = make_edge_setup(self.config, self.welcome.index)
        self.num_params = setup.program.learner.num_params
        true = {
            "num_params": self.num_params,
            "bits_per_sample": setup.bits_per_sample,
            "layout": setup.layout,
            "message_share": setup.message_share,
            "accuracy": 0.5,
        }
        return pb.Prepared(epoch=self.welcome.epoch, **{**true, **self.prepare})

    def outcome(self, t):
        """A report that is in order."""
        own = pb.Slot(server=self.welcome.index, importance=1.0)
        return pb.Outcome(epoch=self.welcome.epoch, round=t, accuracy=0.5, num_samples=1, slots=[own])

    async def push(self, receiver, t, data, *, size=None):
        """Bytes of our own as the model of a round; what the receiver says to it."""
        parcel = pb.Parcel(run=self.welcome.run, round=t, sender=self.welcome.index, size=size or len(data))
        async with self.endpoints.open_channel(receiver.address, NodeId(EDGE_ROLE, receiver.name)) as channel:
            return await PeerStub(channel).Push([pb.Frame(parcel=parcel), pb.Frame(chunk=data)], timeout=10)
