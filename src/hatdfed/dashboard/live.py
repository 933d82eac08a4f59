"""Server-sent events: a page is told when there is something new. Streams are few, and end by themselves."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

Look = Callable[[], Awaitable[dict[str, Any] | None]]  # None: there is nothing to watch any more

MOST_STREAMS = 40
_LIFETIME_SECONDS = 600.0  # the browser comes back by itself
_BEAT_SECONDS = 15.0  # a comment now and then, so that a dead connection is noticed


class Streams:
    """All open streams of the dashboard."""

    def __init__(self, *, every_seconds: float = 1.0) -> None:
        self.count = 0
        self._every = every_seconds

    def answer(self, request: Request, look: Look) -> Response:
        """A stream of what `look` finds, each time it is something else."""
        if self.count >= MOST_STREAMS:
            sentence = f"{MOST_STREAMS} pages are open already. Close one, then reload."
            return PlainTextResponse(sentence, 503, {"Retry-After": "10"})
        return StreamingResponse(self._events(request, look), media_type="text/event-stream")

    async def _events(self, request: Request, look: Look) -> AsyncIterator[str]:
        self.count += 1
        try:
            yield "retry: 2000\n\n"
            end = time.monotonic() + _LIFETIME_SECONDS
            last, spoke_at = "", time.monotonic()
            while time.monotonic() < end and not await request.is_disconnected():
                found = await look()
                if found is None:
                    return
                now = json.dumps(found)
                if now != last:
                    yield f"data: {now}\n\n"
                    last, spoke_at = now, time.monotonic()
                elif time.monotonic() - spoke_at > _BEAT_SECONDS:
                    yield ": still here\n\n"
                    spoke_at = time.monotonic()
                await asyncio.sleep(self._every)
        finally:
            self.count -= 1
