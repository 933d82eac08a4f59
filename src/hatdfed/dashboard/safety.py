"""Which requests are answered, and what a browser may do with the answers.

The dashboard has no password, so by default only this machine can reach it. Other pages in the same browser must not
read it either: a page elsewhere could point its own host name at 127.0.0.1 (DNS rebinding), so the host name of every
request is checked.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import socket

from starlette.datastructures import MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_EVERYWHERE = ("0.0.0.0", "::", "")  # noqa: S104 (compared with, not bound to)

# Plotly clears styles of its elements by an empty style attribute, which browsers count as inline style. The empty one
# is allowed by its hash; any other, and style elements and scripts inside a page, are not.
_NOTHING = base64.b64encode(hashlib.sha256(b"").digest()).decode()
POLICY = (
    f"default-src 'none'; script-src 'self'; style-src 'self'; style-src-attr 'unsafe-hashes' 'sha256-{_NOTHING}'; "
    "img-src 'self' data:; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


def is_local(host: str) -> bool:
    """Return whether only this machine can reach a server that listens at this host."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_allowed_name(name: str, listens_at: str) -> bool:
    """Return whether a request may use this host name: one that only this machine or its owner can have given it.

    >>> is_allowed_name("localhost", "127.0.0.1"), is_allowed_name("evil.example", "127.0.0.1")
    (True, False)
    """
    if name in LOCAL_NAMES or name == listens_at.strip("[]").lower():
        return True
    if listens_at.strip("[]") not in _EVERYWHERE:
        return False
    # A server that listens everywhere cannot know all its names, but nobody can point an IP address elsewhere.
    return _is_ip_address(name) or name == socket.gethostname().lower()


def host_name(header: str) -> str:
    """Return the name in a Host header, without its port.

    >>> host_name("localhost:8050"), host_name("[::1]:8050")
    ('localhost', '::1')
    """
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower()


def _is_ip_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Guard:
    """Middleware that refuses all but GET requests to an allowed host name, and adds the headers above to answers."""

    def __init__(self, app: ASGIApp, *, listens_at: str) -> None:
        self._app = app
        self._listens_at = listens_at

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                is_static = scope["path"].startswith("/static/")
                headers.setdefault("Cache-Control", "no-cache" if is_static else "no-store")
            await send(message)

        await (self._refusal(scope) or self._app)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        if scope["method"] != "GET":
            return PlainTextResponse(
                "This dashboard is read-only: it answers GET requests only.", 405, {"Allow": "GET"}
            )
        names = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if len(names) != 1 or not is_allowed_name(host_name(names[0]), self._listens_at):
            return PlainTextResponse("This host name is not allowed. Use the address that hatdfed has printed.", 421)
        return None
