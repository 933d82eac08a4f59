"""Limits how many lines a minute others can cause in a log, so that nobody can fill a disk or hide something in noise.

Records are told apart by kind (logger and message before its arguments are filled in) and by whom they are about: the
attribute `node` of a record, a name from a certificate, or else `address`. Limited are records about somebody, and all
warnings and errors. What is left out is counted, and told in one line for each kind at the end of the minute.
"""

from __future__ import annotations

import ipaddress
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable

WINDOW_SECONDS = 60.0
LINES_ABOUT_ONE = 5  # of one kind, in a window
LINES_OF_A_KIND = 30
_MAX_NAMES = 1000  # that are told apart, of one kind
_NAMED_IN_SUMMARY = 3
_OTHERS = "others"


class LimitedHandler(logging.Handler):
    """Passes records on to another handler until a limit is reached."""

    def __init__(self, target: logging.Handler, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._target = target
        self._clock = clock
        self._kinds: dict[tuple[str, str], _Kind] = {}  # in this window
        self._window_end = 0.0
        self._timer: threading.Timer | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Pass a record on, or count it."""
        if self._clock() >= self._window_end:
            self._end_window()
        who = _who(record)
        if not who and record.levelno < logging.WARNING:
            self._target.handle(record)
            return
        kind = self._kinds.setdefault((record.name, str(record.msg)), _Kind())
        if kind.admits(who):
            self._target.handle(record)
        else:
            kind.leave_out(record, who)
            self._start_timer()

    def summarise(self) -> None:
        """Tell what was left out since the last time."""
        with self.lock or threading.RLock():
            self._end_window()

    def close(self) -> None:
        """Tell what was left out, and close the handler."""
        self.summarise()
        self._target.close()
        super().close()

    def _end_window(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        kinds, self._kinds = self._kinds, {}
        self._window_end = self._clock() + WINDOW_SECONDS
        for kind in kinds.values():
            if (summary := kind.summarise()) is not None:
                self._target.handle(summary)

    def _start_timer(self) -> None:
        """Make sure that the window ends even if nothing more is logged."""
        if self._timer is None:
            self._timer = threading.Timer(max(0.0, self._window_end - self._clock()), self.summarise)
            self._timer.daemon = True
            self._timer.start()


class _Kind:
    """The records of one kind in one window."""

    def __init__(self) -> None:
        self._lines: Counter[str] = Counter()  # by whom they are about
        self._left_out: Counter[str] = Counter()
        self._last: logging.LogRecord | None = None

    def admits(self, who: str) -> bool:
        """Return whether one more line may be written, and count it if so."""
        if self._lines.total() >= LINES_OF_A_KIND or (who and self._lines[who] >= LINES_ABOUT_ONE):
            return False
        self._lines[who] += 1
        return True

    def leave_out(self, record: logging.LogRecord, who: str) -> None:
        """Count a record that is not written."""
        known = who in self._left_out or len(self._left_out) < _MAX_NAMES
        self._left_out[who if known else _OTHERS] += 1
        self._last = record

    def summarise(self) -> logging.LogRecord | None:
        """Make a record that stands for all that were left out."""
        if self._last is None:
            return None
        names = [f"{who} {count}" for who, count in self._left_out.most_common(_NAMED_IN_SUMMARY) if who]
        more = len(self._left_out) - len(names)
        about = f" ({', '.join(names)}{f', and {more} others' if more else ''})" if names else ""
        text = f"{self._left_out.total()} more in the last minute{about}, the last: {self._last.getMessage()}"
        return logging.LogRecord(self._last.name, self._last.levelno, "", 0, text, None, None)


def _who(record: logging.LogRecord) -> str:
    return str(getattr(record, "node", "") or _group(str(getattr(record, "address", ""))))


def _group(address: str) -> str:
    """Return what one caller can hardly change: an IPv4 address, or the network of an IPv6 address.

    >>> _group("2001:db8::1:2")
    '2001:db8::/64'
    >>> _group("192.0.2.7")
    '192.0.2.7'
    """
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is None:
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(getattr(found, "ipv4_mapped", None) or found)
