"""A viewer reads the status of a run, and does nothing else."""

import asyncio
import json
import sqlite3
import sys
from dataclasses import replace
from datetime import timedelta

import grpc
import pytest
from tests.deploy.deployment import Deployment, settings
from tests.deploy.test_refusals import Slow

from hatdfed.dashboard.deployment import DeploymentMonitor, make_status_reader
from hatdfed.deploy.identity.certificates import make_csr, make_key
from hatdfed.deploy.identity.files import IdentityFolder
from hatdfed.deploy.identity.identity_store import create_identity_store, open_identity_store
from hatdfed.deploy.identity.join import join
from hatdfed.deploy.identity.join_server import JoinServer
from hatdfed.deploy.identity.names import COORDINATOR, EDGE_ROLE, VIEWER_ROLE, NodeId
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.deploy.protocol.hatdfed_pb2_grpc import PeerStub
from hatdfed.deploy.transport.endpoints import Endpoints
from hatdfed.errors import IdentityError

HOUR = timedelta(hours=1)


def viewer(deployment, name, lifetime=HOUR):
    key, folder = make_key(), IdentityFolder(deployment.folder / f"viewer-{name}")
    store = deployment.identity_store
    cert = replace(store, lifetime=lifetime).renew(NodeId(VIEWER_ROLE, name), make_csr(key))
    folder.save(key, cert, store.authority.pem)
    return folder


async def every_call(folder):
    """All calls of all services, by a viewer that has the name of an edge."""
    async with Deployment(folder, settings("full", rounds=500)) as deployment:
        await deployment.start_edges(3, make_setup=Slow())
        await deployment.until(lambda: deployment.status["round"] > 0)
        peer = deployment.status["servers"][0]
        places = {
            "Coordination": (f"127.0.0.1:{deployment.port}", COORDINATOR),
            "Operation": (f"127.0.0.1:{deployment.port}", COORDINATOR),
            "Peer": (peer["address"], NodeId(EDGE_ROLE, peer["name"])),
        }
        endpoints, allowed = Endpoints(viewer(deployment, "edge-1")), {}
        for service in pb.DESCRIPTOR.services_by_name.values():
            async with endpoints.open_channel(*places[service.name]) as channel:
                for method in service.methods:
                    allowed[method.name] = await is_allowed(channel, service, method)
        async with endpoints.open_channel(*places["Peer"]) as channel:
            pushed = await PeerStub(channel).Push([pb.Frame(parcel=pb.Parcel(run=deployment.status["run"], size=1))])
        return allowed, pushed.reason, deployment.process.hub.stop_requested.is_set()


async def is_allowed(channel, service, method):
    kind = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
    call = getattr(channel, kind)(
        f"/{service.full_name}/{method.name}", request_serializer=None, response_deserializer=None
    )
    try:
        answer = call(iter([b""]) if method.client_streaming else b"", timeout=5)
        if method.server_streaming:
            await anext(aiter(answer))
        else:
            received = await answer  # a push is refused in its answer
            return method.name != "Push" or pb.Received.FromString(received).reason != "wrong-role"
    except grpc.aio.AioRpcError as error:
        return "so it may not ask for this" not in error.details()
    return True


def test_a_viewer_may_ask_for_the_status_only(play, tmp_path, one_thread):
    allowed, pushed, has_stopped = play(every_call(tmp_path))
    assert {name for name, may in allowed.items() if may} == {"Status"}
    assert pushed == "wrong-role"
    assert not has_stopped


async def watched(folder):
    async with Deployment(folder, settings(), join_address=("127.0.0.1", 0)) as deployment:
        address, expired = f"127.0.0.1:{deployment.port}", timedelta(seconds=-1)
        mine = viewer(deployment, "grafana", expired)
        monitor = DeploymentMonitor(address, make_status_reader(address, mine.path, deployment.join_address))
        shown = await monitor.read_status()
        deployment.identity_store.deny_list.add("grafana")
        monitor._read_at = -10.0
        return shown, mine.find_refusal(), await monitor.read_status()


def test_a_dashboard_works_with_a_viewers_identity_and_renews_it(play, tmp_path):
    shown, refused, denied = play(watched(tmp_path))
    assert shown["trouble"] is None
    assert shown["waits_for"].startswith("servers")
    assert refused is None
    assert "deny-list" in denied["trouble"]


async def by_command(folder):
    async with Deployment(folder, settings()) as deployment:
        mine = viewer(deployment, "grafana").path
        where = ("--coordinator", f"127.0.0.1:{deployment.port}")
        shown = await hatdfed("status", *where, "--identity", str(mine), "--json")
        return json.loads(shown), deployment.status["run"]


async def hatdfed(*arguments):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "hatdfed", *arguments, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await asyncio.wait_for(process.communicate(), 40)
    assert process.returncode == 0
    return out


def test_the_status_command_works_with_a_viewers_identity(play, tmp_path):
    shown, run = play(by_command(tmp_path))
    assert shown["run"] == run


# Joining.


def joins(play, identity_store, token, folder, role):
    async def scene():
        async with JoinServer(identity_store, host="127.0.0.1", port=0) as server:
            return await join("127.0.0.1", server.port, token, identity_store.authority.pin, folder, role)

    return play(scene())


@pytest.fixture
def identity_store(tmp_path):
    return create_identity_store(tmp_path / "ca")


def test_a_viewer_joins_with_a_token_of_its_own(play, identity_store, tmp_path):
    token = identity_store.tokens.create("grafana", HOUR, role=VIEWER_ROLE)
    folder = IdentityFolder(tmp_path / "viewer")
    for wrong in (EDGE_ROLE, "coordinator", "admin"):
        with pytest.raises(IdentityError) as caught:
            joins(play, identity_store, token, folder, wrong)
        assert caught.value.reason == "wrong-role"
    assert str(joins(play, identity_store, token, folder, VIEWER_ROLE).node) == "viewer grafana"


def test_a_token_for_an_edge_makes_no_viewer(play, identity_store, tmp_path):
    token = identity_store.tokens.create("edge-1", HOUR)
    with pytest.raises(IdentityError, match="hatdfed edge join"):
        joins(play, identity_store, token, IdentityFolder(tmp_path / "viewer"), VIEWER_ROLE)
    assert identity_store.tokens.redeem(token) == "edge-1"


def test_tokens_that_0_1_0_made_are_for_edges(identity_store):
    path = identity_store.tokens.path
    with sqlite3.connect(path) as database:
        database.execute(
            "CREATE TABLE tokens (digest TEXT PRIMARY KEY, node TEXT NOT NULL, created REAL NOT NULL, "
            "expires REAL NOT NULL, used REAL)"
        )
        database.execute("INSERT INTO tokens VALUES ('x', 'edge-1', 0, 9e9, NULL)")
    database.close()
    assert [(info.node, info.role) for info in open_identity_store(path.parent).tokens.list()] == [("edge-1", "edge")]
