"""When a member may renew its certificate: signing is expensive and waits for the disk, which new nodes need, too."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hatdfed.deploy.identity.certificates import format_time
from hatdfed.deploy.transport.endpoints import Caller

_LONGEST_PAUSE = timedelta(minutes=1)  # between two renewals of one member: an answer that was lost is asked for again
_PAUSE_SHARE = 0.01  # of a certificate's lifetime, where that is less


class RenewalLimit:
    """Knows when each member has last asked."""

    def __init__(self, lifetime: timedelta) -> None:
        self._pause = min(_LONGEST_PAUSE, _PAUSE_SHARE * lifetime)
        self._asked: dict[str, datetime] = {}

    def find_refusal(self, caller: Caller, now: datetime | None = None) -> str | None:
        """Note that a member asks for a renewal; returns why it has to wait, or None if it may renew.

        What counts is the certificate that it shows, not the newest that was signed: that one may have been lost.
        """
        name, at = caller.node.name, now or datetime.now(UTC)
        if caller.renews is not None and at < caller.renews:
            return f"The certificate of {name} is not due for renewal before {format_time(caller.renews)}."
        asked = self._asked.get(name)
        if asked is not None and asked <= at < asked + self._pause:
            return f"{name} has just renewed its certificate; it may do so again at {format_time(asked + self._pause)}."
        self._asked[name] = at
        return None
