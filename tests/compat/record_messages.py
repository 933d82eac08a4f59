"""Records what edges and a coordinator say to each other, as bytes: a proxy between them, in plain text.

`python tests/compat/record_messages.py LISTEN COORDINATOR FILE.json` until it is stopped; heartbeats are left out.
"""

import asyncio
import json
import signal
import sys
from functools import partial
from pathlib import Path

import grpc

_STREAMS = ("/hatdfed.v1.Coordination/Watch",)
_LEFT_OUT = ("/hatdfed.v1.Coordination/Beat",)


class Proxy(grpc.GenericRpcHandler):
    """Passes every call on, under the name of its caller, and keeps both sides of it."""

    def __init__(self, coordinator):
        self._coordinator = coordinator
        self._channels = {}
        self.calls = []

    def service(self, details):
        method = details.method
        if method in _STREAMS:
            return grpc.unary_stream_rpc_method_handler(partial(self._stream, method))
        return grpc.unary_unary_rpc_method_handler(partial(self._pass_on, method))

    async def _pass_on(self, method, request, context):
        entry = self._begin(method, request, context)
        answer = await self._channel(entry["from"]).unary_unary(method)(request)
        entry["answers"].append(answer.hex())
        return answer

    async def _stream(self, method, request, context):
        entry = self._begin(method, request, context)
        call = self._channel(entry["from"]).unary_stream(method)(request)
        await context.send_initial_metadata(await call.initial_metadata())
        async for answer in call:
            entry["answers"].append(answer.hex())
            yield answer

    def _begin(self, method, request, context):
        agent = dict(context.invocation_metadata())["user-agent"].split()[0]
        entry = {"from": agent, "method": method.rpartition("/")[2], "request": request.hex(), "answers": []}
        if method not in _LEFT_OUT:
            self.calls.append(entry)
        return entry

    def _channel(self, agent):
        if agent not in self._channels:
            options = [("grpc.primary_user_agent", agent)]
            self._channels[agent] = grpc.aio.insecure_channel(self._coordinator, options=options)
        return self._channels[agent]


async def main(listen, coordinator, out):
    proxy, server, stop = Proxy(coordinator), grpc.aio.server(), asyncio.Event()
    server.add_generic_rpc_handlers((proxy,))
    server.add_insecure_port(listen)
    await server.start()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    await server.stop(0)
    Path(out).write_text(json.dumps(proxy.calls, indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
