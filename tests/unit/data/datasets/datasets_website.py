"""A web server on this machine that can be told to misbehave."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler


@dataclass
class Website:
    """What the server offers, how it behaves, and what it was asked for."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    honours_range: bool = True
    cuts: list[int] = field(default_factory=list)  # body bytes after which each answer in turn is cut off
    statuses: list[int] = field(default_factory=list)  # what each request in turn is refused with
    content_range: str | None = None  # what a partial answer claims to be, if not the truth
    ranges: list[str | None] = field(default_factory=list)
    bytes_sent: list[int] = field(default_factory=list)


def handler_for(site: Website) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers["Range"]
            site.ranges.append(asked)
            body = site.files.get(self.path.removeprefix("/"))
            if site.statuses:
                self.send_error(site.statuses.pop(0))
            elif body is None:
                self.send_error(404)
            elif asked and site.honours_range:
                self._send_from(int(re.fullmatch(r"bytes=(\d+)-", asked)[1]), body)
            else:
                self._send(200, {}, body)

        def _send_from(self, start: int, body: bytes) -> None:
            if start >= len(body):
                self.send_error(416)
                return
            truth = f"bytes {start}-{len(body) - 1}/{len(body)}"
            self._send(206, {"Content-Range": site.content_range or truth}, body[start:])

        def _send(self, status: int, headers: dict[str, str], body: bytes) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            sent = body[: site.cuts.pop(0)] if site.cuts else body
            site.bytes_sent.append(len(sent))  # first: once it has read them, a test may look at once
            self.wfile.write(sent)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    return Handler
