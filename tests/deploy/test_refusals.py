"""Who is not let in, and what both sides say about it; and a run that outlives its certificates."""

import asyncio
import logging
import sys
import time
from datetime import timedelta

import pytest
from tests.deploy.deployment import QUICK, Deployment, settings
from tests.deploy.gates import Gate

from hatdfed.deploy.edge.edge import RefusedError
from hatdfed.deploy.identity.certificates import make_csr, make_key
from hatdfed.deploy.identity.files import IdentityFolder
from hatdfed.deploy.identity.identity_store import create_identity_store
from hatdfed.deploy.identity.names import edge_id
from hatdfed.deploy.transport.endpoints import Endpoints
from hatdfed.errors import IdentityError

FEW = QUICK.model_copy(update={"min_servers": 2, "away_seconds": 1.0})


def identity(folder, identity_store, name, lifetime=timedelta(hours=1)):
    key, found = make_key(), IdentityFolder(folder)
    found.save(key, identity_store.authority.sign(make_csr(key), edge_id(name), lifetime), identity_store.authority.pem)
    return Endpoints(found, edge_id(name))


async def turned_away(folder, make_endpoints, *, secure=True):
    """What an edge with these endpoints is told, in how long."""
    join_address = ("127.0.0.1", 0) if secure else None
    async with Deployment(folder, settings(), secure=secure, join_address=join_address) as deployment:
        began = time.monotonic()
        deployment.start_edge("edge-9", endpoints=make_endpoints(deployment))
        with pytest.raises((RefusedError, IdentityError)) as caught:
            await asyncio.wait_for(deployment.tasks["edge-9"], 15)
        assert deployment.active == 0
        return str(caught.value), time.monotonic() - began


def noted(caplog):
    """What the coordinator's join server has written down about those it refused."""
    lines = [record.getMessage() for record in caplog.records if record.name == "hatdfed.deploy.identity.join_server"]
    return [line for line in lines if line.startswith("Refused")]


def test_an_edge_of_another_authority_is_told_so(play, tmp_path, one_thread, caplog):
    other = create_identity_store(tmp_path / "other")
    sentence, seconds = play(turned_away(tmp_path, lambda _: identity(tmp_path / "mine", other, "edge-9")))
    assert "did not prove that it is the coordinator" in sentence
    assert "join again" in sentence
    assert seconds < 10
    (line,) = noted(caplog)
    assert "certificate" in line


def test_an_edge_whose_certificate_has_expired_is_told_so(play, tmp_path, one_thread, caplog):
    def expired(deployment):
        return identity(tmp_path / "mine", deployment.identity_store, "edge-9", timedelta(seconds=-5))

    sentence, _ = play(turned_away(tmp_path, expired))
    assert "expired at" in sentence
    assert "Join again with a new token." in sentence
    assert all("no record of the certificate" in line for line in noted(caplog))


def test_an_edge_in_plain_text_is_told_that_certificates_are_wanted(play, tmp_path, one_thread, caplog):
    sentence, _ = play(turned_away(tmp_path, lambda _: Endpoints(None, edge_id("edge-9"))))
    assert "wants certificates" in sentence
    (line,) = noted(caplog)
    assert "without a certificate" in line


def test_an_edge_with_a_certificate_is_told_that_the_coordinator_has_none(play, tmp_path, one_thread):
    identity_store = create_identity_store(tmp_path / "other")
    endpoints = identity(tmp_path / "mine", identity_store, "edge-9")
    sentence, _ = play(turned_away(tmp_path, lambda _: endpoints, secure=False))
    assert "speaks plain text" in sentence


def test_an_edge_on_the_deny_list_is_told_so_and_the_coordinator_notes_it(play, tmp_path, one_thread, caplog):
    def denied(deployment):
        endpoints = deployment.endpoints("edge-9")
        deployment.identity_store.deny_list.add("edge-9")
        return endpoints

    sentence, _ = play(turned_away(tmp_path, denied))
    assert "edge-9 is on the deny-list" in sentence
    lines = [record for record in caplog.records if record.name == "hatdfed.deploy.coordinator"]
    assert [line.getMessage() for line in lines if "deny" in line.getMessage()] == [
        "refused: edge-9 is on the deny-list."
    ]


def test_an_edge_of_another_version_is_told_so(play, tmp_path, one_thread, monkeypatch, caplog):
    monkeypatch.setattr("hatdfed.deploy.edge.edge.PROTOCOL", 99)
    sentence, _ = play(turned_away(tmp_path, lambda deployment: deployment.endpoints("edge-9")))
    assert "with protocol 99" in sentence
    assert "Install the same version on both." in sentence
    assert "with protocol 99" in caplog.text


async def by_command(folder):
    """`hatdfed edge` at a coordinator that wants certificates."""
    async with Deployment(folder, settings()) as deployment:
        where = ("--coordinator", f"127.0.0.1:{deployment.port}", "--insecure", "--name", "edge-9")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "hatdfed", "edge", *where, "--store", str(folder / "store")),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        _, err = await asyncio.wait_for(process.communicate(), 40)
        return process.returncode, err.decode()


def test_the_command_of_a_refused_edge_ends_with_2_and_one_sentence(play, tmp_path):
    code, err = play(by_command(tmp_path))
    assert code == 2
    assert err.count("wants certificates") == 1
    assert "Traceback" not in err


async def denied_in_the_middle(folder):
    gate = Gate(0, 2)
    async with Deployment(folder, settings("full"), FEW) as deployment:
        await deployment.start_edges(1, make_setup=gate)
        for name in ("edge-1", "edge-2"):  # one by one, so that each has the place of its number
            deployment.start_edge(name)
            await deployment.until(lambda name=name: name in [each["name"] for each in deployment.status["servers"]])
        await deployment.until(lambda: gate.is_reached(0) and deployment.active == 3)
        gate.release(0)
        await deployment.until(lambda: gate.is_reached(2))
        deployment.identity_store.deny_list.add("edge-2")
        with pytest.raises(RefusedError, match="deny-list"):
            await asyncio.wait_for(deployment.tasks["edge-2"], 10)
        gate.open()
        summary = await deployment.run
        return summary, deployment.process.folder.read().records("servers")


def test_an_edge_that_is_denied_in_the_middle_of_a_run_goes_and_the_run_goes_on(play, tmp_path, one_thread):
    summary, servers = play(denied_in_the_middle(tmp_path))
    assert summary["rounds"] == 4
    assert {row["server"] for row in servers if row["t"] == 3} == {0, 1}


class Slow(Gate):
    """Every round takes a while."""

    def pass_through(self, t):
        time.sleep(0.25)


async def outlived(folder, lifetime, rounds):
    async with Deployment(folder, settings("full", rounds=rounds), lifetime=lifetime) as deployment:
        await deployment.start_edges(3, make_setup=Slow())
        began = time.monotonic()
        summary = await deployment.run
        links = deployment.process.folder.read().records("links")
        return time.monotonic() - began, summary, links


@pytest.mark.parametrize(
    ("seconds", "rounds"),
    [pytest.param(3, 28, marks=pytest.mark.processes), pytest.param(6, 80, marks=pytest.mark.slow)],
    ids=["short", "long"],
)
def test_a_run_outlives_its_certificates(play, tmp_path, one_thread, caplog, seconds, rounds):
    caplog.set_level(logging.INFO)
    lasted, summary, links = play(outlived(tmp_path, timedelta(seconds=seconds), rounds))
    assert lasted > 2 * seconds
    assert summary["rounds"] == rounds
    assert summary["notes"] == []
    assert len(links) == 6 * rounds
    assert all(row["delivered"] for row in links)
    assert caplog.text.count("the certificate is renewed until") >= 3 * 2
