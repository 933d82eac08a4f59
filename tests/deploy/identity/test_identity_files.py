"""The folder of an identity: what it refuses, when it wants to be renewed, what a crash leaves."""

import stat
from datetime import UTC, datetime, timedelta

import pytest

from hatdfed.deploy.identity import private_files as durable
from hatdfed.deploy.identity.authority import create_authority
from hatdfed.deploy.identity.certificates import make_csr, make_key
from hatdfed.deploy.identity.files import IdentityFolder
from hatdfed.deploy.identity.names import edge_id
from hatdfed.deploy.identity.renewal import accept_renewal, make_renewal_request
from hatdfed.errors import IdentityError


@pytest.fixture
def folder(identity):
    return identity(edge_id("edge-7"))


def test_what_is_saved_is_loaded(folder, authority):
    identity = folder.load()
    assert identity.node == edge_id("edge-7")
    assert identity.ca_pem == authority.pem
    assert stat.S_IMODE(folder.key_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700


@pytest.mark.parametrize("name", ["key.pem", "cert.pem", "ca.pem"])
def test_each_file_is_missed_and_checked(folder, name):
    (folder.path / name).write_bytes(b"nonsense")
    with pytest.raises(IdentityError, match=f"{name} holds no"):
        folder.load()
    (folder.path / name).unlink()
    with pytest.raises(IdentityError, match=r"There is no .* Join with") as caught:
        folder.load()
    assert caught.value.reason == "missing"


def test_a_folder_in_place_of_a_file_is_unreadable(folder):
    folder.cert_file.unlink()
    folder.cert_file.mkdir()
    with pytest.raises(IdentityError, match="cannot be read"):
        folder.load()


def test_a_key_that_everybody_may_read_is_refused(folder):
    folder.key_file.chmod(0o604)
    with pytest.raises(IdentityError, match="chmod 600"):
        folder.load()


def test_a_key_of_another_certificate_is_refused(folder, identity):
    other = identity(edge_id("edge-8"))
    folder.cert_file.write_bytes(other.cert_file.read_bytes())
    with pytest.raises(IdentityError, match="do not belong together"):
        folder.load()


def test_an_expired_identity_can_be_read_but_not_loaded(expired_edge):
    assert expired_edge.expires < datetime.now(UTC)
    assert expired_edge.should_renew(datetime.now(UTC))
    with pytest.raises(IdentityError, match=r"late.* expired at .* new token") as caught:
        expired_edge.load()
    assert caught.value.reason == "expired"


@pytest.mark.parametrize(("days", "due"), [(0, False), (19.9, False), (20.1, True), (40, True)])
def test_it_is_renewed_after_two_thirds_of_its_life(folder, days, due):
    assert folder.should_renew(datetime.now(UTC) + timedelta(days=days)) is due


def test_a_renewal_replaces_the_certificate_and_keeps_the_key(folder, authority):
    before = folder.load()
    after = accept_renewal(folder, authority.sign(make_renewal_request(folder), edge_id("edge-7"), timedelta(days=48)))
    assert after.key_pem == before.key_pem
    assert after.expires > before.expires
    assert folder.load().cert_pem == after.cert_pem


def test_a_wrong_renewal_changes_nothing(folder, authority, tmp_path):
    before = folder.cert_file.read_bytes()
    foreign = create_authority(tmp_path / "other")
    wrong = [
        (authority.sign(make_csr(make_key()), edge_id("edge-7")), "another key"),
        (authority.sign(make_renewal_request(folder), edge_id("edge-8")), "edge-8"),
        (foreign.sign(make_renewal_request(folder), edge_id("edge-7")), "not signed by"),
        (authority.sign(make_renewal_request(folder), edge_id("edge-7"), timedelta(seconds=-1)), "expired"),
        (b"nonsense", "no certificate"),
    ]
    for pem, why in wrong:
        with pytest.raises(IdentityError, match=why):
            accept_renewal(folder, pem)
    assert folder.cert_file.read_bytes() == before


@pytest.mark.parametrize("survived", [0, 1, 2])
def test_a_crash_while_saving_leaves_no_mixture(folder, authority, monkeypatch, survived):
    writes = []

    def write_some(path, content, mode):
        if len(writes) == survived:
            raise KeyboardInterrupt
        writes.append(path)
        durable.write_durably(path, content, mode)

    monkeypatch.setattr("hatdfed.deploy.identity.files.write_durably", write_some)
    key = make_key()
    with pytest.raises(KeyboardInterrupt):
        folder.save(key, authority.sign(make_csr(key), edge_id("edge-7")), authority.pem)
    with pytest.raises(IdentityError, match="There is no certificate"):
        folder.load()


def test_nothing_but_the_three_files_is_left(folder):
    assert {path.name for path in folder.path.iterdir()} == {"key.pem", "cert.pem", "ca.pem"}


def test_a_full_disk_leaves_the_old_certificate(folder, authority, monkeypatch):
    before, new = folder.load().cert_pem, authority.sign(make_renewal_request(folder), edge_id("edge-7"))

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(durable.os, "fsync", full)
    with pytest.raises(IdentityError, match="No space left"):
        folder.replace_certificate(new)
    assert folder.load().cert_pem == before
    assert len(list(folder.path.iterdir())) == 3


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(IdentityError, match="cannot be made"):
        IdentityFolder(tmp_path / "file" / "identity").save(make_key(), b"", b"")
