"""How much others can write into a log, what never stands in it, and how it is rotated."""

import errno
import json
import logging
import os
import secrets

import pytest

from hatdfed.deploy import log_limit
from hatdfed.deploy.edge.presence import CoordinatorPresence
from hatdfed.deploy.identity.certificates import key_to_pem, make_key
from hatdfed.deploy.identity.identity_store import create_identity_store
from hatdfed.deploy.identity.join_server import JoinServer
from hatdfed.deploy.log_limit import LimitedHandler
from hatdfed.deploy.logs import OLD_FILES, _LogFile, set_up_logs
from hatdfed.errors import ConfigError, IdentityError


class Kept(logging.Handler):
    """Keeps all lines."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


@pytest.fixture
def kept():
    return Kept()


@pytest.fixture
def clock():
    return [0.0]


@pytest.fixture
def log(kept, clock):
    logger = logging.getLogger("hatdfed.test_logs")
    handler = LimitedHandler(kept, clock=lambda: clock[0])
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.INFO)
    yield logger
    logger.handlers = []
    handler.close()


@pytest.fixture
def restored_loggers():
    """The loggers of a process as they were."""
    loggers = [logging.getLogger(name) for name in ("hatdfed", "asyncio", "grpc")]
    before = [(logger.handlers, logger.propagate, logger.level) for logger in loggers]
    yield
    for handler in {handler for logger in loggers for handler in logger.handlers}:
        handler.close()
    for logger, (handlers, propagate, level) in zip(loggers, before, strict=True):
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


def test_one_member_cannot_fill_the_log(log, kept, clock):
    for number in range(5000):
        log.warning("refused: %s", f"report {number}", extra={"node": "edge-3"})
    log.warning("refused: %s", "something of another one", extra={"node": "edge-4"})
    assert len(kept.lines) == log_limit.LINES_ABOUT_ONE + 1
    assert kept.lines[-1] == "refused: something of another one"
    clock[0] += 61
    log.info("round 7")
    assert kept.lines[-2] == "4995 more in the last minute (edge-3 4995), the last: refused: report 4999"
    assert kept.lines[-1] == "round 7"


def test_many_strangers_cannot_fill_the_log(log, kept, clock):
    for number in range(2000):
        log.warning("Refused %s", number, extra={"address": f"2001:db8:{number:x}::1"})
    assert len(kept.lines) == log_limit.LINES_OF_A_KIND
    log.warning("the disk is full")  # another kind has its own limit
    assert kept.lines[-1] == "the disk is full"
    log.handlers[0].summarise()
    assert kept.lines[-1].startswith("1970 more in the last minute (")
    assert "others), the last: Refused 1999" in kept.lines[-1]


def test_a_network_counts_as_one_stranger(log, kept):
    for number in range(100):
        log.warning("Refused %s", number, extra={"address": f"2001:db8::{number:x}"})
    assert len(kept.lines) == log_limit.LINES_ABOUT_ONE


def test_what_was_left_out_is_told_even_if_nothing_more_happens(kept, monkeypatch):
    monkeypatch.setattr(log_limit, "WINDOW_SECONDS", 0.05)
    handler = LimitedHandler(kept)
    for _ in range(7):
        handler.handle(_record("no", "b"))
    handler._timer.join(2)
    assert kept.lines == ["no"] * 5 + ["2 more in the last minute (b 2), the last: no"]


def _record(text, node):
    record = logging.LogRecord("a", logging.WARNING, "", 0, text, None, None)
    record.node = node
    return record


def test_rounds_are_never_left_out(log, kept):
    for number in range(500):
        log.info("round %d", number)
    assert len(kept.lines) == 500


def test_an_outage_is_a_few_lines(caplog):
    now = [0.0]
    presence = CoordinatorPresence(clock=lambda: now[0])
    with caplog.at_level(logging.INFO, "hatdfed"):
        while now[0] < 64 * 3600:  # a weekend
            presence.mark_away("the coordinator is away (UNAVAILABLE)")
            now[0] += 5.0
        presence.mark_joined()
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) < 80
    assert lines[0] == "the coordinator is away (UNAVAILABLE); trying again"
    assert lines[1] == "the coordinator is away (UNAVAILABLE), for 60 s now; still trying"
    assert lines[2] == "the coordinator is away (UNAVAILABLE), for 180 s now; still trying"
    assert lines[-1] == "the coordinator is back after 230400 s"


def test_secrets_are_blacked_out(tmp_path, restored_loggers):
    set_up_logs(tmp_path / "log")
    token, key = f"hatdfed_{secrets.token_urlsafe(32)}", key_to_pem(make_key()).decode()
    log = logging.getLogger("hatdfed.somewhere")
    log.warning("a token: %s.", token)
    try:
        raise ValueError(key)
    except ValueError:
        log.exception("a key")
    text = (tmp_path / "log").read_text()
    assert token not in text
    assert key.splitlines()[1] not in text
    assert json.loads(text.splitlines()[0])["message"] == "a token: [secret]."
    assert "[secret]" in json.loads(text.splitlines()[1])["traceback"]


def test_refusals_of_strangers_are_few_lines_that_name_them(play, tmp_path, restored_loggers):
    set_up_logs(tmp_path / "log")
    store = create_identity_store(tmp_path / "ca")

    async def scene():
        async with JoinServer(store, host="127.0.0.1", port=0) as server:
            for _ in range(200):
                server._refuse("a new edge", "192.0.2.9", IdentityError("unknown-token", "There is no such token."))
            return server.refusals

    assert play(scene()).total() == 200
    logging.getLogger("hatdfed").handlers[0].summarise()
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert len(lines) == log_limit.LINES_ABOUT_ONE + 1
    assert lines[0]["address"] == "192.0.2.9"
    assert "195 more in the last minute (192.0.2.9 195)" in lines[-1]["message"]


def test_a_log_file_is_rotated(tmp_path, restored_loggers):
    set_up_logs(tmp_path / "log", megabytes=1)
    log = logging.getLogger("hatdfed.somewhere")
    for number in range(7 * 1024):
        log.info("%d %s", number, "x" * 1024)
    files = sorted(tmp_path.glob("log*"))
    assert len(files) == 1 + OLD_FILES
    assert sum(file.stat().st_size for file in files) <= (1 + OLD_FILES) << 20
    assert f'"{7 * 1024 - 1} x' in (tmp_path / "log").read_text()


def test_a_log_file_that_cannot_be_opened_is_named(tmp_path, restored_loggers):
    with pytest.raises(ConfigError, match=r"The log file .*/no/log cannot be opened \(No such file or directory\)"):
        set_up_logs(tmp_path / "no" / "log")


def test_a_full_disk_is_told_once_until_it_works_again(tmp_path, capsys, monkeypatch):
    handler = _LogFile(tmp_path / "log")
    full = [True]

    def flush():
        if full[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(handler, "flush", flush)
    for number in range(9):
        full[0] = number not in (4, 5)
        handler.handle(logging.LogRecord("a", logging.INFO, "", 0, f"line {number}", None, None))
    full[0] = False
    handler.close()
    line = f"warning: the log {tmp_path / 'log'} cannot be written (No space left on device)\n"
    assert capsys.readouterr().err == 2 * line


@pytest.mark.parametrize("as_json", [False, True])
def test_what_a_peer_says_is_one_line_of_bounded_length(tmp_path, restored_loggers, as_json):
    path = tmp_path / "log"
    set_up_logs(path, as_json=as_json)
    logging.getLogger("hatdfed").warning("round 1 did not reach edge-1: %s", "a\nb\x1b[2J\u2028c" + "x" * 60_000)
    (line,) = path.read_text(encoding="utf-8").split("\n")[:-1]
    assert "\x1b" not in line
    assert "\u2028" not in line
    assert "more characters]" in line
    assert len(line) < 3000
