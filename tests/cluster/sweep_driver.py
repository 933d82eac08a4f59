"""A process that plays the sweep of forty runs on a Ray cluster and tells what happens, a line of JSON at a time."""

import json
import sys
from pathlib import Path

import hatdfed
from hatdfed.errors import HatdfedError
from hatdfed.sweeps.executors import ray as executor

FILE = Path(__file__).parents[2] / "examples" / "sweeps" / "digits-40.yaml"


def tell(event, **more):
    print(json.dumps({"event": event, **more}), flush=True)  # noqa: T201


def main(address, out, cpus):
    real = executor.make_order

    def counted(batch, *rest):
        tell("order", runs=[job.out.name for job in batch.values()])
        return real(batch, *rest)

    executor.make_order = counted
    try:
        result = hatdfed.sweep(
            FILE,
            out=out,
            executor=executor.RayExecutor(address, cpus_per_batch=float(cpus)),
            device="cpu",
            on_run=lambda run, *_: tell("done", run=run),
            on_rounds=lambda done, total: tell("rounds", done=done, total=total),
            on_note=lambda note: tell("note", text=note),
        )
    except HatdfedError as error:
        tell("refused", kind=type(error).__name__, text=str(error))
        sys.exit(2)
    tell("end", rows=len(result.rows), failed=result.failed)


if __name__ == "__main__":
    main(*sys.argv[1:])
