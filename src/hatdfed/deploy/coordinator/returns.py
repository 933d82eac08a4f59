"""Which members have already been waited for before a round: a draw waits once for the return of each member.

Otherwise one that leaves and returns all the time, at another address each time, would delay every round.
"""

from __future__ import annotations

from collections.abc import Iterable

from hatdfed.deploy.coordinator.membership import EdgeMember


class Returns:
    """Counts how often members have joined since the wait began."""

    def __init__(self) -> None:
        self._joins: dict[int, int] = {}  # by index: when it was first seen in this wait

    def note(self, members: Iterable[EdgeMember]) -> None:
        """Note members that were not seen in this wait yet."""
        for member in members:
            self._joins.setdefault(member.index, member.joins)

    def may_be_awaited(self, member: EdgeMember) -> bool:
        """Return whether the draw waits if this member is lost: it has not returned yet."""
        return self._count(member) == 0

    def find_frequent(self, members: Iterable[EdgeMember]) -> set[int]:
        """Return the members that have returned more than once: no draw waits for answers about them."""
        return {member.index for member in members if self._count(member) > 1}

    def _count(self, member: EdgeMember) -> int:
        return member.joins - self._joins.get(member.index, member.joins)
