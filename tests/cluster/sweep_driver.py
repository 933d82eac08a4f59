"""A process that plays forty runs of digits on a Ray cluster and tells what happens, a line of JSON at a time."""

import json
import sys
from pathlib import Path

from hatdfed.batches import How
from hatdfed.build.placement import Placement
from hatdfed.cluster import executor
from hatdfed.errors import HatdfedError
from hatdfed.experiment import Job
from hatdfed.resolve import resolve

METHODS = ("hat-dfed", "rnd", "d-psgd", "sgp")
SEEDS = range(10)
ROUNDS = 30


def jobs(out):
    settings = [{"method": method, "seed": seed} for method in METHODS for seed in SEEDS]
    fixed = {"dataset": "digits", "rounds": ROUNDS, "checkpoint_every": 0}
    return {
        n: Job(resolve({**fixed, **each}), out / f"{each['method']}-seed{each['seed']}")
        for n, each in enumerate(settings)
    }


def tell(event, **more):
    print(json.dumps({"event": event, **more}), flush=True)  # noqa: T201


def main(address, out, cpus):
    real = executor.make_order

    def counted(batch, *rest):
        tell("order", runs=list(batch))
        return real(batch, *rest)

    executor.make_order = counted
    how = How(
        Placement("stacked", "cpu"),
        on_rounds=lambda done, total: tell("rounds", done=done, total=total),
        on_note=lambda note: tell("note", text=note),
        keep=lambda result: result.summary["avg_accuracy"],
    )
    try:
        executor.RayExecutor(address, cpus_per_batch=float(cpus)).play(
            jobs(Path(out)),
            how,
            lambda index, kept: tell("done", run=index, accuracy=kept),
            lambda index, reason: tell("failed", run=index, reason=reason),
        )
    except HatdfedError as error:
        tell("refused", kind=type(error).__name__, text=str(error))
        sys.exit(2)


if __name__ == "__main__":
    main(*sys.argv[1:])
