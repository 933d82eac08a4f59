"""Sets up logging: text at a terminal, else one JSON object per line. No code logs secrets."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "source": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def log_to_stderr(*, as_json: bool | None = None, level: int = logging.INFO) -> None:
    """Send hatdfed's log to standard error, as JSON unless that is a terminal or `as_json` says otherwise."""
    handler = logging.StreamHandler(sys.stderr)
    wants_json = not sys.stderr.isatty() if as_json is None else as_json
    text = logging.Formatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")
    handler.setFormatter(_JsonFormatter() if wants_json else text)
    logger = logging.getLogger("hatdfed")
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(level)
