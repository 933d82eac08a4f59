"""Feeds 100,000 bad messages and 10,000 bad files to everything that reads what others wrote.

python benchmarks/fuzz.py [--messages 100000] [--files 10000] [--seed 0] [--out benchmarks/results/fuzz.json]
python benchmarks/fuzz.py --only journal --case 17     one case again, with its traceback

A case is read or refused in a sentence, within seconds and without memory beyond what it declares; anything else is a
defect, by whose number the case can be made again. The targets are in tests/fuzz.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from tests.fuzz.harness import Tally, make_case, memory_folder, share_out, try_case
from tests.fuzz.targets import TARGETS, quiet_logs

from hatdfed.runs.records.folder import environment

_SHOWN = 20  # defects that are written down
_BATCH = 500  # cases that a process tries at once


class Batch(NamedTuple):
    """Cases of one target that are tried one after the other."""

    target: str
    seed: int
    first: int
    size: int


class Outcome(NamedTuple):
    """What came of a batch."""

    target: str
    tally: Tally
    defects: list[dict[str, Any]]
    grown_bytes: int  # by which the process's largest size grew


def try_batch(batch: Batch) -> Outcome:
    """Try all cases of a batch."""
    target = next(target for target in TARGETS if target.name == batch.target)
    tally, defects = Tally(), []
    with quiet_logs(), warnings.catch_warnings(), tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        warnings.simplefilter("ignore")  # Pillow and others warn of what they refuse
        with suppress(Exception):  # loads what the reader needs; the case is tried again below
            try_case(target, make_case(target, batch.seed, batch.first), Path(folder), Tally())
        before = _largest_size()
        for number in range(batch.first, batch.first + batch.size):
            case = make_case(target, batch.seed, number)
            try:
                try_case(target, case, Path(folder), tally)
            except Exception as error:  # noqa: BLE001 (whatever it is, it is written down)
                last = traceback.extract_tb(error.__traceback__)[-1]
                where = f"{Path(last.filename).name}:{last.lineno}"
                defects.append({"case": number, "error": f"{type(error).__name__}: {error}"[:300], "where": where})
    return Outcome(batch.target, tally, defects, _largest_size() - before)


def _largest_size() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def make_batches(messages: int, files: int, seed: int, only: str | None) -> list[Batch]:
    """Share the cases out over the targets, in batches."""
    counts: Counter[str] = share_out(TARGETS, "message", messages) + share_out(TARGETS, "file", files)
    chosen = {name: count for name, count in counts.items() if only in (None, name)}
    return [
        Batch(name, seed, first, min(_BATCH, count - first))
        for name, count in chosen.items()
        for first in range(0, count, _BATCH)
    ]


def collect(outcomes: list[Outcome]) -> dict[str, Any]:
    """What came of every target."""
    rows: dict[str, Any] = {}
    for target in TARGETS:
        own = [outcome for outcome in outcomes if outcome.target == target.name]
        if not own:
            continue
        defects = [defect for outcome in own for defect in outcome.defects]
        rows[target.name] = {
            "kind": target.kind,
            "cases": sum(each.tally.read + each.tally.refused + len(each.defects) for each in own),
            "read": sum(each.tally.read for each in own),
            "refused": sum(each.tally.refused for each in own),
            "defects": len(defects),
            "first_defects": defects[:_SHOWN],
            "most_allocated_bytes": max(each.tally.most_allocated_bytes for each in own),
            "most_grown_bytes": max(each.grown_bytes for each in own),
            "slowest_seconds": round(max(each.tally.slowest_seconds for each in own), 3),
        }
    return rows


def try_again(name: str, seed: int, number: int) -> None:
    """Try one case and show what it does."""
    target = next(target for target in TARGETS if target.name == name)
    case, tally = make_case(target, seed, number), Tally()
    print(repr(case)[:2000])
    with tempfile.TemporaryDirectory() as folder:
        try_case(target, case, Path(folder), tally)
    print(asdict(tally))


def main() -> int:
    """Try all cases in as many processes as there are cores, and write down what came of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=[target.name for target in TARGETS])
    parser.add_argument("--case", type=int)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.case is not None:
        try_again(options.only, options.seed, options.case)
        return 0
    began = time.perf_counter()
    batches = make_batches(options.messages, options.files, options.seed, options.only)
    with multiprocessing.get_context("spawn").Pool() as pool:
        outcomes = []
        for outcome in pool.imap_unordered(try_batch, batches):
            outcomes.append(outcome)
            done = sum(each.tally.read + each.tally.refused for each in outcomes)
            print(f"\r{done} cases, {sum(len(each.defects) for each in outcomes)} defects", end="", flush=True)
    rows = collect(outcomes)
    result = {
        "messages": sum(row["cases"] for row in rows.values() if row["kind"] == "message"),
        "files": sum(row["cases"] for row in rows.values() if row["kind"] == "file"),
        "defects": sum(row["defects"] for row in rows.values()),
        "seed": options.seed,
        "seconds": round(time.perf_counter() - began, 1),
        "machine": environment(),
        "targets": rows,
    }
    print()
    for name, row in rows.items():
        print(f"{name:14} {row['cases']:7} cases, {row['refused']:7} refused, {row['defects']:4} defects")
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 1 if result["defects"] else 0


if __name__ == "__main__":
    sys.exit(main())
