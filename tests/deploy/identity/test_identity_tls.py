"""Real gRPC servers and clients on loopback: who gets in, who does not, and a certificate that changes meanwhile."""

import asyncio
import ssl
from contextlib import asynccontextmanager

import grpc
import pytest
from cryptography import x509

from hatdfed.deploy.identity.authority import create_authority
from hatdfed.deploy.identity.certificates import make_csr
from hatdfed.deploy.identity.files import IdentityFolder
from hatdfed.deploy.identity.names import COORDINATOR, NodeId, edge_id
from hatdfed.deploy.transport.endpoints import (
    channel_credentials,
    identify_peer,
    server_credentials,
    target_name_options,
)
from hatdfed.errors import IdentityError

METHOD = "/test.Who/Am"


async def who_am_i(request, context):
    return str(identify_peer(context)).encode()


@asynccontextmanager
async def serving(folder):
    """A server that tells callers who they are; gives its address."""
    server = grpc.aio.server()
    handlers = {"Am": grpc.unary_unary_rpc_method_handler(who_am_i)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Who", handlers),))
    port = server.add_secure_port("127.0.0.1:0", server_credentials(folder))
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


def channel(address, credentials, node=COORDINATOR):
    # Without a pool of its own, a new channel may share the open connection of an old one.
    options = (*target_name_options(node), ("grpc.use_local_subchannel_pool", 1))
    return grpc.aio.secure_channel(address, credentials, options)


async def ask(open_channel):
    return (await open_channel.unary_unary(METHOD)(b"", timeout=4)).decode()


def refused(play, server, credentials, node=COORDINATOR):
    """Whether the call ends before it reaches the server's code."""

    async def scene():
        async with serving(server) as address, channel(address, credentials, node) as line:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await ask(line)
            return caught.value.code()

    return play(scene()) == grpc.StatusCode.UNAVAILABLE


def test_the_servers_code_learns_the_name_in_the_callers_certificate(play, coordinator, identity):
    async def scene():
        client = channel_credentials(identity(edge_id("edge-7")))
        async with serving(coordinator) as address, channel(address, client) as line:
            return await ask(line)

    assert play(scene()) == "edge edge-7"


def test_an_expired_client_is_refused(play, coordinator, expired_edge):
    late = expired_edge.read()
    assert refused(play, coordinator, grpc.ssl_channel_credentials(late.ca_pem, late.key_pem, late.cert_pem))


def test_a_client_of_a_foreign_authority_is_refused(play, coordinator, identity, authority, tmp_path):
    stranger = identity(edge_id("edge-7"), by=create_authority(tmp_path / "other"), trusts=authority).read()
    credentials = grpc.ssl_channel_credentials(stranger.ca_pem, stranger.key_pem, stranger.cert_pem)
    assert refused(play, coordinator, credentials)


def test_a_client_without_a_certificate_is_refused(play, coordinator, authority):
    assert refused(play, coordinator, grpc.ssl_channel_credentials(authority.pem))


def test_a_server_with_another_name_is_refused_by_the_client(play, coordinator, identity):
    client = channel_credentials(identity(edge_id("edge-7")))
    assert refused(play, coordinator, client, edge_id("edge-8"))


def test_an_edge_cannot_pose_as_the_coordinator(play, identity):
    impostor, client = identity(edge_id("coordinator")), channel_credentials(identity(edge_id("edge-7")))
    assert refused(play, impostor, client, COORDINATOR)


def test_a_server_of_a_foreign_authority_is_refused_by_the_client(play, identity, tmp_path):
    foreign = identity(COORDINATOR, by=create_authority(tmp_path / "other"), folder="foreign")
    assert refused(play, foreign, channel_credentials(identity(edge_id("edge-7"))))


def test_an_expired_identity_opens_neither_a_server_nor_a_channel(expired_edge):
    for make in (server_credentials, channel_credentials):
        with pytest.raises(IdentityError, match="expired at"):
            make(expired_edge)


async def _serial_shown(address):
    """The serial number of the certificate that a server shows to a new connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    host, _, port = address.partition(":")
    context.set_alpn_protocols(["h2"])
    _, writer = await asyncio.open_connection(host, int(port), ssl=context)
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    return x509.load_der_x509_certificate(shown).serial_number


def test_certificates_change_under_load_without_a_failed_call(play, coordinator, identity, authority):
    edge_folder = identity(edge_id("edge-7"))
    calls = 0

    async def keep_asking(line, stop):
        nonlocal calls
        while not stop.is_set():
            assert await ask(line) == "edge edge-7"
            calls += 1

    async def scene():
        stop = asyncio.Event()
        async with serving(coordinator) as address, channel(address, channel_credentials(edge_folder)) as old:
            asking = [asyncio.create_task(keep_asking(old, stop)) for _ in range(3)]
            seen = [await _serial_shown(address)]
            for _ in range(3):
                for folder in (coordinator, edge_folder):
                    renew(folder, authority)
                async with channel(address, channel_credentials(edge_folder)) as new:
                    assert await ask(new) == "edge edge-7"
                seen.append(await _serial_shown(address))
            stop.set()
            await asyncio.gather(*asking)
        return seen

    seen = play(scene())
    assert len(set(seen)) == 4
    assert seen[-1] == coordinator.read().certificate.serial_number
    assert calls > 10


def renew(folder, authority):
    old = folder.read()
    folder.replace_certificate(authority.sign(make_csr(old.key), old.node))


def test_a_folder_in_disorder_does_not_end_the_service(play, coordinator, identity, caplog):
    client = channel_credentials(identity(edge_id("edge-7")))

    async def scene():
        async with serving(coordinator) as address:
            coordinator.cert_file.write_bytes(b"nonsense")
            async with channel(address, client) as line:
                return await ask(line)

    assert play(scene()) == "edge edge-7"
    assert "goes on with the certificate that it has" in caplog.text


class FakeContext:
    def __init__(self, **found):
        self.found = found

    def auth_context(self):
        return self.found


@pytest.mark.parametrize(
    "names",
    [
        {},
        {"x509_subject_alternative_name": [b"edge-7.edge.hatdfed.internal"]},
        {"x509_subject_alternative_name": [b"spiffe://hatdfed/edge/a", b"spiffe://hatdfed/edge/b"]},
        {"peer_spiffe_id": [b"spiffe://elsewhere/edge/a"]},
        {"peer_spiffe_id": [b"spiffe://hatdfed/edge/\xff"]},
        {"peer_spiffe_id": [b"spiffe://hatdfed/edge/a/b"]},
    ],
)
def test_a_caller_without_exactly_one_name_of_ours_is_refused(names):
    with pytest.raises(IdentityError):
        identify_peer(FakeContext(**names))


def test_a_callers_name_is_found_among_alternative_names():
    found = [b"edge-7.edge.hatdfed.internal", b"spiffe://hatdfed/edge/edge-7"]
    assert identify_peer(FakeContext(x509_subject_alternative_name=found)) == NodeId("edge", "edge-7")


def test_a_folder_without_an_identity_says_how_to_get_one(tmp_path):
    with pytest.raises(IdentityError, match="hatdfed edge join"):
        server_credentials(IdentityFolder(tmp_path))
