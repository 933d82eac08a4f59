"""Who belongs to a run, who is there, and who can reach whom. No sockets and no clock of its own in here.

A server keeps its place for good: places are given out in the order of joining and never taken back, so that a server
that returns finds what the policy has learned about its links.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hatdfed.presence import Presence
from hatdfed.topology import BoolMatrix, all_links


@dataclass
class Member:
    """One edge server as the coordinator knows it."""

    index: int
    name: str
    address: str = ""  # where others can dial it; empty: nowhere
    is_ready: bool = False  # has its program, its data and its model, and listens to orders
    is_drained: bool = False  # wanted no more
    last_seen: float = -np.inf
    accuracy: float = 0.0  # of the model that it came with
    round: int = 0  # the next one that it can play
    doing: str = "joining"
    dials: dict[int, bool] = field(default_factory=dict)  # whom it could dial, and whom not


class Membership:
    """All members, by name and by place."""

    def __init__(self, places: int, away_seconds: float) -> None:
        self._places = places  # servers that the run was started for
        self._away_seconds = away_seconds
        self._by_name: dict[str, Member] = {}

    @property
    def members(self) -> list[Member]:
        """In the order of their places."""
        return list(self._by_name.values())

    @property
    def num_places(self) -> int:
        """N: as many as the run was started for, or more if more have joined."""
        return max(self._places, len(self._by_name))

    def named(self, name: str) -> Member | None:
        """The member of that name."""
        return self._by_name.get(name)

    def at(self, index: int) -> Member | None:
        """The member in that place."""
        members = self.members
        return members[index] if index < len(members) else None

    def admit(self, name: str, address: str, now: float) -> Member:
        """A new member at the end, or one that is back."""
        member = self._by_name.setdefault(name, Member(len(self._by_name), name))
        if member.address != address:
            for other in self.members:  # what was found out about the old address is worth nothing
                other.dials.pop(member.index, None)
        member.address, member.last_seen, member.is_ready, member.doing = address, now, False, "joining"
        return member

    def restore(self, name: str, accuracy: float) -> None:
        """A member from before a restart, not seen since."""
        self._by_name[name] = Member(len(self._by_name), name, accuracy=accuracy, doing="not seen since the restart")

    def is_active(self, member: Member, now: float) -> bool:
        """Whether a round can count on it."""
        is_alive = now - member.last_seen <= self._away_seconds
        return member.is_ready and not member.is_drained and is_alive

    def active(self, now: float) -> NDArray[np.bool_]:  # -> [N]
        """All places at once; a place that nobody has taken is not active."""
        found = np.zeros(self.num_places, dtype=bool)
        for member in self.members:
            found[member.index] = self.is_active(member, now)
        return found

    def presence(self, now: float) -> Presence:
        """What the next draw may count on."""
        return Presence(self.active(now), self.reachable())

    def reachable(self) -> BoolMatrix:  # -> [N, N]
        """Links along which one of the two ends can dial the other; row receives."""
        can_dial = np.zeros((self.num_places, self.num_places), dtype=bool)
        for member in self.members:
            for other in self.members:
                can_dial[member.index, other.index] = self.can_dial(member, other)
        result: BoolMatrix = (can_dial | can_dial.T) & all_links(self.num_places)
        return result

    def can_dial(self, member: Member, other: Member) -> bool:
        """What was found out, or hope while nothing was."""
        return bool(other.address) and member.dials.get(other.index, True)

    def unknown_pairs(self) -> dict[int, list[Member]]:
        """Whom each ready member should still try to dial."""
        ready = [member for member in self.members if member.is_ready]
        return {
            member.index: [o for o in ready if o is not member and o.address and o.index not in member.dials]
            for member in ready
        }
