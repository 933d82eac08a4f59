"""An event loop with a clock of its own: it jumps to the next timer, so that minutes pass in milliseconds.

Everything runs in one thread and in one order: the same schedule gives the same history.
"""

import asyncio
import contextvars
import random
from heapq import heappop, heappush
from itertools import count

_AT_ONCE = 1e-6  # seconds: timers that are no further apart are due together


class NoTimersError(Exception):
    """Everybody waits, and nothing will ever happen."""


class _Handle:
    """What asyncio calls a handle, without what is there for debugging."""

    __slots__ = ("_arguments", "_callback", "_context", "_is_cancelled", "_when")

    def __init__(self, callback, arguments, context, when=None):
        self._callback, self._arguments, self._when = callback, arguments, when
        self._context = contextvars.copy_context() if context is None else context
        self._is_cancelled = False

    def cancel(self):
        self._is_cancelled = True
        self._callback = self._arguments = None

    def cancelled(self):
        return self._is_cancelled

    def when(self):
        return self._when

    def run(self):
        self._context.run(self._callback, *self._arguments)


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs what threads would run at once, and hands over the result at once or after a while.

    The loop of asyncio spends more time on each callback than most callbacks take; this one has no sockets to look
    after, and no other threads.
    """

    def __init__(self, rng: random.Random):
        super().__init__()
        self._rng = rng
        self.now = 1000.0
        self.slowness = 1.0
        self._timers = []  # a heap of times, and of numbers for those at the same time
        self._numbers = count()

    def time(self):
        return self.now

    def call_soon(self, callback, *arguments, context=None):
        handle = _Handle(callback, arguments, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_at(self, when, callback, *arguments, context=None):
        handle = _Handle(callback, arguments, context, when)
        heappush(self._timers, (when, next(self._numbers), handle))
        return handle

    def call_later(self, delay, callback, *arguments, context=None):
        return self.call_at(self.now + delay, callback, *arguments, context=context)

    def run_in_executor(self, executor, work, *arguments):
        future, seconds = self.create_future(), self.slowness * max(0.0, self._rng.random() - 0.5)
        try:
            result, settle = work(*arguments), future.set_result
        except Exception as error:  # noqa: BLE001 (whatever it is, the caller gets it)
            result, settle = error, future.set_exception
        if seconds:
            self.call_later(seconds, _settle, future, settle, result)
        else:
            settle(result)
        return future

    def _run_once(self):
        """Run what is ready, and what is due; if that is nothing, it is the time of the next timer."""
        ready, timers = self._ready, self._timers
        while timers and timers[0][2]._is_cancelled:
            heappop(timers)
        if not ready and not self._stopping:
            if not timers:
                raise NoTimersError
            self.now = max(self.now, timers[0][0])
        end = self.now + _AT_ONCE
        while timers and timers[0][0] < end:
            ready.append(heappop(timers)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._is_cancelled:
                try:
                    handle.run()
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:  # noqa: BLE001 (as asyncio does)
                    self.call_exception_handler({"message": "Exception in a callback", "exception": error})


def _settle(future, settle, value):
    if not future.done():
        settle(value)
