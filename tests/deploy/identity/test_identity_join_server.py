"""The join server over real TLS: what it refuses, what bounds it, and a certificate that changes."""

import asyncio
import json
import ssl
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from hatdfed.deploy.identity.certificates import make_csr, make_key
from hatdfed.deploy.identity.identity_store import open_identity_store
from hatdfed.deploy.identity.join import MAX_LINE_BYTES, ask_join_server, make_unverified_context, make_verified_context
from hatdfed.deploy.identity.join_server import JoinServer
from hatdfed.deploy.identity.names import COORDINATOR, edge_id
from hatdfed.errors import IdentityError

HOST = "127.0.0.1"
HOUR = timedelta(hours=1)


@asynccontextmanager
async def join_server_of(identity_store, **options):
    async with JoinServer(identity_store, host=HOST, port=0, **options) as join_server:
        yield join_server


def refusals(caplog):
    lines = [record.getMessage() for record in caplog.records if record.name == "hatdfed.deploy.identity.join_server"]
    return [line for line in lines if line.startswith("Refused")]


async def raw(port, data):
    """What the join server answers to these bytes."""
    reader, writer = await asyncio.open_connection(HOST, port, ssl=make_unverified_context())
    try:
        writer.write(data)
        return json.loads(await reader.readline() or "null")
    finally:
        writer.transport.abort()


@pytest.mark.parametrize(
    ("line", "word"),
    [
        (b"nonsense\n", "not-json"),
        (b"[" * 50000 + b"\n", "not-json"),
        (b"\xff\xfe\n", "not-json"),
        (b"[1]\n", "not-json"),
        (b"{}\n", "bad-field"),
        (b'{"ask": ["enroll"]}\n', "bad-field"),
        (b'{"ask": "enroll", "token": 5, "csr": "x"}\n', "bad-field"),
        (b'{"ask": "enroll", "token": "t", "csr": "x"}\n', "bad-request"),
        (b'{"ask": "enroll", "token": "t", "csr": "\\ud800"}\n', "bad-request"),
        (b"x" * (MAX_LINE_BYTES + 2), "too-long"),
    ],
)
def test_what_is_no_request_is_refused_in_one_line(play, identity_store, caplog, line, word):
    async def scene():
        async with join_server_of(identity_store) as join_server:
            answer = await raw(join_server.port, line)
            assert await ask_join_server(
                HOST, join_server.port, make_verified_context(identity_store.authority.pem), {"ask": "authority"}
            )
            return answer

    answer = play(scene())
    assert answer["word"] == word
    assert len(refusals(caplog)) == 1


def test_a_bad_request_does_not_use_the_token_up(play, identity_store):
    token = identity_store.tokens.create("edge-7", HOUR)
    line = json.dumps({"ask": "enroll", "token": token, "csr": "nonsense"}).encode() + b"\n"

    async def scene():
        async with join_server_of(identity_store) as join_server:
            return await raw(join_server.port, line)

    assert play(scene())["word"] == "bad-request"
    assert identity_store.tokens.redeem(token) == "edge-7"


def test_callers_who_say_nothing_are_bounded_in_number_and_time(play, identity_store, caplog):
    async def scene():
        async with join_server_of(identity_store, max_connections=2, timeout_seconds=0.4) as join_server:
            silent = [await asyncio.open_connection(HOST, join_server.port) for _ in range(4)]
            answer = await ask_join_server(
                HOST, join_server.port, make_verified_context(identity_store.authority.pem), {"ask": "authority"}
            )
            async with asyncio.timeout(10):  # the answer may come before the last of them is given up
                while join_server.refusals["timeout"] < len(silent):
                    await asyncio.sleep(0.01)
            for _, writer in silent:
                writer.close()
            return answer, join_server.refusals["timeout"]

    answer, timeouts = play(scene())
    assert answer["ca"].encode() == identity_store.authority.pem
    assert timeouts == 4
    assert len(refusals(caplog)) == 1, "one line for all of them"


def test_the_desk_shows_a_renewed_certificate_without_a_restart(play, identity_store):
    async def shown(port):
        _, writer = await asyncio.open_connection(HOST, port, ssl=make_unverified_context())
        certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.transport.abort()
        return x509.load_der_x509_certificate(certificate).serial_number

    async def scene():
        async with join_server_of(identity_store) as join_server:
            before = await shown(join_server.port)
            identity_store.refresh(datetime.now(UTC) + timedelta(days=21))
            between = await shown(join_server.port)
            identity_store.identity.cert_file.write_bytes(b"nonsense")
            return before, between, await shown(join_server.port)

    before, between, after = play(scene())
    assert before != between == after


def test_the_desk_speaks_tls_1_3_only(play, identity_store):
    context = make_unverified_context()
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2

    async def scene():
        async with join_server_of(identity_store) as join_server:
            await ask_join_server(HOST, join_server.port, context, {"ask": "authority"})

    with pytest.raises(IdentityError) as caught:
        play(scene())
    assert caught.value.reason in ("unreachable", "not-a-desk")


def test_a_port_that_is_taken_is_a_sentence(play, identity_store):
    async def scene():
        async with (
            join_server_of(identity_store) as join_server,
            JoinServer(identity_store, host=HOST, port=join_server.port),
        ):
            pass

    with pytest.raises(IdentityError, match="Choose another port"):
        play(scene())


def test_the_coordinator_renews_itself_even_after_a_long_rest(identity_store, tmp_path):
    first = identity_store.identity.load()
    assert first.node == COORDINATOR
    assert identity_store.refresh().load().cert_pem == first.cert_pem
    identity_store.identity.save(
        first.key, identity_store.authority.sign(make_csr(first.key), COORDINATOR, timedelta(seconds=-1)), first.ca_pem
    )
    assert open_identity_store(tmp_path / "identity_store").refresh().load().expires > datetime.now(UTC)


def test_a_renewal_is_for_nodes_that_are_not_locked_out(identity_store):
    request = make_csr(make_key())
    assert identity_store.check_certificate(identity_store.renew(edge_id("edge-7"), request)) is None
    identity_store.deny_list.add("edge-7")
    with pytest.raises(IdentityError, match="deny list"):
        identity_store.renew(edge_id("edge-7"), request)
