"""Plays rows of the fault matrix and writes what was observed: `python -m tests.faults.matrix [--all] [ROW ...]`."""

import argparse
import json
import platform
import shutil
import signal
import sys
import tempfile
import time
import traceback
from datetime import UTC, datetime
from pathlib import Path

from tests.faults.matrix.machines import NotPossibleError
from tests.faults.matrix.rows import BUSY, ROWS

from hatdfed.deploy.history import read_history
from hatdfed.testing.promises import find_violations

RESULTS = Path(__file__).resolve().parents[3] / "docs" / "faults" / "matrix.json"


def play(row):
    """One row, as it is written to the table."""
    folder, began = Path(tempfile.mkdtemp(prefix=f"hatdfed-{row.name}-")), time.monotonic()
    found = {"row": row.name, "fault": row.fault, "injected": row.injected}
    try:
        observed, cluster = row.play(folder)
        violations = find_violations(read_history(cluster.history), slack=BUSY)
        found |= {"observed": observed, "violations": [str(each) for each in violations]}
        found["result"] = "broken promise" if violations else "as promised"
    except NotPossibleError as error:
        found |= {"observed": f"not injected: {error}", "violations": [], "result": "not injected"}
    except Exception as error:  # noqa: BLE001 (the other rows are played all the same)
        traceback.print_exc()
        found |= {"observed": str(error)[:300], "violations": [], "result": "failed"}
    found["seconds"] = round(time.monotonic() - began, 1)
    if found["result"] in ("as promised", "not injected"):
        shutil.rmtree(folder, ignore_errors=True)
    else:
        found["kept"] = str(folder)
    return found


def write(rows):
    """Replace the results of these rows and keep those of others."""
    known = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    by_name = {each["row"]: each for each in known} | {
        each["row"]: {name: value for name, value in each.items() if name != "kept"} for each in rows
    }
    order = [row.name for row in ROWS]
    machine = {"system": platform.system(), "kernel": platform.release(), "python": platform.python_version()}
    text = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine,
        "rows": [by_name[name] for name in order if name in by_name],
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(text, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW")
    parser.add_argument("--all", action="store_true", help="every row, not only the quick ones")
    parser.add_argument("--no-write", action="store_true", help=f"leave {RESULTS.name} as it is")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no process and no namespace is left
    chosen = [
        row for row in ROWS if row.name in arguments.rows or (not arguments.rows and (arguments.all or row.is_quick))
    ]
    results = []
    for row in chosen:
        results.append(play(row))
        found = results[-1]
        print(f"{found['row']:4} {found['result']:14} {found['seconds']:6.1f} s  {found['observed']}", flush=True)  # noqa: T201
        for sentence in found["violations"]:
            print(f"     {sentence}", flush=True)  # noqa: T201
        if "kept" in found:
            print(f"     kept in {found['kept']}", flush=True)  # noqa: T201
        if not arguments.no_write:
            write(results)
    sys.exit(any(found["result"] not in ("as promised", "not injected") for found in results))


if __name__ == "__main__":
    main()
