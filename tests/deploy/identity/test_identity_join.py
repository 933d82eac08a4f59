"""An edge at the join server: who gets a certificate, who does not, and what is written down about it."""

import asyncio
import logging
import ssl
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

from hatdfed.deploy.identity.certificates import key_to_pem, make_csr, make_key
from hatdfed.deploy.identity.files import IdentityFolder
from hatdfed.deploy.identity.identity_store import create_identity_store, open_identity_store
from hatdfed.deploy.identity.join import MAX_LINE_BYTES, ask_join_server, explain_refusal, join, make_unverified_context
from hatdfed.deploy.identity.join_server import JoinServer
from hatdfed.deploy.identity.names import edge_id
from hatdfed.errors import IdentityError

HOST = "127.0.0.1"
HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def all_logs(caplog):
    caplog.set_level(logging.DEBUG)


@asynccontextmanager
async def join_server_of(identity_store, **options):
    async with JoinServer(identity_store, host=HOST, port=0, **options) as join_server:
        yield join_server


def refusals(caplog):
    lines = [record.getMessage() for record in caplog.records if record.name == "hatdfed.deploy.identity.join_server"]
    return [line for line in lines if line.startswith("Refused")]


def joins(play, identity_store, token, folder, pin=None):
    async def scene():
        async with join_server_of(identity_store) as join_server:
            return await join(HOST, join_server.port, token, pin or identity_store.authority.pin, folder)

    return play(scene())


def refused(play, identity_store, token, folder, pin=None):
    """The reason for which an edge was not let in; nothing was written."""
    with pytest.raises(IdentityError) as caught:
        joins(play, identity_store, token, folder, pin)
    assert not folder.path.exists() or not list(folder.path.iterdir())
    return caught.value


def test_an_edge_with_a_token_and_a_pin_gets_its_identity(play, identity_store, new_edge):
    token = identity_store.tokens.create("edge-7", HOUR)
    joined = joins(play, identity_store, token, new_edge)
    assert joined.node == edge_id("edge-7")
    assert new_edge.load().cert_pem == joined.cert_pem
    assert identity_store.check_certificate(joined.cert_pem) is None
    assert identity_store.tokens.list()[0].used is not None


def test_a_token_cannot_be_replayed_even_after_a_restart(play, identity_store, new_edge, tmp_path, caplog):
    token = identity_store.tokens.create("edge-7", HOUR)
    joins(play, identity_store, token, new_edge)
    thief = IdentityFolder(tmp_path / "thief")
    error = refused(play, open_identity_store(tmp_path / "identity_store"), token, thief)
    assert error.reason == "used-token"
    assert "works only once" in str(error)
    assert len(refusals(caplog)) == 1


def test_an_expired_and_an_unknown_token_are_refused(play, identity_store, new_edge, caplog):
    late = identity_store.tokens.create("edge-7", HOUR, datetime.now(UTC) - 2 * HOUR)
    assert refused(play, identity_store, late, new_edge).reason == "expired-token"
    assert refused(play, identity_store, "guess", new_edge).reason == "unknown-token"
    assert len(refusals(caplog)) == 2


def test_a_wrong_pin_ends_it_before_the_token_is_sent(play, identity_store, new_edge, caplog):
    token = identity_store.tokens.create("edge-7", HOUR)
    error = refused(play, identity_store, token, new_edge, "sha256:" + "0" * 64)
    assert error.reason == "wrong-pin"
    assert "somebody is in between" in str(error)
    assert identity_store.tokens.redeem(token) == "edge-7"
    (line,) = refusals(caplog)
    assert "the pin of another authority" in line


@pytest.mark.parametrize("pin", ["", "sha256:12", "0" * 64, "md5:" + "0" * 64])
def test_a_pin_that_is_none_is_refused_at_once(play, new_edge, pin):
    with pytest.raises(IdentityError, match="64 hex digits"):
        play(join(HOST, 1, "token", pin, new_edge))


def test_a_man_in_between_who_shows_the_right_authority_gets_no_token(play, identity_store, new_edge, tmp_path):
    """He can repeat the authority's certificate, which is public, but has no certificate of the coordinator."""
    other = create_identity_store(tmp_path / "other")
    # His own certificate and key, but the authority that the edge expects.
    liar = type(identity_store)(identity_store.authority, other.tokens, other.deny_list, other.identity)
    token = identity_store.tokens.create("edge-7", HOUR)
    assert refused(play, liar, token, new_edge).reason == "not-the-coordinator"
    assert identity_store.tokens.redeem(token) == "edge-7"


def test_another_edge_cannot_pose_as_the_join_server(play, identity_store, new_edge, tmp_path):
    key = make_key()
    own = IdentityFolder(tmp_path / "impostor")
    own.save(key, identity_store.authority.sign(make_csr(key), edge_id("coordinator")), identity_store.authority.pem)
    impostor = type(identity_store)(identity_store.authority, identity_store.tokens, identity_store.deny_list, own)
    assert refused(play, impostor, "token", new_edge).reason == "not-the-coordinator"


def test_a_node_on_the_deny_list_cannot_join(play, identity_store, new_edge):
    token = identity_store.tokens.create("edge-7", HOUR)
    identity_store.deny_list.add("edge-7")
    assert refused(play, identity_store, token, new_edge).reason == "denied"


def test_a_folder_with_a_good_identity_is_kept(play, identity_store, new_edge):
    joined = joins(play, identity_store, identity_store.tokens.create("edge-7", HOUR), new_edge)
    with pytest.raises(IdentityError, match="already holds the identity of edge edge-7"):
        joins(play, identity_store, identity_store.tokens.create("edge-7", HOUR), new_edge)
    assert new_edge.load().cert_pem == joined.cert_pem


def test_a_node_whose_certificate_has_ended_can_join_again(play, identity_store, new_edge):
    key = make_key()
    ended = identity_store.authority.sign(make_csr(key), edge_id("edge-7"), timedelta(seconds=-1))
    new_edge.save(key, ended, identity_store.authority.pem)
    assert joins(play, identity_store, identity_store.tokens.create("edge-7", HOUR), new_edge).key_pem != key_to_pem(
        key
    )


def test_a_join_server_that_is_not_there_is_a_sentence(play, identity_store, new_edge):
    with pytest.raises(IdentityError, match="cannot be reached"):
        play(join(HOST, 1, "token", identity_store.authority.pin, new_edge))


def test_a_node_that_is_shut_out_learns_why_and_the_coordinator_notes_it(play, identity_store, new_edge, caplog):
    key = make_key()
    new_edge.save(
        key,
        identity_store.authority.sign(make_csr(key), edge_id("edge-7"), timedelta(seconds=-1)),
        identity_store.authority.pem,
    )

    async def scene():
        async with join_server_of(identity_store) as join_server:
            before = await explain_refusal(HOST, join_server.port, new_edge)
            new_edge.replace_certificate(identity_store.authority.sign(make_csr(key), edge_id("edge-7")))
            good = await explain_refusal(HOST, join_server.port, new_edge)
            identity_store.deny_list.add("edge-7")
            return before, good, await explain_refusal(HOST, join_server.port, new_edge), join_server.refusals

    expired, good, denied, counted = play(scene())
    assert "edge edge-7 expired at" in expired
    assert good is None
    assert "deny list" in denied
    assert counted == {"expired": 1, "denied": 1}
    assert [expired in refusals(caplog)[0], denied in refusals(caplog)[1]] == [True, True]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"", "ended before a whole line"),
        (b"HTTP/1.1 400 Bad Request\r\n", "not a JSON object"),
        (b'{"ok": true}\n', "holds no certificate"),
        (b'{"ca": "\\ud800"}\n', "holds no certificate"),
        (b"x" * (MAX_LINE_BYTES + 2), "bytes allowed"),
    ],
)
def test_an_edge_that_finds_another_service_says_so(play, identity_store, new_edge, answer, why):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity_store.identity.cert_file, identity_store.identity.key_file)

    async def serve(reader, writer):
        await reader.readline()
        writer.write(answer)
        writer.close()

    async def scene():
        async with await asyncio.start_server(serve, HOST, 0, ssl=context) as server:
            port = server.sockets[0].getsockname()[1]
            await join(HOST, port, "token", identity_store.authority.pin, new_edge)

    with pytest.raises(IdentityError, match=why):
        play(scene())


def test_an_edge_that_finds_no_tls_says_so(play, identity_store, new_edge):
    async def serve(reader, writer):
        writer.write(b"220 mail.example ESMTP\r\n")
        writer.close()

    async def scene():
        async with await asyncio.start_server(serve, HOST, 0) as server:
            port = server.sockets[0].getsockname()[1]
            await join(HOST, port, "token", identity_store.authority.pin, new_edge)

    with pytest.raises(IdentityError, match="Check"):
        play(scene())


def test_no_secret_shows_up_in_a_log(play, identity_store, tmp_path, caplog):
    token = identity_store.tokens.create("edge-7", HOUR)
    folder, late = IdentityFolder(tmp_path / "a"), IdentityFolder(tmp_path / "b")
    joined = joins(play, identity_store, token, folder)
    refused(play, identity_store, token, late)
    refused(play, identity_store, token, late, "sha256:" + "0" * 64)
    identity_store.deny_list.add("edge-7")
    request = make_csr(joined.key).decode()

    async def scene():
        async with join_server_of(identity_store) as join_server:
            await explain_refusal(HOST, join_server.port, folder)
            enrol = {"ask": "enroll", "token": token, "csr": request}
            for content in ({"ask": "explain", "cert": request}, enrol, {"ask": token}, token):
                await ask_join_server(HOST, join_server.port, make_unverified_context(), content)

    play(scene())
    assert len(refusals(caplog)) == 7
    body = request.splitlines()[1]
    secrets = [token, body, joined.key_pem.decode().splitlines()[1], "PRIVATE KEY", "BEGIN CERTIFICATE REQUEST"]
    assert not [secret for secret in secrets if secret in caplog.text]
    assert all("\n" not in record.getMessage() for record in caplog.records if record.name.startswith("hatdfed"))
