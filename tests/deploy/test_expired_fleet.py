"""All certificates expire while everything is off, or while one edge sleeps: nobody has to join again."""

import asyncio
import logging
from dataclasses import replace
from datetime import timedelta

import pytest
from tests.deploy.deployment import Deployment, settings
from tests.deploy.gates import Gate

from hatdfed.deploy.edge.edge import RefusedError
from hatdfed.deploy.identity.certificates import make_csr
from hatdfed.deploy.identity.files import IdentityFolder

SHORT = timedelta(seconds=2)
EXPIRED = timedelta(seconds=-1)


def expire(deployment, name):
    """Give an edge a certificate like its own, but one that has expired."""
    folder = IdentityFolder(deployment.folder / "identities" / name)
    old, store = folder.read(), deployment.identity_store
    folder.cert_file.write_bytes(replace(store, lifetime=EXPIRED).renew(old.node, make_csr(old.key)))


async def weekend(folder):
    gate = Gate(2)
    async with Deployment(folder, settings("full"), join_address=("127.0.0.1", 0)) as deployment:
        await deployment.start_edges(3, make_setup=gate)
        await deployment.until(lambda: gate.is_reached(2))
        gate.open()
        for name in list(deployment.tasks):
            await deployment.kill_edge(name)
            expire(deployment, name)
        await deployment.stop_coordinator()
        played, store = deployment.process.progress.played, deployment.identity_store
        own = store.identity.read()
        store.identity.cert_file.write_bytes(store.authority.sign(make_csr(own.key), own.node, EXPIRED))
        # Monday: the same commands as on Friday. The first is what `hatdfed coordinator` does before it listens.
        store.refresh()
        await deployment.start_coordinator()
        await deployment.start_edges(3)
        summary = await asyncio.wait_for(deployment.run, 30)
        return played, summary, store.tokens.list()


def test_a_run_goes_on_after_all_certificates_have_expired(play, tmp_path, one_thread, caplog):
    caplog.set_level(logging.INFO)
    played, summary, tokens = play(weekend(tmp_path))
    assert played >= 2
    assert summary["rounds"] == 4
    assert tokens == [], "nobody had to join again"
    assert caplog.text.count("the certificate was not valid; it is renewed until") == 3


async def expired_at_start(folder, prepare):
    async with Deployment(folder, settings(), join_address=("127.0.0.1", 0)) as deployment:
        deployment.endpoints("edge-0")
        expire(deployment, "edge-0")
        prepare(deployment)
        edge = deployment.start_edge("edge-0")
        await deployment.until(lambda: edge._handler is not None or deployment.tasks["edge-0"].done())
        if deployment.tasks["edge-0"].done():
            await deployment.tasks["edge-0"]
        return edge._endpoints.identity.find_refusal()


def test_an_edge_that_starts_with_an_expired_certificate_renews_it(play, tmp_path, one_thread):
    assert play(expired_at_start(tmp_path, lambda deployment: None)) is None


def test_a_denied_edge_does_not_come_back_by_renewing(play, tmp_path, one_thread):
    with pytest.raises(RefusedError, match="deny list"):
        play(expired_at_start(tmp_path, lambda deployment: deployment.identity_store.deny_list.add("edge-0")))


async def slept(folder):
    """One edge does not renew in time, and its certificate expires over an open connection."""
    async with Deployment(folder, settings(rounds=500), join_address=("127.0.0.1", 0)) as deployment:
        await deployment.start_edges(2)
        identity = deployment.endpoints("edge-2").identity
        own = identity.read()
        short = replace(deployment.identity_store, lifetime=SHORT).renew(own.node, make_csr(own.key))
        identity.cert_file.write_bytes(short)
        first, edge = identity.expires, deployment.start_edge("edge-2")
        await deployment.until(lambda: identity.expires > first)
        await deployment.until(lambda: deployment.active == 3)
        before = deployment.status["round"]
        await deployment.until(lambda: deployment.status["round"] > before + 1)
        return edge._handler.mailbox.index, deployment.tasks["edge-2"].done()


def test_an_edge_whose_certificate_expires_while_it_is_connected_renews_it(
    play, tmp_path, one_thread, monkeypatch, eager
):
    async def never(*_):
        await asyncio.Event().wait()

    monkeypatch.setattr("hatdfed.deploy.edge.edge.renew_certificate_when_due", never)
    assert play(slept(tmp_path)) == (2, False)
