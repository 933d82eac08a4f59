"""Server-sent events, which tell a page that something has changed; their number and lifetime are bounded."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

ReadNews = Callable[[], Awaitable[dict[str, Any] | None]]  # None: there is nothing left to watch

MAX_STREAMS = 40
_LIFETIME_SECONDS = 600.0  # after which the browser connects again by itself
_BEAT_SECONDS = 15.0  # between comments by which a dead connection is noticed


class EventStreams:
    """All open event streams of the dashboard."""

    def __init__(self, *, every_seconds: float = 1.0) -> None:
        self.count = 0
        self._every = every_seconds

    def open(self, request: Request, read: ReadNews) -> Response:
        """Stream what `read` returns whenever it has changed."""
        if self.count >= MAX_STREAMS:
            sentence = f"{MAX_STREAMS} pages are open already. Close one, then reload."
            return PlainTextResponse(sentence, 503, {"Retry-After": "10"})
        return StreamingResponse(self._events(request, read), media_type="text/event-stream")

    async def _events(self, request: Request, read: ReadNews) -> AsyncIterator[str]:
        self.count += 1
        try:
            yield "retry: 2000\n\n"
            end = time.monotonic() + _LIFETIME_SECONDS
            last, sent_at = "", time.monotonic()
            while time.monotonic() < end and not await request.is_disconnected():
                news = await read()
                if news is None:
                    return
                data = json.dumps(news)
                if data != last:
                    yield f"data: {data}\n\n"
                    last, sent_at = data, time.monotonic()
                elif time.monotonic() - sent_at > _BEAT_SECONDS:
                    yield ": still here\n\n"
                    sent_at = time.monotonic()
                await asyncio.sleep(self._every)
        finally:
            self.count -= 1
