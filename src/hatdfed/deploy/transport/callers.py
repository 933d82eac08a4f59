"""Who may call: role, certificate and deny list, checked at every call and again while a stream lasts.

TLS looks at a certificate only when a connection begins, and a connection may stay open for days.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Container
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from hatdfed.deploy.identity.certificates import format_time
from hatdfed.deploy.identity.names import COORDINATOR_ROLE
from hatdfed.deploy.transport.endpoints import Caller, Endpoints
from hatdfed.errors import IdentityError

DENIED = "denied"  # the reason of refusal that does not pass by itself
WRONG_ROLE = "wrong-role"
T = TypeVar("T")


@dataclass(frozen=True)
class CallerCheck:
    """Decides who may call a server of this process."""

    endpoints: Endpoints
    denied: Container[str] = ()  # names, as of now: a list that changes while calls are in progress

    def identify(self, context: Any, *roles: str) -> Caller:
        """Return who calls; raises `IdentityError` if that caller may not, or not in its role."""
        caller = self.endpoints.identify_caller(context)
        if caller.node.role not in roles:
            wanted = " or ".join(roles)
            raise IdentityError(WRONG_ROLE, f"{caller.node} is no {wanted}, so it may not ask for this.")
        self.check(caller)
        return caller

    def check(self, caller: Caller) -> None:
        """Raise `IdentityError` if a caller may call no more: for streams, which may outlive a certificate."""
        if caller.expires is not None and (now := datetime.now(UTC)) > caller.expires:
            raise IdentityError(
                "expired",
                f"The certificate of {caller.node} expired at {format_time(caller.expires)}, and it is "
                f"{format_time(now)} now.",
            )
        if caller.node.role != COORDINATOR_ROLE and caller.node.name in self.denied:
            raise IdentityError(DENIED, f"{caller.node.name} is on the deny-list.")

    async def checked(self, stream: AsyncIterator[T], caller: Caller) -> AsyncIterator[T]:
        """Pass a caller's stream on, as long as the caller may call."""
        async for item in stream:
            self.check(caller)
            yield item
