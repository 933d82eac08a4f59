"""Accuracy by class and the confusion matrix of a run: in its results, read again, and in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.fleet import MOST_CONFUSED

Confusion = NDArray[np.int64]  # [C, C] samples of the row's class that are taken for the column's class

_MOST_SHOWN = 20  # classes in one line; of more, the worst
_WORST_SHOWN = 5


def summarise_confusion(confusion: Confusion | None) -> dict[str, Any]:
    """What results.json has of it: the share of each class that is right, in percent, and the counts of few classes."""
    if confusion is None:
        return {"accuracy_by_class": None, "confusion_matrix": None}
    counts, right = confusion.sum(axis=1).tolist(), np.diag(confusion).tolist()
    shares = [100 * hit / count if count else None for hit, count in zip(right, counts, strict=True)]
    return {
        "accuracy_by_class": shares,
        "confusion_matrix": confusion.tolist() if len(confusion) <= MOST_CONFUSED else None,
    }


def read_confusion(results: Mapping[str, Any]) -> Confusion | None:
    """The confusion matrix of results; None where there is none, or what is there is no table of counts."""
    rows = results.get("confusion_matrix")
    if not isinstance(rows, list) or not 0 < len(rows) <= MOST_CONFUSED:
        return None
    if not all(isinstance(row, list) and len(row) == len(rows) and all(map(_is_count, row)) for row in rows):
        return None
    return np.array(rows, dtype=np.int64)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def format_by_class(results: Mapping[str, Any]) -> str | None:
    """The accuracy of each class in a line, of many classes the worst; None where it is not known."""
    shares = results.get("accuracy_by_class")
    if not isinstance(shares, list):
        return None
    known = {label: share for label, share in enumerate(shares) if isinstance(share, int | float)}
    if not known:
        return None
    chosen, kind = sorted(known), "Test accuracy by class"
    if len(known) > _MOST_SHOWN:
        chosen, kind = sorted(known, key=lambda label: known[label])[:_WORST_SHOWN], f"Worst of {len(known)} classes"
    return f"{kind}: {', '.join(f'{label}: {known[label]:.1f} %' for label in chosen)}."
