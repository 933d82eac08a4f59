"""How long a model takes from one edge to another, against a bare TLS socket with the same bytes.

python benchmarks/wire.py [--repeats 41]     prints a table, writes results/wire-cpu.json

Two processes on loopback, mutual TLS. Ours is what a deployment does: encode, digest, stream, collect, check digest,
header, shape and finiteness, decode to a tensor, acknowledge. The bare copy is Python's `ssl` with SHA-256 at both
ends. They take turns, so that both meet the same machine.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import math
import multiprocessing
import socket
import ssl
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from deployment import identity

from hatdfed.deploy.edge.peer_service import PeerService
from hatdfed.deploy.edge.peers import Peers
from hatdfed.deploy.edge.round_mailbox import RoundMailbox
from hatdfed.deploy.edge.transfers import Incoming
from hatdfed.deploy.identity.files import IdentityFolder
from hatdfed.deploy.identity.identity_store import create_identity_store
from hatdfed.deploy.identity.names import edge_id
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.deploy.protocol.hatdfed_pb2_grpc import add_PeerServicer_to_server
from hatdfed.deploy.transport.callers import CallerCheck
from hatdfed.deploy.transport.endpoints import Endpoints
from hatdfed.runs.records.folder import environment
from hatdfed.server.exchange import Limits
from hatdfed.server.program import EdgeProgram, Offer, ServerState
from hatdfed.setup.build.program import make_program
from hatdfed_bench.workload import W_CIFAR

SENDER, RECEIVER = "edge-0", "edge-1"
WARM_UP = 3
IDLE_SECONDS = 30.0


def make_mailbox(index: int) -> tuple[EdgeProgram, ServerState, RoundMailbox]:
    """An edge with the CIFAR-10 network."""
    config = W_CIFAR.config(2, rounds=1)
    program = make_program(config, W_CIFAR.dataset())
    limits = Limits(program.learner.num_params, math.inf)
    mailbox = RoundMailbox("bench", config.codec, index, program, limits, Incoming(IDLE_SECONDS))
    return program, program.start(index), mailbox


def order(t: int, address: str = "") -> pb.RoundOrder:
    """Edge 0 sends to edge 1, and dials it."""
    if not address:
        return pb.RoundOrder(round=t, seconds=60.0, senders=[pb.Neighbour(index=0, name=SENDER)])
    receiver = pb.Neighbour(index=1, name=RECEIVER, address=address, dial=True)
    return pb.RoundOrder(round=t, seconds=60.0, receivers=[receiver])


def receive(folder: IdentityFolder, pipe: Connection, rounds: int) -> None:
    """The other process: first as an edge, on another port as a bare socket."""
    torch.set_num_threads(1)
    asyncio.run(receive_both(folder, pipe, rounds))


async def receive_both(folder: IdentityFolder, pipe: Connection, rounds: int) -> None:
    """Serve models, and bare copies beside them."""
    endpoints = Endpoints(folder, edge_id(RECEIVER))
    _, _, mailbox = make_mailbox(1)
    grpc_server = endpoints.make_server()
    add_PeerServicer_to_server(PeerService(CallerCheck(endpoints), mailbox, IDLE_SECONDS, list), grpc_server)
    port = endpoints.listen(grpc_server, "127.0.0.1:0")
    await grpc_server.start()
    listener = socket.create_server(("127.0.0.1", 0))
    bare = asyncio.create_task(asyncio.to_thread(receive_bare, listener, tls(folder, ssl.PROTOCOL_TLS_SERVER)))
    pipe.send((port, listener.getsockname()[1]))
    for t in range(rounds):
        await mailbox.begin(order(t))
        await mailbox.offer(Offer({}, 0, 1.0))
        await mailbox.wait_until_complete(time.monotonic() + 60)
        await mailbox.close()
    await bare
    await grpc_server.stop(grace=1.0)


def tls(folder: IdentityFolder, side: int) -> ssl.SSLContext:
    """Certificates at both ends, as everywhere."""
    context = ssl.SSLContext(side)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(folder.cert_file, folder.key_file)
    context.load_verify_locations(folder.ca_file)
    return context


def receive_bare(listener: socket.socket, context: ssl.SSLContext) -> None:
    """Size, digest and bytes; one byte back if they agree."""
    with context.wrap_socket(listener.accept()[0], server_side=True) as line:
        while head := line.recv(40):
            data = memoryview(bytearray(int.from_bytes(head[:8], "big")))
            filled = 0
            while filled < len(data):
                filled += line.recv_into(data[filled:])
            line.sendall(b"\1" if hashlib.sha256(data).digest() == head[8:] else b"\0")


def send_bare(line: ssl.SSLSocket, data: bytes) -> float:
    """Seconds of a bare copy."""
    start = time.perf_counter()
    line.sendall(len(data).to_bytes(8, "big") + hashlib.sha256(data).digest())
    line.sendall(data)
    if line.recv(1) != b"\1":
        raise SystemExit("The bare copy was damaged.")
    return time.perf_counter() - start


async def send_both(
    folder: IdentityFolder, ports: tuple[int, int], rounds: int
) -> tuple[list[float], list[float], int]:
    """Seconds of models and of bare copies, in turns."""
    program, server, mailbox = make_mailbox(0)
    peers = Peers(Endpoints(folder, edge_id(SENDER)), mailbox, IDLE_SECONDS)
    data = server.params.numpy().tobytes()
    ours, bare = [], []
    with tls(folder, ssl.PROTOCOL_TLS_CLIENT).wrap_socket(socket.create_connection(("127.0.0.1", ports[1]))) as line:
        for t in range(rounds):
            told = order(t, f"127.0.0.1:{ports[0]}")
            await mailbox.begin(told)
            start = time.perf_counter()
            payload, _ = program.codec.encode(server.params, server.codec_memory)
            await mailbox.offer(Offer(payload, 60, 1.0))
            await peers.push(told.receivers[0], t, time.monotonic() + 60)
            ours.append(time.perf_counter() - start)
            if mailbox.failed_sends:
                raise SystemExit("A model did not arrive.")
            await mailbox.close()
            bare.append(send_bare(line, data))
    await peers.close()
    return ours[WARM_UP:], bare[WARM_UP:], len(data)


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=41)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results") / "wire-cpu.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rounds = arguments.repeats + WARM_UP
    with tempfile.TemporaryDirectory() as folder:
        identity_store = create_identity_store(Path(folder) / "ca")
        known = {name: identity(identity_store, Path(folder) / name) for name in (SENDER, RECEIVER)}
        spawn = multiprocessing.get_context("spawn")  # gRPC must not be forked
        here, there = spawn.Pipe()
        process = spawn.Process(target=receive, args=(known[RECEIVER], there, rounds))
        process.start()
        ours, bare, size = asyncio.run(send_both(known[SENDER], here.recv(), rounds))
        process.join()
    row = {
        "model_bytes": size,
        "repeats": arguments.repeats,
        "edge_ms": round(1e3 * statistics.median(ours), 1),
        "bare_ms": round(1e3 * statistics.median(bare), 1),
        "edge_fastest_ms": round(1e3 * min(ours), 1),
        "bare_fastest_ms": round(1e3 * min(bare), 1),
        "ratio": round(statistics.median(a / b for a, b in zip(ours, bare, strict=True)), 2),
    }
    print("  ".join(f"{name} {value}" for name, value in row.items()))
    arguments.out.write_text(json.dumps({"machine": environment(), **row}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
