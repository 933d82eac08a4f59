"""How long a whole run of the paper takes on the machine at hand: Fashion-MNIST, 5 servers, 200 rounds, one seed.

python benchmarks/paper_run.py [--device cpu] [--out FILE.json]     needs the data set, see README
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import hatdfed
from hatdfed.runs.records.folder import environment


def main() -> None:
    """Play, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--method", default="hat-dfed")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    start = time.perf_counter()
    result = hatdfed.run(method=arguments.method, dataset="fashion-mnist", device=arguments.device)
    seconds = time.perf_counter() - start
    row = {
        "machine": environment(),
        "computed_by": result.summary["computed_by"],
        "method": arguments.method,
        "seconds": seconds,
        "avg_accuracy": result.summary["avg_accuracy"],
        "rounds": result.summary["rounds"],
    }
    print(f"{seconds:.0f} s, accuracy {row['avg_accuracy']:.1f} %, {row['computed_by']}")
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(row, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
