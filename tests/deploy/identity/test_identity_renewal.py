"""Certificates that have expired: renewed at the join server by proof of their key, and by nobody else."""

import asyncio
import logging
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from hatdfed.deploy.identity.authority import create_authority
from hatdfed.deploy.identity.certificates import certificate_from_pem, make_csr, make_key
from hatdfed.deploy.identity.files import IdentityFolder
from hatdfed.deploy.identity.identity_store import create_identity_store
from hatdfed.deploy.identity.join import make_verified_context, receive_line, send_line
from hatdfed.deploy.identity.join_server import JoinServer
from hatdfed.deploy.identity.names import COORDINATOR, VIEWER_ROLE, NodeId, edge_id
from hatdfed.deploy.identity.proofs import check_proof, prove
from hatdfed.deploy.identity.renewal import renew_by_proof, renew_if_due
from hatdfed.errors import IdentityError

HOST = "127.0.0.1"
NODE = edge_id("edge-7")
EXPIRED = timedelta(seconds=-1)


@pytest.fixture
def folder(identity_store, tmp_path):
    """An identity that expired a moment ago."""
    return make_identity(identity_store, tmp_path / "edge-7")


def make_identity(identity_store, path, node=NODE, lifetime=EXPIRED):
    key, folder = make_key(), IdentityFolder(path)
    cert_pem = replace(identity_store, lifetime=lifetime).renew(node, make_csr(key))
    folder.save(key, cert_pem, identity_store.authority.pem)
    return folder


@asynccontextmanager
async def serving(identity_store):
    async with JoinServer(identity_store, host=HOST, port=0) as join_server:
        yield join_server


def renewed(play, identity_store, folder):
    async def scene():
        async with serving(identity_store) as join_server:
            return await renew_by_proof(HOST, join_server.port, folder)

    return play(scene())


def refusal(play, identity_store, folder):
    before = folder.cert_file.read_bytes()
    with pytest.raises(IdentityError) as caught:
        renewed(play, identity_store, folder)
    assert folder.cert_file.read_bytes() == before
    return caught.value.reason


async def talk(port, ca_pem, request, answer=None):
    """An attacker's exchange: what it is asked, and what it gets for its answer."""
    reader, writer = await asyncio.open_connection(
        HOST, port, ssl=make_verified_context(ca_pem), server_hostname=COORDINATOR.dns
    )
    try:
        await send_line(writer, request)
        first = await receive_line(reader)
        if answer is None or "challenge" not in first:
            return first, first
        await send_line(writer, answer(first["challenge"]))
        return first, await receive_line(reader)
    finally:
        writer.transport.abort()


def attack(play, identity_store, request, answer=None):
    async def scene():
        async with serving(identity_store) as join_server:
            return await talk(join_server.port, identity_store.authority.pem, request, answer)

    return play(scene())[1]


def asked(folder, csr=None):
    identity = folder.read()
    csr = csr or make_csr(identity.key)
    return {"ask": "renew", "cert": identity.cert_pem.decode(), "csr": csr.decode()}


def test_an_expired_certificate_is_renewed_by_proof_of_its_key(play, identity_store, folder, caplog):
    caplog.set_level(logging.INFO)
    before = folder.read()
    after = renewed(play, identity_store, folder)
    assert (after.node, after.key_pem) == (before.node, before.key_pem)
    assert folder.load().expires > datetime.now(UTC) + timedelta(days=29)
    assert "edge edge-7 renewed from 127.0.0.1" in caplog.text


def test_a_renewal_whose_answer_was_lost_can_be_asked_for_again(play, identity_store, folder):
    old = folder.cert_file.read_bytes()
    renewed(play, identity_store, folder)
    folder.cert_file.write_bytes(old)
    renewed(play, identity_store, folder)
    assert folder.find_refusal() is None


def test_who_has_only_the_certificate_gets_nothing(play, identity_store, folder):
    thief, csr = make_key(), make_csr(folder.read().key)
    authority = identity_store.authority.certificate
    # With a request for a key of its own, and with a request of the victim that it has overheard.
    own = make_csr(thief)
    answers = [
        attack(play, identity_store, asked(folder, own), lambda c: {"proof": prove(thief, c, own, authority)}),
        attack(play, identity_store, asked(folder, csr), lambda c: {"proof": prove(thief, c, csr, authority)}),
        attack(play, identity_store, asked(folder, csr), lambda c: {"proof": ""}),
        attack(play, identity_store, asked(folder, csr), lambda c: {"proof": "ä\ud800"}),
        attack(play, identity_store, asked(folder, csr), lambda c: {"proof": 5}),
        attack(play, identity_store, asked(folder, csr), lambda c: {"ask": "renew"}),
    ]
    assert [answer["word"] for answer in answers] == ["bad-proof"] * 2 + ["bad-field", "bad-proof"] + ["bad-field"] * 2
    assert not any("cert" in answer for answer in answers)


def test_a_proof_cannot_be_used_again(play, identity_store, folder):
    key, csr, seen = folder.read().key, make_csr(folder.read().key), []

    def answer(challenge):
        seen.append({"proof": prove(key, challenge, csr, identity_store.authority.certificate)})
        return seen[0]

    assert "cert" in attack(play, identity_store, asked(folder, csr), answer)
    assert attack(play, identity_store, asked(folder, csr), answer)["word"] == "bad-proof"
    assert attack(play, identity_store, asked(folder, csr), lambda _: seen[0])["word"] == "bad-proof"


def test_a_proof_is_for_one_request_and_one_authority(identity_store, folder, tmp_path):
    identity, other = folder.read(), create_authority(tmp_path / "other").certificate
    csr, again = make_csr(identity.key), make_csr(identity.key)
    proof = prove(identity.key, "c", csr, identity.authority)
    check_proof(identity.certificate, "c", csr, proof, identity.authority)
    for wrong in (("d", csr, identity.authority), ("c", again, identity.authority), ("c", csr, other)):
        with pytest.raises(IdentityError, match="not proved"):
            check_proof(identity.certificate, wrong[0], wrong[1], proof, wrong[2])


def test_a_denied_node_is_not_renewed(play, identity_store, folder):
    identity_store.deny_list.add("edge-7")
    assert refusal(play, identity_store, folder) == "denied"


def test_the_grace_period_ends(play, identity_store, tmp_path):
    ago = make_identity(identity_store, tmp_path / "edge-7", lifetime=timedelta(hours=-3))
    assert refusal(play, replace(identity_store, grace=timedelta(hours=2.9)), ago) == "expired"
    assert refusal(play, replace(identity_store, grace=timedelta(0)), ago) == "expired"
    renewed(play, replace(identity_store, grace=timedelta(hours=3.1)), ago)
    assert identity_store.grace == timedelta(days=30)


def test_a_certificate_that_was_never_recorded_is_not_renewed(play, identity_store, tmp_path):
    key, folder = make_key(), IdentityFolder(tmp_path / "unknown")
    folder.save(key, identity_store.authority.sign(make_csr(key), NODE, EXPIRED), identity_store.authority.pem)
    assert refusal(play, identity_store, folder) == "unknown-certificate"


def test_a_copy_from_before_the_node_joined_again_is_not_renewed(play, identity_store, folder, tmp_path):
    make_identity(identity_store, tmp_path / "anew")
    assert refusal(play, identity_store, folder) == "superseded"


def test_a_viewer_of_the_same_name_supersedes_no_edge(play, identity_store, folder, tmp_path):
    viewer = make_identity(identity_store, tmp_path / "viewer", NodeId(VIEWER_ROLE, "edge-7"))
    renewed(play, identity_store, folder)
    assert str(renewed(play, identity_store, viewer).node) == "viewer edge-7"


def test_neither_a_foreign_certificate_nor_the_coordinators_is_renewed(play, identity_store, tmp_path):
    foreign = make_identity(create_identity_store(tmp_path / "other"), tmp_path / "foreign")
    assert attack(play, identity_store, asked(foreign), lambda c: {"proof": "x"})["word"] == "foreign"
    own = identity_store.identity
    assert attack(play, identity_store, asked(own), lambda c: {"proof": "x"})["word"] == "wrong-role"
    ca = {"ask": "renew", "cert": identity_store.authority.pem.decode(), "csr": make_csr(make_key()).decode()}
    assert attack(play, identity_store, ca, lambda c: {"proof": "x"})["word"] == "no-node-name"


def test_a_certificate_from_the_future_is_renewed(play, identity_store, folder, monkeypatch):
    """It was signed while the coordinator's clock was two days ahead."""
    key = folder.read().key

    class Ahead(datetime):
        @classmethod
        def now(cls, zone=None):
            return datetime.now(zone) + timedelta(days=2)

    with monkeypatch.context() as patch:
        patch.setattr("hatdfed.deploy.identity.authority.datetime", Ahead)
        folder.save(key, identity_store.renew(NODE, make_csr(key)), identity_store.authority.pem)
    assert folder.find_refusal().reason == "too-early"
    renewed(play, identity_store, folder)
    assert folder.find_refusal() is None


def test_renewals_are_recorded_and_old_records_go(identity_store, monkeypatch):
    key = make_key()
    ago = replace(identity_store, lifetime=timedelta(hours=-3))
    old = certificate_from_pem(ago.renew(edge_id("old"), make_csr(key)), "it")
    identity_store.issued.check(old)
    monkeypatch.setattr("hatdfed.deploy.identity.issued._KEPT", timedelta(hours=-2))
    identity_store.renew(NODE, make_csr(key))
    with pytest.raises(IdentityError, match="no record"):
        identity_store.issued.check(old)


def test_a_node_that_renews_all_the_time_does_not_fill_the_disk(identity_store, monkeypatch):
    monkeypatch.setattr("hatdfed.deploy.identity.issued._MAX_PER_NODE", 3)
    key = make_key()
    others = certificate_from_pem(identity_store.renew(edge_id("other"), make_csr(key)), "it")
    made = [certificate_from_pem(identity_store.renew(NODE, make_csr(key)), "it") for _ in range(5)]
    for certificate in (others, *made[2:]):
        identity_store.issued.check(certificate)
    for certificate in made[:2]:
        with pytest.raises(IdentityError, match="no record"):
            identity_store.issued.check(certificate)


def test_a_renewal_that_is_not_due_or_fails_in_time_is_no_error(play, identity_store, folder, tmp_path, monkeypatch):
    fresh = make_identity(identity_store, tmp_path / "fresh", edge_id("fresh"), timedelta(days=30))
    play(renew_if_due(HOST, 1, fresh))
    monkeypatch.setattr(IdentityFolder, "should_renew", lambda *_: True)
    play(renew_if_due(HOST, 1, fresh))
    with pytest.raises(IdentityError, match=r"could not be renewed.* cannot be reached"):
        play(renew_if_due(HOST, 1, folder))
