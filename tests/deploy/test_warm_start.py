"""What a process needs in trouble it takes when it starts, so that it does not grow later."""

import asyncio
import threading

import pytest

from hatdfed.cli.coordinator import _serve as serve_coordinator
from hatdfed.cli.edge import _serve as serve_edge
from hatdfed.deploy.threads import make_pool


def count_threads(name):
    return sum(thread.name.startswith(name) for thread in threading.enumerate())


def test_all_threads_of_a_pool_are_there_from_the_start():
    pool = make_pool(3, "early")
    try:
        assert count_threads("early") == 3
        assert pool.submit(threading.current_thread).result().name.startswith("early")
        assert count_threads("early") == 3
    finally:
        pool.shutdown()
    assert count_threads("early") == 0


class Idle:
    """An edge or a coordinator that ends at once, and says how many threads it found for its work."""

    def __init__(self):
        self.leave_requested = self.stop_requested = asyncio.Event()
        self.hub = self

    async def serve(self):
        before = count_threads("work")
        await asyncio.gather(*(asyncio.to_thread(threading.get_ident) for _ in range(20)))
        return before, count_threads("work")


@pytest.mark.parametrize(("serve", "thing"), [(serve_edge, Idle), (serve_coordinator, Idle())])
def test_a_process_starts_no_thread_for_its_work_later(serve, thing):
    before, after = asyncio.run(serve(thing))
    assert before == after > 0
