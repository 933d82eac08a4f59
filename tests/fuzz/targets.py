"""Every reader of what others wrote."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from tests.fuzz.files import FILES
from tests.fuzz.messages import MESSAGES
from tests.fuzz.peers import PEERS

TARGETS = [*MESSAGES, *PEERS, *FILES]


@contextmanager
def quiet_logs() -> Iterator[None]:
    """Refusals are logged one by one, which nobody wants to read here."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
