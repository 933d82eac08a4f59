"""The wait before a round: until a quorum of servers is there, and who reaches whom is known."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from hatdfed.core.round import Presence
from hatdfed.deploy import history
from hatdfed.deploy.coordinator.edge_hub import END_OF_ORDERS, EdgeHub
from hatdfed.deploy.coordinator.membership import EdgeMember, describe_manifests

_log = logging.getLogger("hatdfed.deploy.coordinator")
_PROBE_SECONDS = 10.0  # that a draw waits for answers about who reaches whom


class QuorumWait:
    """Waits before every round; a member that leaves and returns again and again delays it once."""

    def __init__(self, hub: EdgeHub) -> None:
        self._hub = hub
        self._membership = hub.membership
        self._settings = hub.settings
        self._is_first = hub.next_round == 0  # until the first round has begun
        self._first_ends_at: float | None = None  # the wait for all servers before it, on the monotonic clock
        self._returns = Returns()  # since the wait began

    async def wait(self) -> Presence:
        """Wait until a quorum of servers is active; returns which are, and who reaches whom."""
        logged = ""
        # An edge that is there but never gets ready must not delay a round for longer than any other one does.
        patience = time.monotonic() + max(self._settings.away_seconds, self._settings.round_seconds)
        self._returns = Returns()
        while True:
            now = time.monotonic()
            self._returns.note(self._membership.members)
            self._hub.participation.admit_for_round(self._hub.quorum, now)
            if self._membership.active_mask(now).sum() >= self._hub.quorum and self._dismiss_other_models(now):
                continue
            missing, until = self._describe_missing(now, patience)
            self._hub.set_wait(missing, until, "servers")
            if not missing and not await self._probe_links():
                self._first_ends_at, self._is_first = None, False
                self._hub.set_wait("")
                presence = self._membership.make_presence(time.monotonic())
                history.note("quorum", history.COORDINATOR, active=int(presence.active.sum()), wanted=self._hub.quorum)
                return presence
            if missing:
                if logged != (logged := missing):
                    _log.warning("round %d waits for %s", self._hub.next_round, logged)
                await self._hub.wait_for_change(1.0)

    def _describe_missing(self, now: float, patience: float) -> tuple[str, float | None]:
        """Say which servers the next round waits for, empty if it waits for none, and until when; None: a pause."""
        active = int(self._membership.active_mask(now).sum())
        if active < self._hub.quorum:
            self._first_ends_at, self._returns = None, Returns()  # a pause is no delay that one member causes
            return f"servers: {active} of at least {self._hub.quorum} are there", None
        if self._hub.manifest is None:
            return "a majority for one model: " + describe_manifests(self._hub.participation.active_members(now)), None
        lost = self._membership.expected_back(now)
        awaited = [member.name for member in lost if self._returns.may_be_awaited(member)]
        if awaited and now <= patience:
            return "servers that may be back at once: " + ", ".join(awaited), patience
        wanted = self._membership.num_servers - sum(member.is_drained for member in self._membership.members)
        if not self._is_first or active >= wanted:
            return "", None
        if self._first_ends_at is None:
            self._first_ends_at = now + self._settings.first_wait
        if now >= self._first_ends_at:
            _log.warning("the first round begins with %d of %d servers", active, wanted)
            return "", None
        wait = self._settings.first_wait
        what = f"all servers before the first round, at most {wait:g} s: {active} of {wanted} are there"
        return what, self._first_ends_at

    def _dismiss_other_models(self, now: float) -> bool:
        """Dismiss servers that bring another model than most, and return whether there were any.

        They will try to join again, and are told then.
        """
        others = self._hub.participation.find_others(now)
        for member in others:
            _log.warning("%s brings another model than most: %s", member.name, member.manifest)
            self._hub.send_order(member.index, END_OF_ORDERS)
            self._hub.mark_left(member, "it brings another model than most", for_good=True)
        return bool(others)

    async def _probe_links(self) -> bool:
        """Have edges probe each other and wait briefly for answers; returns whether members came or went meanwhile."""
        end = time.monotonic() + min(_PROBE_SECONDS, self._settings.idle_seconds)
        before = self._membership.active_mask(time.monotonic())
        self._hub.request_probes()
        while self._is_probe_pending() and time.monotonic() < end:
            self._hub.set_wait("answers about who reaches whom", end, "probes")
            await self._hub.wait_for_change(0.2)
        self._membership.give_up_probes()
        for sentence in self._membership.describe_reachability_changes(time.monotonic()):
            _log.warning("%s", sentence)
        after = self._membership.active_mask(time.monotonic())
        return len(before) != len(after) or bool((before != after).any())

    def _is_probe_pending(self) -> bool:
        frequent = self._returns.find_frequent(self._membership.members)
        return self._membership.is_probe_pending(time.monotonic(), frequent)


class Returns:
    """Counts how often members have joined since the wait began: a draw waits once for the return of each.

    Otherwise one that leaves and returns all the time, at another address each time, would delay every round.
    """

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
