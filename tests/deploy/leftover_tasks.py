"""Play a deployment to its end in a process of its own, and print the tasks that it leaves behind."""

import asyncio
import sys
import time
from pathlib import Path

from tests.deploy.deployment import Deployment, settings


async def find_leftover_tasks(folder):
    before = own_tasks()
    async with Deployment(folder, settings("full")) as deployment:
        await deployment.start_edges(3)
        await deployment.run
        await asyncio.wait_for(asyncio.gather(*deployment.tasks.values()), 60)
    until = time.monotonic() + 30  # gRPC ends its calls later, and with them what they wait for
    while (left := own_tasks() - before) and time.monotonic() < until:
        await asyncio.sleep(0.05)
    return left


def own_tasks():
    return {task for task in asyncio.all_tasks() if "grpc" not in repr(task)}


if __name__ == "__main__":
    for task in asyncio.run(find_leftover_tasks(Path(sys.argv[1]))):
        print(task)  # noqa: T201 (what the test reads)
    print("done")  # noqa: T201
