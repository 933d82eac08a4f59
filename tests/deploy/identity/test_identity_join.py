"""An edge at the front desk: who gets a certificate, who does not, and what is written down about it."""

import asyncio
import logging
import ssl
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

from hatdfed.deploy.identity.exchange import MAX_LINE_BYTES, ask_desk, unverified
from hatdfed.deploy.identity.files import IdentityFolder
from hatdfed.deploy.identity.identity_store import create_identity_store, open_identity_store
from hatdfed.deploy.identity.join import explain, join
from hatdfed.deploy.identity.join_server import JoinServer
from hatdfed.deploy.identity.keys import csr, key_pem, make_key
from hatdfed.deploy.identity.names import edge
from hatdfed.errors import IdentityError

HOST = "127.0.0.1"
HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def all_logs(caplog):
    caplog.set_level(logging.DEBUG)


@asynccontextmanager
async def desk_of(office, **options):
    async with JoinServer(office, host=HOST, port=0, **options) as desk:
        yield desk


def refusals(caplog):
    lines = [record.getMessage() for record in caplog.records if record.name == "hatdfed.deploy.identity.join_server"]
    return [line for line in lines if line.startswith("Refused")]


def joins(play, office, token, folder, pin=None):
    async def scene():
        async with desk_of(office) as desk:
            return await join(HOST, desk.port, token, pin or office.authority.pin, folder)

    return play(scene())


def refused(play, office, token, folder, pin=None):
    """The reason for which an edge was not let in; nothing was written."""
    with pytest.raises(IdentityError) as caught:
        joins(play, office, token, folder, pin)
    assert not folder.path.exists() or not list(folder.path.iterdir())
    return caught.value


def test_an_edge_with_a_token_and_a_pin_gets_its_identity(play, office, new_edge):
    token = office.tokens.create("edge-7", HOUR)
    joined = joins(play, office, token, new_edge)
    assert joined.node == edge("edge-7")
    assert new_edge.load().cert_pem == joined.cert_pem
    assert office.refusal(joined.cert_pem) is None
    assert office.tokens.list()[0].used is not None


def test_a_token_cannot_be_replayed_even_after_a_restart(play, office, new_edge, tmp_path, caplog):
    token = office.tokens.create("edge-7", HOUR)
    joins(play, office, token, new_edge)
    thief = IdentityFolder(tmp_path / "thief")
    error = refused(play, open_identity_store(tmp_path / "office"), token, thief)
    assert error.reason == "used-token"
    assert "works only once" in str(error)
    assert len(refusals(caplog)) == 1


def test_an_expired_and_an_unknown_token_are_refused(play, office, new_edge, caplog):
    late = office.tokens.create("edge-7", HOUR, datetime.now(UTC) - 2 * HOUR)
    assert refused(play, office, late, new_edge).reason == "expired-token"
    assert refused(play, office, "guess", new_edge).reason == "unknown-token"
    assert len(refusals(caplog)) == 2


def test_a_wrong_pin_ends_it_before_the_token_is_sent(play, office, new_edge, caplog):
    token = office.tokens.create("edge-7", HOUR)
    error = refused(play, office, token, new_edge, "sha256:" + "0" * 64)
    assert error.reason == "wrong-pin"
    assert "somebody is in between" in str(error)
    assert office.tokens.redeem(token) == "edge-7"
    (line,) = refusals(caplog)
    assert "the pin of another authority" in line


@pytest.mark.parametrize("pin", ["", "sha256:12", "0" * 64, "md5:" + "0" * 64])
def test_a_pin_that_is_none_is_refused_at_once(play, new_edge, pin):
    with pytest.raises(IdentityError, match="64 hex digits"):
        play(join(HOST, 1, "token", pin, new_edge))


def test_a_man_in_between_who_shows_the_right_authority_gets_no_token(play, office, new_edge, tmp_path):
    """He can repeat the authority's certificate, which is public, but has no certificate of the coordinator."""
    other = create_identity_store(tmp_path / "other")
    # His own certificate and key, but the authority that the edge expects.
    liar = type(office)(office.authority, other.tokens, other.denied, other.identity)
    token = office.tokens.create("edge-7", HOUR)
    assert refused(play, liar, token, new_edge).reason == "not-the-coordinator"
    assert office.tokens.redeem(token) == "edge-7"


def test_another_edge_cannot_pose_as_the_front_desk(play, office, new_edge, tmp_path):
    key = make_key()
    own = IdentityFolder(tmp_path / "impostor")
    own.save(key, office.authority.sign(csr(key), edge("coordinator")), office.authority.pem)
    impostor = type(office)(office.authority, office.tokens, office.denied, own)
    assert refused(play, impostor, "token", new_edge).reason == "not-the-coordinator"


def test_a_node_on_the_deny_list_cannot_join(play, office, new_edge):
    token = office.tokens.create("edge-7", HOUR)
    office.denied.add("edge-7")
    assert refused(play, office, token, new_edge).reason == "denied"


def test_a_folder_with_a_good_identity_is_kept(play, office, new_edge):
    joined = joins(play, office, office.tokens.create("edge-7", HOUR), new_edge)
    with pytest.raises(IdentityError, match="already holds the identity of edge edge-7"):
        joins(play, office, office.tokens.create("edge-7", HOUR), new_edge)
    assert new_edge.load().cert_pem == joined.cert_pem


def test_a_node_whose_certificate_has_ended_can_join_again(play, office, new_edge):
    key = make_key()
    ended = office.authority.sign(csr(key), edge("edge-7"), timedelta(seconds=-1))
    new_edge.save(key, ended, office.authority.pem)
    assert joins(play, office, office.tokens.create("edge-7", HOUR), new_edge).key_pem != key_pem(key)


def test_a_desk_that_is_not_there_is_a_sentence(play, office, new_edge):
    with pytest.raises(IdentityError, match="cannot be reached"):
        play(join(HOST, 1, "token", office.authority.pin, new_edge))


def test_a_node_that_is_shut_out_learns_why_and_the_coordinator_notes_it(play, office, new_edge, caplog):
    key = make_key()
    new_edge.save(key, office.authority.sign(csr(key), edge("edge-7"), timedelta(seconds=-1)), office.authority.pem)

    async def scene():
        async with desk_of(office) as desk:
            before = await explain(HOST, desk.port, new_edge)
            new_edge.replace_certificate(office.authority.sign(csr(key), edge("edge-7")))
            good = await explain(HOST, desk.port, new_edge)
            office.denied.add("edge-7")
            return before, good, await explain(HOST, desk.port, new_edge), desk.refusals

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
def test_an_edge_that_finds_another_service_says_so(play, office, new_edge, answer, why):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(office.identity.cert_file, office.identity.key_file)

    async def serve(reader, writer):
        await reader.readline()
        writer.write(answer)
        writer.close()

    async def scene():
        async with await asyncio.start_server(serve, HOST, 0, ssl=context) as server:
            port = server.sockets[0].getsockname()[1]
            await join(HOST, port, "token", office.authority.pin, new_edge)

    with pytest.raises(IdentityError, match=why):
        play(scene())


def test_an_edge_that_finds_no_tls_says_so(play, office, new_edge):
    async def serve(reader, writer):
        writer.write(b"220 mail.example ESMTP\r\n")
        writer.close()

    async def scene():
        async with await asyncio.start_server(serve, HOST, 0) as server:
            port = server.sockets[0].getsockname()[1]
            await join(HOST, port, "token", office.authority.pin, new_edge)

    with pytest.raises(IdentityError, match="Check"):
        play(scene())


def test_no_secret_shows_up_in_a_log(play, office, tmp_path, caplog):
    token = office.tokens.create("edge-7", HOUR)
    folder, late = IdentityFolder(tmp_path / "a"), IdentityFolder(tmp_path / "b")
    joined = joins(play, office, token, folder)
    refused(play, office, token, late)
    refused(play, office, token, late, "sha256:" + "0" * 64)
    office.denied.add("edge-7")
    request = csr(joined.key).decode()

    async def scene():
        async with desk_of(office) as desk:
            await explain(HOST, desk.port, folder)
            enrol = {"ask": "enroll", "token": token, "csr": request}
            for content in ({"ask": "explain", "cert": request}, enrol, {"ask": token}, token):
                await ask_desk(HOST, desk.port, unverified(), content)

    play(scene())
    assert len(refusals(caplog)) == 7
    body = request.splitlines()[1]
    secrets = [token, body, joined.key_pem.decode().splitlines()[1], "PRIVATE KEY", "BEGIN CERTIFICATE REQUEST"]
    assert not [secret for secret in secrets if secret in caplog.text]
    assert all("\n" not in record.getMessage() for record in caplog.records if record.name.startswith("hatdfed"))
