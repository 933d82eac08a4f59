"""A simulated network in place of gRPC: messages are delayed, overtake each other, and are lost with their connection.

Calls run the real services with the real messages, as bytes. As with gRPC over TCP, the messages of one call keep their
order and a connection that is lost ends all calls on it; whether the other side has acted by then is not known. Calls
without an answer may also be executed twice, which gRPC alone does not do.
"""

import asyncio
import contextlib
import contextvars
import random
from collections import deque
from dataclasses import dataclass, field

import grpc

from hatdfed.deploy.edge.transfers import SentFrames
from hatdfed.deploy.identity.names import COORDINATOR, edge_id
from hatdfed.deploy.transport.endpoints import Caller

KEEPALIVE_SECONDS = 8.0  # after which a connection that carries nothing is given up
CONNECT_SECONDS = 0.02
PROCESS = contextvars.ContextVar("process", default=None)  # the simulated process that code runs in


class Crash(BaseException):
    """A simulated process dies."""


class LostError(Exception):
    """A connection was lost."""


class AbortedError(Exception):
    """A service refused a call."""


@dataclass(eq=False)
class Process:
    """One start of a coordinator or an edge: its tasks die with it."""

    name: str
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    is_alive: bool = True
    tasks: dict = field(default_factory=dict)  # not a set, whose order is not the same every time

    def __post_init__(self):
        self.context.run(PROCESS.set, self)

    @property
    def node(self):
        return COORDINATOR if self.name == "coordinator" else edge_id(self.name)


@dataclass
class Weather:
    """How bad the network is."""

    delay: float = 0.01  # seconds, on average
    loss: float = 0.0  # chance of a message to be lost with its connection
    repeat: float = 0.0  # chance of a call to be executed twice
    damage: float = 0.0  # chance of a chunk to arrive with another byte


class Network:
    """Who listens where, who is cut off from whom, and the calls in progress."""

    def __init__(self, loop, rng: random.Random, weather: Weather):
        self.loop, self.rng, self.weather = loop, rng, weather
        self.servers = {}  # by address
        self.calls = {}  # not a set, whose order is not the same every time
        self.cuts = {}  # by ordered pair of names: how many cuts there are
        self.errors = []  # that services raised
        self._healed = asyncio.Event()
        loop.set_task_factory(_make_task)

    # Faults.

    def cut(self, pairs):
        for pair in pairs:
            self.cuts[pair] = self.cuts.get(pair, 0) + 1
        self.loop.call_later(KEEPALIVE_SECONDS, self._give_up_idle_calls)

    def heal(self, pairs):
        for pair in pairs:
            self.cuts[pair] -= 1
            if not self.cuts[pair]:
                del self.cuts[pair]
        self._healed.set()
        self._healed = asyncio.Event()

    def is_cut(self, one, other):
        """TCP needs both directions."""
        return (one, other) in self.cuts or (other, one) in self.cuts

    def kill(self, process):
        """At once: nothing that it does from now on is seen by anybody."""
        process.is_alive = False
        for call in [call for call in self.calls if process in (call.client, call.server)]:
            call.lose()
        for address in [address for address, server in self.servers.items() if server.process is process]:
            del self.servers[address]
        for task in list(process.tasks):
            task.cancel()

    def _give_up_idle_calls(self):
        for call in list(self.calls):
            if call.server is not None and self.is_cut(call.client.name, call.server.name):
                call.lose()

    # Messages.

    async def carry(self, sender, receiver):
        """Carry one message; raises `LostError` if the connection is lost meanwhile."""
        weather, rng = self.weather, self.rng
        if weather.loss and rng.random() < weather.loss:
            raise LostError
        await asyncio.sleep(rng.expovariate(1 / weather.delay))
        if self.cuts and self.is_cut(sender.name, receiver.name):
            await self._wait_for_healing(sender, receiver)
        if not (sender.is_alive and receiver.is_alive):
            raise LostError

    async def _wait_for_healing(self, sender, receiver):
        try:
            async with asyncio.timeout(KEEPALIVE_SECONDS):
                while self.is_cut(sender.name, receiver.name):
                    await self._healed.wait()
        except TimeoutError:
            raise LostError from None

    def damage(self, frame):
        if self.weather.damage and frame.chunk and self.rng.random() < self.weather.damage:
            chunk = bytearray(frame.chunk)
            chunk[self.rng.randrange(len(chunk))] ^= 1 << self.rng.randrange(8)
            frame.chunk = bytes(chunk)


def _make_task(loop, work, context=None):
    task = asyncio.Task(work, loop=loop, context=context)
    process = PROCESS.get() if context is None else context.get(PROCESS)
    if process is not None:
        process.tasks[task] = None
        task.add_done_callback(process.tasks.pop)
    return task


class SimulatedEndpoints:
    """The interface of `Endpoints`, for one process."""

    identity = None
    connection_seconds = 600.0

    def __init__(self, network, process):
        self.network, self.process = network, process
        self.node = process.node

    def make_server(self, *, stream_seconds=None, message_bytes=None):
        return SimulatedServer(self.network, self.process)

    def listen(self, server, address):
        self.network.servers[address] = server
        return int(address.rpartition(":")[2])

    def open_channel(self, address, peer):
        return SimulatedChannel(self.network, self.process, address, peer)

    def identify_caller(self, context):
        return Caller(context.caller, None)


class SimulatedServer:
    """The interface of a gRPC server."""

    def __init__(self, network, process):
        self.network, self.process = network, process
        self.handlers = {}
        self.is_started = False

    def add_generic_rpc_handlers(self, handlers):
        """They are registered one by one."""

    def add_registered_method_handlers(self, service, handlers):
        self.handlers |= {f"/{service}/{method}": handler for method, handler in handlers.items()}

    async def start(self):
        self.is_started = True

    async def stop(self, grace):
        self.is_started = False


class SimulatedChannel:
    """The interface of a gRPC channel."""

    def __init__(self, network, process, address, peer):
        self.network, self.process, self.address, self.peer = network, process, address, peer
        self.calls = {}

    def _method(self, path, request_serializer, response_deserializer, **_):
        coding = request_serializer, response_deserializer
        return lambda request, timeout=None: Call(self, path, coding, request, timeout).answer()

    unary_unary = stream_unary = _method

    def unary_stream(self, path, request_serializer, response_deserializer, **_):
        coding = request_serializer, response_deserializer
        return lambda request, timeout=None: StreamCall(self, path, coding, request, timeout)

    async def close(self, grace=None):
        for call in list(self.calls):
            call.cancel()

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self.close()


class Context:
    """The interface of a servicer's context."""

    def __init__(self, call):
        self._call = call
        self.caller = call.client.node

    async def abort(self, code, details):
        self._call.refusal = code, details
        raise AbortedError

    async def write(self, answer):
        await self._call.send(answer)

    async def send_initial_metadata(self, _):
        await self._call.network.carry(self._call.server, self._call.client)
        self._call.begin()


class Call:
    """A call with one answer; a task in the server's process does all that happens in between."""

    def __init__(self, channel, path, coding, request, timeout):
        self.network, self.channel, self.path = channel.network, channel, path
        self.client = channel.process
        self.server = None
        self.refusal = None
        self._encode, self._decode = coding
        self._request, self._timeout = request, timeout
        self.outcome = self.network.loop.create_future()
        self._timer = None
        self._task = None
        self._begin()

    def _begin(self):
        network, server = self.network, self.network.servers.get(self.channel.address)
        network.calls[self] = self.channel.calls[self] = None
        if self._timeout is not None:
            self._timer = network.loop.call_later(self._timeout, self._end, grpc.StatusCode.DEADLINE_EXCEEDED, "late")
        is_there = server is not None and server.is_started and server.process.node == self.channel.peer
        if not is_there or not self.client.is_alive:
            network.loop.call_later(CONNECT_SECONDS, self.lose)
            return
        self.server = server.process
        handler = server.handlers[self.path]
        self._task = network.loop.create_task(self._run(handler), context=self.server.context)

    async def _run(self, handler):
        try:
            await self._serve(handler)
        except LostError:
            self.lose()
        except AbortedError:
            await self._carry_refusal()
        except asyncio.CancelledError:
            self.lose()
            raise
        except Crash:
            return  # of the server, which has lost all its calls
        except Exception as error:  # noqa: BLE001 (a service that raises something is a defect, whatever it is)
            self.network.errors.append(f"{self.path} ended with {error!r}")
            self._end(grpc.StatusCode.UNKNOWN, repr(error))

    async def _serve(self, handler):
        network, request = self.network, self._request
        if handler.stream_unary is not None:
            answer = await handler.stream_unary(self._frames(handler), Context(self))
        else:
            data = self._encode(request)
            await network.carry(self.client, self.server)
            answer = await handler.unary_unary(handler.request_deserializer(data), Context(self))
            self._repeat(handler, data)
        data = handler.response_serializer(answer)
        await network.carry(self.server, self.client)
        self._settle(self._decode(data))

    def _repeat(self, handler, data):
        """Execute the call once more, some time later; nobody hears the answer."""
        network = self.network
        if network.weather.repeat and not self.path.endswith("Join") and network.rng.random() < network.weather.repeat:
            work = self._execute_late(network.rng.expovariate(1.0), handler, data)
            network.loop.create_task(work, context=self.server.context)

    async def _execute_late(self, seconds, handler, data):
        await asyncio.sleep(seconds)
        try:
            await handler.unary_unary(handler.request_deserializer(data), Context(self))
        except (AbortedError, LostError, Crash):
            return
        except Exception as error:  # noqa: BLE001
            self.network.errors.append(f"{self.path} ended with {error!r}")

    async def _frames(self, handler):
        """Carry frames; the client is asked for the next one as soon as one has arrived, as gRPC does."""
        frame = next(self._request, None)
        while frame is not None:
            received = handler.request_deserializer(self._encode(frame))
            if received.chunk or self.network.rng.random() < 0.5:  # some are sent together
                await self.network.carry(self.client, self.server)
            self.network.damage(received)
            frame = next(self._request, None)
            yield received

    async def _carry_refusal(self):
        try:
            await self.network.carry(self.server, self.client)
        except LostError:
            self.lose()
        else:
            self._end(*self.refusal)

    async def answer(self):
        try:
            return await self.outcome
        except asyncio.CancelledError:
            self.cancel()
            raise

    def lose(self):
        self._end(grpc.StatusCode.UNAVAILABLE, "the connection was lost")

    def cancel(self):
        if not self.outcome.done():
            self.outcome.cancel()
        self._clean_up()

    def _settle(self, answer):
        if not self.outcome.done():
            self.outcome.set_result(answer)
        self._clean_up()

    def _end(self, code, details):
        if not self.outcome.done():
            nothing = grpc.aio.Metadata()
            self.outcome.set_exception(grpc.aio.AioRpcError(code, nothing, nothing, details))
            self.outcome.exception()  # a client that is dead does not ask for it
        self._clean_up()

    def _clean_up(self):
        self.network.calls.pop(self, None)
        self.channel.calls.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
        if isinstance(self._request, SentFrames):
            self._request._frames.close()
        if self._task is not None and self._task is not asyncio.current_task(self.network.loop):
            self._task.cancel()


class StreamCall(Call):
    """A call with a stream of answers."""

    def __init__(self, *arguments):
        self._answers = deque()
        self._news = None  # a future of whoever waits for the next answer
        self._began = asyncio.Event()
        super().__init__(*arguments)

    async def _serve(self, handler):
        network, data = self.network, self._encode(self._request)
        await network.carry(self.client, self.server)
        self._serialize = handler.response_serializer
        answers = handler.unary_stream(handler.request_deserializer(data), Context(self))
        if not hasattr(answers, "aclose"):  # a service that writes its answers itself
            await answers
        else:
            async with contextlib.aclosing(answers):
                async for answer in answers:
                    await self.send(answer)
        self._settle(None)

    async def send(self, answer):
        received = self._decode(self._serialize(answer))
        await self.network.carry(self.server, self.client)
        self._take(received)

    def _take(self, received):
        network = self.network
        if self.path.endswith("Watch"):
            if network.weather.repeat and network.rng.random() < network.weather.repeat:
                network.loop.call_later(network.rng.expovariate(1.0), self._put, received)
        else:
            network.damage(received)
        self._put(received)

    def _put(self, received):
        self.begin()
        self._answers.append(received)
        self._wake()

    def _wake(self):
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def begin(self):
        self._began.set()

    async def initial_metadata(self):
        await self._began.wait()
        return grpc.aio.Metadata()

    def __aiter__(self):
        return self

    async def __anext__(self):
        while not self._answers and not self.outcome.done():
            self._news = self.network.loop.create_future()
            await self._news
        if self._answers:
            return self._answers.popleft()
        self.outcome.result()
        raise StopAsyncIteration

    def _clean_up(self):
        self._began.set()
        self._wake()
        super()._clean_up()
