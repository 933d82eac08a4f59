"""Clocks that are wrong: a command or a start with a skewed clock must not lock the coordinator out."""

import sys
from datetime import UTC, datetime, timedelta

import pytest

from hatdfed.cli import operate
from hatdfed.cli.app import main
from hatdfed.deploy.identity.certificates import make_csr, make_key
from hatdfed.deploy.identity.identity_store import GRACE, open_identity_store
from hatdfed.deploy.identity.names import edge_id
from hatdfed.errors import IdentityError

DAY = timedelta(days=1)


def call_main():
    with pytest.raises(SystemExit) as caught:
        main()
    return int(caught.value.code or 0)


@pytest.fixture
def clock(monkeypatch):
    """Sets the clock ahead or back, for all that deals with identities."""

    class Skewed(datetime):
        skew = timedelta(0)

        @classmethod
        def now(cls, zone=None):
            return datetime.now(zone) + cls.skew

    for module in ("authority", "identity_store", "files"):
        monkeypatch.setattr(f"hatdfed.deploy.identity.{module}.datetime", Skewed)

    def set_clock(skew):
        Skewed.skew = skew

    return set_clock


def test_an_operators_command_with_a_wrong_clock_signs_nothing(identity_store, clock, monkeypatch, capsys):
    async def call(endpoints, coordinator, ask):
        endpoints.identity.load()
        return {}

    monkeypatch.setattr(operate, "_call", call)
    monkeypatch.setattr(sys, "argv", ["hatdfed", "stop", "--ca", str(identity_store.authority.folder)])
    before = identity_store.identity.cert_file.read_bytes()
    clock(21 * DAY)
    assert call_main() == 0
    assert identity_store.identity.cert_file.read_bytes() == before
    clock(31 * DAY)
    assert call_main() == 2
    assert "Check the clock" in " ".join(capsys.readouterr().err.split())
    assert identity_store.identity.cert_file.read_bytes() == before


def test_a_coordinators_certificate_from_the_future_is_signed_anew(identity_store, clock, caplog):
    clock(22 * DAY)  # the coordinator starts, and its certificate is due
    identity_store.refresh()
    clock(timedelta(0))
    assert identity_store.identity.find_refusal().reason == "too-early"
    open_identity_store(identity_store.authority.folder).refresh()
    assert identity_store.identity.find_refusal() is None
    assert identity_store.identity.expires < datetime.now(UTC) + 31 * DAY
    assert "it is signed anew" in caplog.text


def test_a_clock_far_ahead_does_not_renew_without_force(identity_store, clock):
    before = identity_store.identity.cert_file.read_bytes()
    clock(30 * DAY + GRACE + DAY)
    with pytest.raises(IdentityError, match="hatdfed ca renew --force") as caught:
        identity_store.refresh()
    assert caught.value.reason == "clock"
    assert identity_store.identity.cert_file.read_bytes() == before
    clock(timedelta(0))
    assert identity_store.refresh().find_refusal() is None
    clock(30 * DAY + GRACE + DAY)
    assert identity_store.refresh(force=True).find_refusal() is None


def test_nothing_is_signed_at_a_time_before_the_authority(identity_store, clock):
    clock(-365 * DAY)
    for sign in (identity_store.refresh, lambda: identity_store.renew(edge_id("edge-7"), make_csr(make_key()))):
        with pytest.raises(IdentityError, match="Set the clock"):
            sign()


def test_the_command_renews_when_it_is_due_or_forced(identity_store, monkeypatch, capsys):
    arguments = ["hatdfed", "ca", "renew", "--ca", str(identity_store.authority.folder)]
    before = identity_store.identity.cert_file.read_bytes()
    monkeypatch.setattr(sys, "argv", arguments)
    assert call_main() == 0
    assert identity_store.identity.cert_file.read_bytes() == before
    monkeypatch.setattr(sys, "argv", [*arguments, "--force"])
    assert call_main() == 0
    assert identity_store.identity.cert_file.read_bytes() != before
    assert "certificate expires" in " ".join(capsys.readouterr().out.split())
