"""Sets up logging: text at a terminal, else one JSON object per line; to standard error or to a file that is rotated.

No code logs secrets; what looks like one all the same is blacked out here.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path

from hatdfed.deploy.log_limit import LimitedHandler
from hatdfed.errors import ConfigError

OLD_FILES = 5  # that are kept beside the newest
_LOGGERS = ("hatdfed", "asyncio", "grpc")  # the others report what went wrong in calls of strangers, too
_SECRET = re.compile(r"hatdfed_[A-Za-z0-9_-]{40,}|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*-----|$)", re.S)
_EXTRA = ("node", "address")  # whom a record is about
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_LONGEST = 2000  # characters of a message


def _clean(message: str) -> str:
    """Escape line ends and other control characters, and cut what is long: peers choose parts of some messages."""
    cut = message if len(message) <= _LONGEST else f"{message[:_LONGEST]} [{len(message) - _LONGEST} more characters]"
    return _CONTROL.sub(lambda found: found.group().encode("unicode_escape").decode(), cut)


class _TextFormatter(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging names it)
        record.message = _clean(record.message)
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        return _SECRET.sub("[secret]", super().format(record))


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "source": record.name,
            "message": _SECRET.sub("[secret]", _clean(record.getMessage())),
            **{name: found for name in _EXTRA if (found := getattr(record, name, ""))},
        }
        if record.exc_info:
            entry["traceback"] = _SECRET.sub("[secret]", self.formatException(record.exc_info))
        return json.dumps(entry, ensure_ascii=False)


class _LogFile(RotatingFileHandler):
    """A file that is set aside when it is full. A disk that is full must not end the process, nor fill its stderr."""

    _failed_before = _failed_now = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record; a failure is told once, until writing works again."""
        self._failed_now = False
        super().emit(record)
        self._failed_before = self._failed_now

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (logging names it)
        """Tell why a record could not be written, where logging itself would print a traceback for every record."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
            return
        self._failed_now = True
        if not self._failed_before:
            sys.stderr.write(f"warning: the log {self.baseFilename} cannot be written ({error.strerror})\n")


def set_up_logs(
    file: Path | None = None, *, megabytes: int = 10, as_json: bool | None = None, level: int = logging.INFO
) -> None:
    """Send the log to a file, or to standard error; as JSON unless that is a terminal or `as_json` says otherwise."""
    handler: logging.Handler = logging.StreamHandler(sys.stderr) if file is None else _open_file(file, megabytes)
    wants_json = (file is not None or not sys.stderr.isatty()) if as_json is None else as_json
    text = _TextFormatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S" if file is None else None)
    handler.setFormatter(_JsonFormatter() if wants_json else text)
    limited = LimitedHandler(handler)
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [limited], False
    logging.getLogger("hatdfed").setLevel(level)


def _open_file(file: Path, megabytes: int) -> logging.Handler:
    try:
        return _LogFile(file, maxBytes=megabytes << 20, backupCount=OLD_FILES, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"The log file {file} cannot be opened ({error.strerror}). Choose another.") from None
