"""What `docs/faults/*.json` hold, as parts of docs/faults.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench_tables import table

FOLDER = Path(__file__).resolve().parent / "faults"
_ROLES = ("coordinator", "edges")


def fault_blocks() -> dict[str, str]:
    """The generated parts of the page, by their names."""
    return {"fault-matrix": _matrix(), "fault-soak": _soak(), "fault-fleet": _soak("fleet.json")}


def _read(name: str) -> dict[str, Any] | None:
    path = FOLDER / name
    found: dict[str, Any] | None = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    return found


def _matrix() -> str:
    found = _read("matrix.json")
    if found is None:
        return "No row has been played yet."
    cells = [
        [row["row"], row["fault"], row["injected"], row["observed"], row["result"], f"{row['seconds']:.0f} s"]
        for row in found["rows"]
    ]
    machine = f"Linux {found['machine']['kernel']}, Python {found['machine']['python']}, {found['date']}."
    return f"{table(('row', 'fault', 'injected', 'observed', 'result', 'time'), cells)}\n\n{machine}"


def _soak(name: str = "soak.json") -> str:
    found = _read(name)
    if found is None:
        return "This has not been run yet."
    faults = ", ".join(f"{count} × {kind}" for kind, count in found["faults"].items())
    cells = [
        [role, *(_slope(each) for each in figures), str(figures[0]["longest_minutes"])]
        for role, figures in _by_role(found).items()
    ]
    growth = table(("process", "MB in 10 min", "descriptors", "threads", "longest life, min"), cells)
    machine = f"{found['machine']['cores']} cores, Linux {found['machine']['kernel']}, {found['date']}"
    return (
        f"{found['edges']} edges for {found['seconds'] / 60:.0f} minutes on {machine}: {_rounds(found):,} rounds, "
        f"{found['rounds_with_absences']:,} of them with absent servers; {faults} (seed {found['seed']}). Promises "
        f"broken in {found['events']:,} events: {len(found['violations'])}. All "
        f"topologies were drawn again from the same absences and reports by a coordinator that was never disturbed"
        f"{_compare(found)}. Files in a store: at most {max(found['files_in_stores'].values())}.\n\n{growth}"
    )


def _rounds(found: dict[str, Any]) -> int:
    """All rounds that were played; earlier reports counted in `rounds` only those up to the end of the faults."""
    return int(found.get("topologies_compared", found["rounds"]))


def _by_role(found: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    growth = found["in_ten_minutes"]
    return {role: [growth[each][role] for each in ("megabytes", "descriptors", "threads")] for role in _ROLES}


def _slope(found: dict[str, Any]) -> str:
    return "unknown" if found["slope"] is None else f"{found['slope']:+.2f}"


def _compare(found: dict[str, Any]) -> str:
    differ = sum("topology of round" in sentence for sentence in found["violations"])
    return f"; {differ} differ" if differ else ", and all are equal"
