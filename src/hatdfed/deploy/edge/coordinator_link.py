"""The way to the coordinator, which changes when that has been away."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from hatdfed.deploy.protocol import hatdfed_pb2 as pb

CALL_SECONDS = 20.0
REFUSALS = {
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.UNIMPLEMENTED,
}


class CoordinatorLink:
    """Whoever has something to say uses the line as it is at that format_time."""

    def __init__(self) -> None:
        self.stub: Any = None
        self.epoch = 0
        self.refusal = ""
        self.is_refused = asyncio.Event()

    async def give_up(self, t: int, peer: int) -> None:
        """Say that a peer is called no more in round t, so that it waits for nothing."""
        await self.ask("Reached", pb.Reachable(epoch=self.epoch, lost=[peer], round=t))

    async def ask(self, verb: str, message: Any, seconds: float = CALL_SECONDS) -> Any:
        """The answer, or None while the coordinator is away; that this edge is unwanted is kept for all to see."""
        if self.stub is None:
            return None
        try:
            return await getattr(self.stub, verb)(message, timeout=seconds)
        except grpc.aio.AioRpcError as error:
            if error.code() in REFUSALS:
                self.refusal = str(error.details())
                self.is_refused.set()
        except grpc.aio.UsageError:
            return None  # the line was hung up, and there is no new one yet
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return None  # the line was hung up in the middle of the call
        return None
