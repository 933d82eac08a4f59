"""The worked example of a search with a pruner in sweeps.md, from docs/sweeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent / "sweeps"


def search_lines() -> dict[str, str]:
    """What pruning saved, and how its best trial compares with that of the search without it."""
    pruned, whole = _load("pruned-search.json"), _load("unpruned-search.json")
    pruning = pruned["search"]["pruning"]
    saved, rounds = pruning["rounds_saved"], pruning["rounds"]
    best, other = _best(pruned), _best(whole)
    is_same = best["settings"] == other["settings"]
    compared = "the same best trial" if is_same else f"a best trial of {other['validation_accuracy']:.1f} %"
    return {
        "pruning": (
            f"Halving stopped {pruning['pruned_trials']} of {pruned['search']['trials']} trials and saved {saved} of "
            f"{rounds} rounds ({100 * saved / rounds:.0f} %). The best trial has a validation accuracy of "
            f"{best['validation_accuracy']:.1f} %; the search without a pruner finds {compared}"
        )
    }


def importance_table() -> str:
    """The importance of each setting, and how well all of them predict."""
    importance = _load("pruned-search.json")["search"]["importance"]
    found = importance["objectives"]["accuracy"]
    rows = [f"| `{key}` | {100 * share:.0f} % |" for key, share in found["shares"].items()]
    heading = f"| setting | importance for accuracy after round {importance['after_round']} |"
    return "\n".join([heading, "|---|---|", *rows, f"| R² | {found['explained']:.2f} |"])


def _best(document: dict[str, Any]) -> dict[str, Any]:
    best: dict[str, Any] = next(row for row in document["rows"] if row["is_on_front"])
    return best


def _load(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((_FOLDER / name).read_text(encoding="utf-8"))
    return content
