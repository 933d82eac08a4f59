"""Names, and an authority that signs for the right one: units."""

import re
import stat
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hatdfed.deploy.identity.authority import create_authority, load_authority
from hatdfed.deploy.identity.certificates import is_same_key, make_csr, make_key, node_from_certificate
from hatdfed.deploy.identity.names import COORDINATOR, NodeId, edge_id, node_from_uri
from hatdfed.errors import IdentityError


@pytest.mark.parametrize("name", ["a", "7", "edge-7", "a" * 63, "x--y"])
def test_a_name_that_can_be_a_host_name_is_taken(name):
    assert node_from_uri(edge_id(name).uri) == edge_id(name)


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a.b", "a/b", "a" * 64, "a b", "ä", "a\n", "../a"])
def test_any_other_name_is_refused_in_a_sentence(name):
    with pytest.raises(IdentityError, match="Choose a name like edge-7"):
        edge_id(name)


def test_a_role_that_does_not_exist_is_refused():
    with pytest.raises(IdentityError, match="coordinator, edge, relay or viewer"):
        NodeId("admin", "a")


@pytest.mark.parametrize("uri", ["", "spiffe://hatdfed/edge", "spiffe://other/edge/a", "http://hatdfed/edge/a"])
def test_a_uri_that_is_not_ours_names_nobody(uri):
    with pytest.raises(IdentityError, match="no node of ours"):
        node_from_uri(uri)


def signed(authority, request=None, node=None, **rest):
    return x509.load_pem_x509_certificate(
        authority.sign(request or make_csr(make_key()), node or edge_id("edge-7"), **rest)
    )


def test_a_certificate_is_for_the_key_of_the_request_and_the_node_of_the_signer(authority):
    key = make_key()
    certificate = signed(authority, make_csr(key))
    assert node_from_certificate(certificate) == edge_id("edge-7")
    assert is_same_key(certificate.public_key(), key.public_key())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["edge-7.edge.hatdfed.internal"]
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert set(usage) == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_what_a_request_wishes_to_be_called_is_ignored(authority):
    wish = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(COORDINATOR.uri), x509.DNSName(COORDINATOR.dns)])
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "coordinator")])
    request = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(name)
        .add_extension(wish, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(make_key(), hashes.SHA256())
    )
    certificate = signed(authority, request.public_bytes(Encoding.PEM))
    assert node_from_certificate(certificate) == edge_id("edge-7")
    assert b"coordinator" not in certificate.public_bytes(Encoding.DER)
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_a_certificate_lives_for_a_month_and_begins_before_now(authority):
    certificate = signed(authority)
    assert abs(certificate.not_valid_after_utc - datetime.now(UTC) - timedelta(days=30)) < timedelta(minutes=1)
    assert certificate.not_valid_before_utc < datetime.now(UTC) - timedelta(hours=3)


def request_of(key, algorithm):
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    return builder.sign(key, algorithm).public_bytes(Encoding.PEM)


def altered_request():
    """A request whose key was exchanged after it was signed."""
    first, second = (x509.load_pem_x509_csr(make_csr(make_key())) for _ in range(2))
    body = first.public_bytes(Encoding.DER)
    points = [
        request.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint) for request in (first, second)
    ]
    assert points[0] in body
    return x509.load_der_x509_csr(body.replace(*points)).public_bytes(Encoding.PEM)


@pytest.mark.parametrize(
    ("request_pem", "why"),
    [
        (b"nonsense", "cannot be read"),
        (request_of(ed25519.Ed25519PrivateKey.generate(), None), "another kind"),
        (request_of(ec.generate_private_key(ec.SECP384R1()), hashes.SHA256()), "another kind"),
        (altered_request(), "not signed by its own key"),
    ],
)
def test_a_bad_request_is_not_signed(authority, request_pem, why):
    with pytest.raises(IdentityError, match=why) as caught:
        authority.sign(request_pem, edge_id("edge-7"))
    assert caught.value.reason == "bad-request"


def test_an_authority_is_never_overwritten(authority):
    with pytest.raises(IdentityError, match="never overwritten"):
        create_authority(authority.folder)
    assert load_authority(authority.folder).pin == authority.pin


def test_an_authoritys_key_is_its_owners_alone(authority):
    assert stat.S_IMODE(authority.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((authority.folder / "ca-key.pem").stat().st_mode) == 0o600
    (authority.folder / "ca-key.pem").chmod(0o644)
    with pytest.raises(IdentityError, match="chmod 600"):
        load_authority(authority.folder)


def test_an_authority_survives_a_restart(authority):
    again = load_authority(authority.folder)
    assert re.fullmatch("sha256:[0-9a-f]{64}", again.pin)
    assert authority.check(again.sign(make_csr(make_key()), edge_id("a")), datetime.now(UTC)) is None


@pytest.mark.parametrize("name", ["ca.pem", "ca-key.pem"])
def test_a_missing_or_broken_authority_is_a_sentence(authority, name):
    (authority.folder / name).write_bytes(b"nonsense")
    with pytest.raises(IdentityError, match=f"{name} holds no"):
        load_authority(authority.folder)
    (authority.folder / name).unlink()
    with pytest.raises(IdentityError, match="hatdfed ca init"):
        load_authority(authority.folder)


def test_a_key_of_another_authority_is_noticed(authority, tmp_path):
    other = create_authority(tmp_path / "other")
    (authority.folder / "ca-key.pem").write_bytes((other.folder / "ca-key.pem").read_bytes())
    with pytest.raises(IdentityError, match="do not belong together"):
        load_authority(authority.folder)


def test_a_refused_certificate_says_why(authority, tmp_path):
    good = authority.sign(make_csr(make_key()), edge_id("edge-7"))
    foreign = create_authority(tmp_path / "other").sign(make_csr(make_key()), edge_id("edge-7"))
    now = datetime.now(UTC)
    assert authority.check(good, now) is None
    assert "not signed by this deployment" in str(authority.check(foreign, now))
    assert "edge edge-7 expired at" in str(authority.check(good, now + timedelta(days=31)))
    assert "not valid before" in str(authority.check(good, now - timedelta(days=1)))
    assert "names 0 nodes" in str(authority.check(authority.pem, now))
    assert "no certificate" in str(authority.check(b"nonsense", now))


def test_neither_key_shows_in_a_representation(authority, coordinator):
    for thing in (authority, coordinator.load()):
        assert "PrivateKey" not in repr(thing)
