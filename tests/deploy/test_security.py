"""What somebody with bad intentions can send, and what lies around for others to read."""

import ast
import asyncio
import math
import pickle  # noqa: TID251 (to see that nobody calls it)
import re
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from tests.deploy.deployment import Deployment, settings
from tests.deploy.hostile import HostileMember, bad_bytes

from hatdfed.deploy.coordinator.services import PROTOCOL
from hatdfed.deploy.coordinator.settings import DeploySettings
from hatdfed.deploy.identity.names import COORDINATOR, EDGE_ROLE, NodeId
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.deploy.protocol.hatdfed_pb2_grpc import CoordinationStub

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src" / "hatdfed").rglob("*.py"))
BANNED_MODULES = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "joblib", "jsonpickle"}
BANNED_CALLS = {"eval", "exec", "torch.load", "yaml.load", "yaml.full_load", "yaml.unsafe_load", "pandas.read_pickle"}
# A round that waits for a model that never comes should not keep a test waiting.
SHORT = DeploySettings(beat_seconds=0.2, away_seconds=2.0, idle_seconds=1.0, round_seconds=4.0)


def dotted(node):
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def suspicious(path):
    """Imports and calls that can run code out of data."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] in BANNED_MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in BANNED_MODULES:
            yield node.module
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{a.name}" for a in node.names if f"{node.module}.{a.name}" in BANNED_CALLS)
        elif isinstance(node, ast.Call):
            if dotted(node.func) in BANNED_CALLS:
                yield dotted(node.func)
            yield from (keyword.arg for keyword in node.keywords if keyword.arg == "allow_pickle")
            yield from ("shell=True" for keyword in node.keywords if keyword.arg == "shell")


def test_nothing_in_the_package_can_run_code_out_of_data():
    assert len(SOURCES) > 100
    found = {path.name: list(suspicious(path)) for path in SOURCES}
    assert {name: words for name, words in found.items() if words} == {}


def test_the_search_finds_what_it_is_for(tmp_path):
    text = "import pickle\nfrom dill import loads\nx = torch.load(f)\ny = eval('1')\nnp.load(f, allow_pickle=True)\n"
    (tmp_path / "bad.py").write_text(text + "yaml.load(f)\nsubprocess.run(c, shell=True)\nmodel.eval()\n")
    found = set(suspicious(tmp_path / "bad.py"))
    assert found == {"pickle", "dill", "torch.load", "eval", "allow_pickle", "yaml.load", "shell=True"}


@pytest.fixture
def trap(tmp_path, monkeypatch):
    """A folder that exists once anything was unpickled, and a list of everybody who tried to."""
    payloads, tried = bad_bytes(tmp_path / "unpickled"), []

    def refuse(*args, **kwargs):
        tried.append(args)
        raise AssertionError("somebody unpickles")

    for name in ("load", "loads", "Unpickler", "_Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    yield payloads
    assert tried == []
    assert not (tmp_path / "unpickled").exists()


BAD_REPORTS = (
    {"accuracy": 2.0},
    {"accuracy": math.nan},
    {"num_samples": -1},
    {"num_samples": 2**62},
    {"slots": [pb.Slot(server=99, importance=1.0)]},
    {"slots": [pb.Slot(server=2, importance=math.inf)]},
    {"sent": [pb.Sent(receiver=0, share=1e9)]},
)


def changed(report, **fields):
    for name, value in fields.items():
        report.ClearField(name)
        report.MergeFrom(pb.Outcome(**{name: value}))
    return report


async def attacked(folder, payloads):
    """Two honest edges and a hostile one, which everybody is to exchange models with."""
    refused, told = {}, []

    async def attack(member, order):
        t = order.round
        receivers = [receiver for receiver in order.receivers if receiver.address]
        for name, data in payloads.items() if t == 0 else ():
            answers = await asyncio.gather(*(member.push(receiver, t, data) for receiver in receivers))
            refused[name] = [answer.reason for answer in answers if not answer.accepted]
            assert not any(answer.accepted for answer in answers), name
        if t == 0:
            refused["a terabyte"] = [(await member.push(receivers[0], t, b"x", size=2**40)).reason]
        told.append(await member.stub.Report(changed(member.outcome(t), round=t + 5)))
        told.append(await member.stub.Report(changed(member.outcome(t), **BAD_REPORTS[t])))

    all_needed = SHORT.model_copy(update={"min_servers": 3})  # so that nobody is kept out for its bad rounds
    async with Deployment(folder, settings("full", rounds=len(BAD_REPORTS)), all_needed) as deployment:
        await deployment.start_edges(2)
        member = HostileMember(deployment, "edge-9", attack)
        hostile = asyncio.ensure_future(member.serve())
        summary = await asyncio.wait_for(deployment.run, 60)
        await asyncio.wait_for(hostile, 10)
        status = deployment.status
    return summary, refused, told, status


def test_a_hostile_member_gets_nothing_believed_and_the_run_goes_on(play, tmp_path, trap, one_thread):
    summary, refused, told, status = play(attacked(tmp_path, trap))
    assert summary["rounds"] == len(BAD_REPORTS)
    assert all(refused.values()), refused
    assert not {reason for reasons in refused.values() for reason in reasons} - {
        "not-a-message", "damaged", "bad-header", "too-long", "foreign", "wrong-shape", "late",
    }  # fmt: skip
    assert refused["sealed pickle"]
    assert "late" not in refused["sealed pickle"]
    assert len(told) == 2 * len(BAD_REPORTS)
    assert {answer.reason for answer in told} == {"foreign", "bad-report"}
    assert not any(answer.accepted for answer in told)
    assert status["refused"]["bad-report"] == len(BAD_REPORTS)


async def garbled(folder, payloads):
    """Every method of both services is sent bytes that are no message of its own."""
    codes = {}
    async with Deployment(folder, settings(rounds=500), SHORT) as deployment:
        await deployment.start_edges(3)
        await deployment.until(lambda: deployment.status["round"] > 0)
        peer = deployment.status["servers"][0]
        places = {
            "Coordination": (f"127.0.0.1:{deployment.port}", COORDINATOR),
            "Operation": (f"127.0.0.1:{deployment.port}", COORDINATOR),
            "Peer": (peer["address"], NodeId(EDGE_ROLE, peer["name"])),
        }
        for service in pb.DESCRIPTOR.services_by_name.values():
            async with deployment.endpoints("edge-1").open_channel(*places[service.name]) as channel:
                for method in service.methods:
                    for name in ("pickle", "sealed pickle"):
                        path = f"/{service.full_name}/{method.name}"
                        codes[method.name] = await garble(channel, path, method, payloads[name])
        before = deployment.status["round"]
        await deployment.until(lambda: deployment.status["round"] > before)
    return codes


async def garble(channel, path, method, data):
    """The method's answer to bytes that are none of its messages: a code of gRPC, never a crash."""
    kind = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
    call = getattr(channel, kind)(path, request_serializer=None, response_deserializer=None)
    try:
        answer = call(iter([data]) if method.client_streaming else data, timeout=5)
        if method.server_streaming:
            async for _ in answer:
                break
        else:
            await answer
    except grpc.aio.AioRpcError as error:
        return error.code()
    return None


def test_bytes_that_are_no_message_are_refused_by_every_method(play, tmp_path, trap, one_thread):
    codes = play(garbled(tmp_path, trap))
    assert len(codes) >= 15
    assert {method for method, code in codes.items() if code is None} == set()


async def odd_fields(folder, payloads):
    text = payloads["pickle"].decode("latin-1")
    async with Deployment(folder, settings(rounds=500), SHORT) as deployment:
        await deployment.start_edges(3)
        await deployment.until(lambda: deployment.status["round"] > 0)
        async with deployment.endpoints("edge-8").open_channel(f"127.0.0.1:{deployment.port}", COORDINATOR) as channel:
            stub = CoordinationStub(channel)
            with pytest.raises(grpc.aio.AioRpcError):
                await stub.Renew(pb.SigningRequest(csr=payloads["pickle"]))
            with pytest.raises(grpc.aio.AioRpcError):
                await stub.Join(pb.Hello(protocol=-1, version=text))
            welcome = await stub.Join(pb.Hello(protocol=PROTOCOL, version=text, run=text))
            with pytest.raises(grpc.aio.AioRpcError):
                await stub.Ready(pb.Prepared(epoch=welcome.epoch, num_params=3, layout=text, accuracy=0.5))
            await stub.Beat(pb.Pulse(epoch=welcome.epoch, doing=text))
            await stub.Reached(pb.Reachable(epoch=welcome.epoch, yes=[2**31 - 1], no=[-5]))
            await stub.Leave(pb.Goodbye(why=text))
        before = deployment.status["round"]
        await deployment.until(lambda: deployment.status["round"] > before)
        return deployment.status


def test_odd_texts_in_every_field_do_no_harm(play, tmp_path, trap, one_thread):
    status = play(odd_fields(tmp_path, trap))
    assert status["state"] == "running"


SMALL_RUN = """
dataset: synthetic
dataset_options: {train: 300, validation: 60, test: 60}
network: linear
images_per_server: 80
validation_images: 40
rounds: 2
deploy: {beat_seconds: 0.5, certificate_hours: 1}
"""
TOKEN = re.compile(rb"hatdfed_[A-Za-z0-9_-]{43}")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A whole deployment of processes, from `ca init` to the end of its run, and all that it left behind."""
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "run.yaml").write_text(SMALL_RUN)
    script = ROOT / "examples" / "three_machines" / "cluster.py"
    command = [sys.executable, str(script), str(folder / "run.yaml"), "--edges", "2", "--keep", str(folder / "all")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    (folder / "all" / "said.out").write_text(done.stdout + done.stderr)
    return folder / "all"


@pytest.mark.processes
def test_no_key_and_no_token_is_in_any_log_or_record(cluster):
    keys = list(cluster.rglob("*key.pem"))
    assert len(keys) == 4  # authority, coordinator, two edges
    secrets = [line for key in keys for line in key.read_bytes().splitlines() if b"-----" not in line]
    others = [path for path in cluster.rglob("*") if path.is_file() and path not in keys]
    assert {".log", ".out", ".sqlite", ".yaml"} <= {path.suffix for path in others}
    for path in others:
        content = path.read_bytes()
        assert TOKEN.search(content) is None, path
        assert b"PRIVATE KEY" not in content, path
        assert not any(secret in content for secret in secrets), path


@pytest.mark.processes
def test_keys_are_for_their_owner_alone(cluster):
    for key in cluster.rglob("*key.pem"):
        assert key.stat().st_mode & 0o777 == 0o600, key
        assert key.parent.stat().st_mode & 0o777 == 0o700, key.parent
