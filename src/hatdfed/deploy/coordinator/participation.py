"""Which members may take part: those that bring the model of most, and that are not in quarantine (`conduct`)."""

from __future__ import annotations

import logging

from hatdfed.deploy.coordinator.conduct import Conduct, RoundEvidence
from hatdfed.deploy.coordinator.journal import Journal
from hatdfed.deploy.coordinator.membership import EdgeMember, Manifest, Membership, find_majority

_log = logging.getLogger("hatdfed.deploy.coordinator")


class Participation:
    """Decides who takes part, and commits what later starts have to know."""

    def __init__(self, membership: Membership, journal: Journal, next_round: int) -> None:
        try:
            self.conduct = Conduct(journal.read_fact("quarantines"))
        except (AttributeError, TypeError, ValueError):
            raise journal.make_damage_error("the entry quarantines is damaged") from None
        self._membership = membership
        self._journal = journal
        self._next_round = next_round
        self._wanted = 0  # servers without which no round begins

    @property
    def manifest(self) -> Manifest | None:
        """What the models of all edges have in common; None before most have agreed."""
        found = self._journal.read_fact("manifest")
        try:
            return None if found is None else Manifest(**found)
        except TypeError:
            raise self._journal.make_damage_error("the entry manifest is damaged") from None

    def active_members(self, now: float) -> list[EdgeMember]:
        """Return the members that can take part in the next round."""
        return [member for member in self._membership.members if self._membership.is_active(member, now)]

    def restore(self, member: EdgeMember) -> None:
        """Keep a member from before a restart in quarantine if it was there."""
        member.is_quarantined = self.conduct.is_quarantined(member.name, self._next_round)

    def find_others(self, now: float) -> list[EdgeMember]:
        """Return the active members that bring another model than this run's; none before most agree on one.

        Before the first round the model is the one that more than half of the active members bring. So one false
        description can neither define the run nor keep it from starting; where there is no majority, the operator
        drains an edge.
        """
        active = self.active_members(now)
        if (agreed := self.manifest) is None:
            if (agreed := find_majority(active)) is None:
                return []
            self._journal.write_fact("manifest", vars(agreed))
        return [member for member in active if member.manifest != agreed]

    def judge(self, evidence: RoundEvidence, now: float) -> None:
        """Count what was refused in a round, and quarantine whoever has had too many bad rounds in a row."""
        self._next_round = evidence.t + 1
        for name in self.conduct.judge(evidence):
            member = self._membership.find(name)
            others = [other for other in self.active_members(now) if other is not member]
            if member is None or len(others) < self._wanted:
                _log.warning("%s has had another bad round, but no round can begin without it", name)
                continue
            until = self.conduct.quarantine(name, evidence.t)
            member.is_quarantined = True
            self._journal.write_fact("quarantines", self.conduct.quarantines())
            _log.warning("%s takes no part until round %d: its last rounds were all bad", name, until)

    def admit_for_round(self, wanted: int, now: float) -> None:
        """End the quarantines that are over, and those without which fewer than `wanted` servers are active."""
        self._wanted = wanted
        for member in self._membership.members:
            if member.is_quarantined and not self.conduct.is_quarantined(member.name, self._next_round):
                self._admit_again(member, "its quarantine is over")
        if self._membership.expected_back(now):
            return  # who was there before a restart may be enough
        missing = wanted - len(self.active_members(now))
        able = [member for member in self._membership.members if self._can_return(member, now)]
        for member in able[:missing] if 0 < missing <= len(able) else ():
            self.conduct.release(member.name)
            self._admit_again(member, "too few servers are left without it")

    def _can_return(self, member: EdgeMember, now: float) -> bool:
        is_there = member.is_ready and not member.is_drained and self._membership.is_alive(member, now)
        return member.is_quarantined and is_there

    def _admit_again(self, member: EdgeMember, why: str) -> None:
        member.is_quarantined = False
        self._membership.forget_links(member)
        _log.warning("%s takes part again: %s", member.name, why)
