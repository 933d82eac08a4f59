"""Tokens that work once, and a list of those who are locked out."""

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest

from hatdfed.deploy.identity.deny import DenyList
from hatdfed.deploy.identity.tokens import TokenStore
from hatdfed.errors import IdentityError

HOUR = timedelta(hours=1)


@pytest.fixture
def tokens(tmp_path):
    return TokenStore(tmp_path / "tokens.sqlite")


def refused(tokens, token, reason, now=None):
    with pytest.raises(IdentityError) as caught:
        tokens.redeem(token, now)
    assert token not in str(caught.value)
    return caught.value.reason == reason


def test_a_token_gives_its_node_once(tokens):
    token = tokens.create("edge-7", HOUR)
    assert tokens.redeem(token) == "edge-7"
    assert refused(tokens, token, "used-token")


def test_a_used_token_stays_used_after_a_restart(tokens):
    token = tokens.create("edge-7", HOUR)
    tokens.redeem(token)
    assert refused(TokenStore(tokens.path), token, "used-token")


def test_an_unknown_and_an_expired_token_are_told_apart(tokens):
    token = tokens.create("edge-7", HOUR)
    assert refused(tokens, "hatdfed_guess", "unknown-token")
    assert refused(tokens, "\ud800", "unknown-token")
    assert refused(tokens, token, "expired-token", datetime.now(UTC) + HOUR)
    assert tokens.redeem(token) == "edge-7"


def test_of_many_who_redeem_at_once_one_wins(tokens):
    token, ready = tokens.create("edge-7", HOUR), threading.Barrier(8)

    def attempt(_):
        ready.wait()
        try:
            return tokens.redeem(token)
        except IdentityError as error:
            return error.reason

    with ThreadPoolExecutor(8) as pool:
        ends = sorted(pool.map(attempt, range(8)))
    assert ends == ["edge-7"] + ["used-token"] * 7


def test_the_token_itself_is_not_kept(tokens):
    token = tokens.create("edge-7", HOUR)
    secret = token.removeprefix("hatdfed_")
    assert len(secret) >= 43
    for file in tokens.path.parent.iterdir():
        assert secret.encode() not in file.read_bytes()


def test_tokens_are_listed_with_their_state_and_old_ones_go(tokens):
    now = datetime.now(UTC)
    long_ago = now - timedelta(days=9)
    tokens.create("ancient", HOUR, long_ago)
    tokens.create("late", HOUR, now - timedelta(days=1))
    tokens.redeem(tokens.create("used", HOUR))
    tokens.create("open", HOUR)
    assert [(info.node, info.state(now)) for info in tokens.list()] == [
        ("late", "expired"),
        ("used", "used"),
        ("open", "open"),
    ]


@pytest.mark.parametrize("ttl", [timedelta(0), timedelta(seconds=-1), timedelta(days=31)])
def test_a_token_lives_for_a_bounded_time(tokens, ttl):
    with pytest.raises(IdentityError, match="at most 30 days"):
        tokens.create("edge-7", ttl)


def test_a_token_is_for_a_name_that_can_be(tokens):
    with pytest.raises(IdentityError, match="Choose a name"):
        tokens.create("Edge 7", HOUR)


def test_a_broken_store_is_a_sentence(tokens):
    tokens.path.write_bytes(b"nonsense" * 100)
    with pytest.raises(IdentityError, match="cannot be read or written"):
        tokens.list()


@pytest.mark.parametrize("value", ["'soon'", "x'00'", "1e300", "-1e18"])
def test_a_damaged_row_of_the_store_is_a_sentence(tokens, value):
    tokens.create("edge-1", HOUR)
    with closing(sqlite3.connect(tokens.path)) as database, database:
        database.execute(f"UPDATE tokens SET expires = {value}")  # noqa: S608 (of this test)
    with pytest.raises(IdentityError, match=r"cannot be read or written \(an entry is damaged\)"):
        tokens.list()


@pytest.fixture
def denied(tmp_path):
    return DenyList(tmp_path / "denied.txt")


def test_a_node_is_locked_out_and_let_in_again(denied):
    assert "edge-7" not in denied
    denied.add("edge-7")
    denied.add("edge-7")
    assert denied.path.read_text().count("edge-7") == 1
    with pytest.raises(IdentityError, match="hatdfed ca allow edge-7"):
        denied.check("edge-7")
    denied.remove("edge-7")
    denied.check("edge-7")


def test_what_another_process_writes_counts(denied):
    DenyList(denied.path).add("edge-7")
    assert "edge-7" in denied
    denied.path.unlink()
    assert "edge-7" not in denied


def test_comments_are_allowed_and_kept(denied, caplog):
    denied.path.write_bytes(b"# stolen\nedge-1 # in May\n\n  edge-2\nEdge-3\nlast\xff # \xff")
    assert denied.names() == {"edge-1", "edge-2"}
    assert "Line 5 of the deny list" in caplog.text
    denied.add("edge-4")
    denied.remove("edge-2")
    assert denied.path.read_bytes() == b"# stolen\nedge-1 # in May\n\nEdge-3\nlast\xff # \xff\nedge-4\n"


def test_a_list_that_cannot_be_read_is_not_an_empty_one(denied, caplog):
    denied.add("edge-7")
    assert "edge-7" in denied
    denied.path.unlink()
    denied.path.mkdir()
    assert "edge-7" in denied
    assert "the names read before still count" in caplog.text
    with pytest.raises(IdentityError, match="cannot be read"):
        DenyList(denied.path)


def test_two_who_change_the_list_at_once_lose_nothing(denied):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: DenyList(denied.path).add(f"edge-{number}"), range(24)))
    assert len(denied.names()) == 24
