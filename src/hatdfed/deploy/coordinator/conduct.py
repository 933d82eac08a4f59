"""How members behave: what of them was refused, and who takes no part for some rounds because of it. No clock.

A member has a bad round if it was to report and did not, or not plausibly; or if every server that was to receive its
model, and reported, refused it. After `STRIKES` bad rounds in a row the member is in quarantine: it gets no links and
no round waits for it, for `FIRST_ROUNDS` rounds and twice as many each further time. Then it is admitted again, and one
more bad round is enough for the next quarantine.

What one server says of another is a claim: refused models count towards a quarantine only if at least two servers say
so. A network that breaks transfers off is nobody's fault and counts for nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from hatdfed.core.refusals import OTHER

STRIKES = 3  # bad rounds in a row
FIRST_ROUNDS = 10  # of the first quarantine
_MOST_ROUNDS = 160
_ACCUSERS = 2  # that must agree
# The network's fault, or unknown: a newer edge may report a word that this version does not know.
NOT_ITS_FAULT = {"late", "early", "duplicate", "stalled", "cut-short", "moved", "replaced", "spent", OTHER}

Refusals = Mapping[str, Counter[str]]  # by the name of the member whose messages they were, then by reason


@dataclass
class Standing:
    """What is held against one member."""

    refused: Counter[str] = field(default_factory=Counter)  # its messages, by reason
    refused_by: set[str] = field(default_factory=set)
    missed: int = 0  # rounds in a row without a report
    rejected: int = 0  # rounds in a row in which all receivers refused its model
    accusers: set[str] = field(default_factory=set)  # that refused it in these rounds
    quarantines: int = 0
    until: int = 0  # it takes part again from this round on


class RoundEvidence(NamedTuple):
    """What a round has shown, by the names of members."""

    t: int
    expected: set[str]  # who was to report
    refusals: Mapping[str, Refusals]  # of those who did, by their names
    receivers: Mapping[str, set[str]]  # by sender: who was to receive its model, and reported


class Conduct:
    """The standing of all members."""

    def __init__(self, remembered: Mapping[str, tuple[int, int]] | None = None) -> None:
        """`remembered` is what `quarantines` of an earlier start returned."""
        self._standings: dict[str, Standing] = {}
        for name, (until, times) in (remembered or {}).items():
            standing = self.of(name)
            standing.until, standing.quarantines, standing.missed = until, times, STRIKES - 1

    def of(self, name: str) -> Standing:
        """Return a member's standing."""
        return self._standings.setdefault(name, Standing())

    def count(self, name: str, reason: str, by: str = "", times: int = 1) -> None:
        """Count refused messages of a member; `by` is the server that says so, empty for the coordinator itself."""
        standing = self.of(name)
        standing.refused[reason] += times
        standing.refused_by |= {by} - {""}

    def judge(self, evidence: RoundEvidence) -> list[str]:
        """Count what was refused in a round, and return who has had too many bad rounds."""
        for accuser, refusals in evidence.refusals.items():
            for name, reasons in refusals.items():
                for reason, times in reasons.items():
                    self.count(name, reason, accuser, times)
        return [name for name in sorted(evidence.expected) if self._is_too_bad(name, evidence)]

    def _is_too_bad(self, name: str, evidence: RoundEvidence) -> bool:
        standing = self.of(name)
        if name not in evidence.refusals:
            standing.missed += 1
            return standing.missed >= STRIKES
        standing.missed = 0
        if receivers := evidence.receivers.get(name, set()):
            accusers = {other for other in receivers if _blames(evidence.refusals[other], name)}
            is_rejected = accusers == receivers
            standing.rejected = standing.rejected + 1 if is_rejected else 0
            standing.accusers = standing.accusers | accusers if is_rejected else set()
        return standing.rejected >= STRIKES and len(standing.accusers) >= _ACCUSERS

    def quarantine(self, name: str, t: int) -> int:
        """Keep a member out of the rounds after t; returns the round from which on it takes part again."""
        standing = self.of(name)
        rounds = min(FIRST_ROUNDS * 2**standing.quarantines, _MOST_ROUNDS)
        standing.quarantines += 1
        standing.until = t + 1 + rounds
        standing.missed = standing.rejected = STRIKES - 1  # on probation afterwards
        return standing.until

    def is_quarantined(self, name: str, t: int) -> bool:
        """Return whether a member takes no part in round t."""
        return name in self._standings and t < self._standings[name].until

    def release(self, name: str) -> None:
        """End a quarantine."""
        self.of(name).until = 0

    def quarantines(self) -> dict[str, tuple[int, int]]:
        """Return what the next start has to know: by name, the end of the last quarantine, and how many there were."""
        return {name: (each.until, each.quarantines) for name, each in self._standings.items() if each.quarantines}


def _blames(refusals: Refusals, name: str) -> bool:
    return any(reason not in NOT_ITS_FAULT for reason in refusals.get(name, ()))
