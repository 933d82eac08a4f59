"""The ledger: who spent how many joules, towards whom, why, and how we know.

One row for every (round, cause, from, to). The joules of a round, Eq. (7), are the sum of its rows and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple


class Cause(StrEnum):
    """What joules are spent on."""

    UPLOAD = "upload"  # devices send their data to their server, Eq. (4)
    TRAINING = "training"  # a server trains on it, Eq. (5)
    LINK = "link"  # a server sends its model to another, Eq. (6)


class Source(StrEnum):
    """Where a figure comes from."""

    MODELLED = "modelled"
    MEASURED = "measured"


class EnergyRow(NamedTuple):
    """One line of the ledger."""

    t: int
    cause: Cause
    sender: int | None  # None: the devices of the receiver
    receiver: int
    bits: float
    joules: float
    source: Source = Source.MODELLED


def total_joules(rows: Iterable[EnergyRow]) -> float:
    """E_k, Eq. (7): everything that was spent."""
    return math.fsum(row.joules for row in rows)


def joules_by_cause(rows: Iterable[EnergyRow]) -> dict[Cause, float]:
    """The three sums of Eq. (7), exactly rounded; a cause without a row counts 0."""
    spent: dict[Cause, list[float]] = {cause: [] for cause in Cause}
    for row in rows:
        spent[row.cause].append(row.joules)
    return {cause: math.fsum(joules) for cause, joules in spent.items()}
