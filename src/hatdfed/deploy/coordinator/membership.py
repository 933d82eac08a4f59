"""Who belongs to a run, who is active, and who can reach whom. It opens no sockets and reads no clock.

A member keeps its index for good: indices are given out in the order of joining and never reused, so that a server that
returns finds what the policy has learned about its links.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.availability import Presence
from hatdfed.core.links import BoolMatrix, LinkTable, all_links
from hatdfed.errors import HatdfedError

_RETRY_SECONDS = 60.0  # after which two servers that do not reach each other try again
_MAX_RETRIES_AT_ONCE = 8  # for one server: most retries fail slowly
_MAX_SENTENCES = 20


@dataclass
class EdgeMember:
    """One edge as the coordinator knows it."""

    index: int
    name: str
    address: str = ""  # where other edges can dial it; empty: nowhere
    is_ready: bool = False  # has its program, its data and its model, and reads orders
    is_drained: bool = False  # takes no more part in the run
    is_expected_back: bool = False  # was there before a restart of the coordinator, and may be connecting again
    has_left: bool = False  # said goodbye, so that no round waits for it
    last_seen: float = -np.inf
    accuracy: float | None = None  # of the model that it joined with; None before it was ready for the first time
    round: int = 0  # the next one that it can play
    doing: str = "joining"
    dial_results: dict[int, bool] = field(default_factory=dict)  # by peer: whether it could dial it
    pending_probes: set[int] = field(default_factory=set)  # peers that it was asked to dial, without an answer yet
    probed_at: dict[int, float] = field(default_factory=dict)  # by peer: when it was last asked to dial it
    process: str = ""  # which of its processes was admitted; empty: it does not say
    rival: tuple[str, float] = ("", np.inf)  # another process that wants to join in its name, and since when


class Membership:
    """All members of a run."""

    def __init__(self, num_servers: int, away_seconds: float) -> None:
        self._initial_servers = num_servers  # that the run was started for
        self._away_seconds = away_seconds
        self._by_name: dict[str, EdgeMember] = {}
        self._reported_pairs: set[tuple[str, str]] = set()  # that do not reach each other, as last reported

    @property
    def members(self) -> list[EdgeMember]:
        """All members, by index."""
        return list(self._by_name.values())

    @property
    def num_servers(self) -> int:
        """N: the number that the run was started for, or more once more have been ready."""
        return max([self._initial_servers, *(m.index + 1 for m in self.members if m.accuracy is not None)])

    def find(self, name: str) -> EdgeMember | None:
        """Return the member of that name, if there is one."""
        return self._by_name.get(name)

    def get(self, index: int) -> EdgeMember | None:
        """Return the member with that index, if there is one."""
        members = self.members
        return members[index] if 0 <= index < len(members) else None

    def admit(self, name: str, address: str, now: float, process: str = "") -> EdgeMember:
        """Add a new member, or update one that joins again."""
        member = self._by_name.setdefault(name, EdgeMember(len(self._by_name), name))
        for other in self.members:
            if member.address != address:  # results for the old address say nothing about the new one
                self._forget(other, member.index)
            # A lost connection may work again, so it is probed soon. Until then an open round needs the old result.
            other.probed_at.pop(member.index, None)
        member.pending_probes.clear()  # the orders to probe may not have reached it
        member.probed_at.clear()
        member.address, member.is_ready, member.doing = address, False, "joining"
        member.last_seen, member.has_left, member.process = now, False, process
        return member

    def has_two_processes(self, member: EdgeMember, process: str, now: float) -> bool:
        """Return whether a member was seen after another process asked to join in its name: then there are two."""
        if member.rival[0] != process:
            member.rival = process, now
        return member.last_seen > member.rival[1]

    def restore(self, name: str, accuracy: float | None, now: float) -> EdgeMember:
        """Add a member from before a restart; for a while it is waited for as if it had just been seen."""
        member = EdgeMember(len(self._by_name), name, accuracy=accuracy, doing="not seen since the restart")
        member.last_seen, member.is_expected_back = now, accuracy is not None
        self._by_name[name] = member
        return member

    def is_active(self, member: EdgeMember, now: float) -> bool:
        """Return whether it can take part in the next round."""
        return member.is_ready and not member.is_drained and self.is_alive(member, now)

    def is_alive(self, member: EdgeMember, now: float) -> bool:
        """Return whether it was seen recently."""
        return not member.has_left and now - member.last_seen <= self._away_seconds

    def expected_back(self, now: float) -> list[EdgeMember]:
        """Return the members that were there before a restart and may still come back."""
        return [m for m in self.members if m.is_expected_back and not m.is_drained and self.is_alive(m, now)]

    def active_mask(self, now: float) -> NDArray[np.bool_]:  # -> [N]
        """Return which servers are active; one that no edge plays yet is not."""
        found = np.zeros(self.num_servers, dtype=bool)
        for member in self.members[: self.num_servers]:
            found[member.index] = self.is_active(member, now)
        return found

    def make_presence(self, now: float) -> Presence:
        """Describe who is active and who reaches whom, for the next draw."""
        links = LinkTable.all_of(self.num_servers)
        return Presence(self.active_mask(now), links.from_dense(self.reachable_links()))

    def reachable_links(self) -> BoolMatrix:  # -> [N, N]
        """Return the links of which either end can dial the other; rows receive."""
        can_dial = np.zeros((self.num_servers, self.num_servers), dtype=bool)
        known = self.members[: self.num_servers]
        can_dial[: len(known), : len(known)] = [bool(other.address) for other in known]
        for member in known:  # as in `can_dial`, but a whole row at once: there may be hundreds of servers
            missed = [index for index, yes in member.dial_results.items() if not yes and index < len(known)]
            can_dial[member.index, missed] = False
        result: BoolMatrix = (can_dial | can_dial.T) & all_links(self.num_servers)
        return result

    def can_dial(self, member: EdgeMember, other: EdgeMember) -> bool:
        """Return whether one member can dial another; assumed where it was not probed."""
        return bool(other.address) and member.dial_results.get(other.index, True)

    # Probes: who can dial whom.

    def plan_probes(self, now: float) -> list[tuple[EdgeMember, list[EdgeMember]]]:
        """Choose whom each active member should try to dial, and note these probes as pending."""
        active = [member for member in self.members if self.is_active(member, now)]
        probes = []
        for member in active:
            known = member.dial_results.keys() | member.pending_probes | {member.index}
            others = [other for other in active if other.address and other.index not in known]
            if others := others + self._due_retries(member, active, now):
                member.pending_probes |= {other.index for other in others}
                member.probed_at |= {other.index: now for other in others}
                probes.append((member, others))
        return probes

    def _due_retries(self, member: EdgeMember, active: list[EdgeMember], now: float) -> list[EdgeMember]:
        """Return peers to try again: neither could dial the other, but the network may work again."""
        due = {
            index
            for index, yes in member.dial_results.items()
            if not yes
            and index not in member.pending_probes
            and now - member.probed_at.get(index, -np.inf) >= _RETRY_SECONDS
        }
        if not due:
            return []
        return [o for o in active if o.index in due and o.address and not self.can_dial(o, member)][
            :_MAX_RETRIES_AT_ONCE
        ]

    def record_probes(self, member: EdgeMember, yes: Iterable[int], no: Iterable[int]) -> None:
        """Note whom a member could dial, and whom it could not."""
        indices = range(len(self._by_name))
        found = {**{i: False for i in no if i in indices}, **{i: True for i in yes if i in indices}}
        member.dial_results |= found
        member.pending_probes -= found.keys()

    def is_probe_pending(self, now: float) -> bool:
        """Return whether an active member has a first probe pending; no draw waits for retries."""
        return any(
            member.pending_probes - member.dial_results.keys() for member in self.members if self.is_active(member, now)
        )

    def give_up_probes(self) -> None:
        """Assume that pending probes succeed: a model that is not delivered will show if they do not."""
        for member in self.members:
            member.dial_results = {**dict.fromkeys(member.pending_probes, True), **member.dial_results}
            member.pending_probes.clear()

    def forget_pair(self, one: int, other: int) -> None:
        """Forget what was known about two servers, since a model was not delivered between them."""
        for index, peer in ((one, other), (other, one)):
            if (member := self.get(index)) is not None:
                self._forget(member, peer)

    @staticmethod
    def _forget(member: EdgeMember, peer: int) -> None:
        member.dial_results.pop(peer, None)
        member.pending_probes.discard(peer)
        member.probed_at.pop(peer, None)

    def unreachable_pairs(self, now: float) -> list[tuple[str, str]]:
        """Return the pairs of active members that cannot have a link, by name."""
        active = self.active_mask(now)
        missing = np.triu(active[:, None] & active[None, :] & ~self.reachable_links(), k=1)
        names = [member.name for member in self.members]
        return [(names[i], names[j]) for i, j in np.argwhere(missing)]

    def describe_reachability_changes(self, now: float) -> list[str]:
        """Say which pairs have lost or regained their connection since the last call."""
        pairs, before = set(self.unreachable_pairs(now)), self._reported_pairs
        active = {member.name for member in self.members if self.is_active(member, now)}
        again = {pair for pair in before - pairs if active.issuperset(pair)}
        self._reported_pairs = pairs
        return [
            *_describe_pairs(pairs - before, "do not reach each other: they get no link until they do"),
            *_describe_pairs(again, "reach each other again"),
        ]


def _describe_pairs(pairs: set[tuple[str, str]], what: str) -> list[str]:
    """Write a sentence for each pair, and one for all that are too many to name."""
    named = [f"{one} and {other} {what}" for one, other in sorted(pairs)[:_MAX_SENTENCES]]
    more = len(pairs) - len(named)
    return [*named, f"{more} more pairs of servers {what}"] if more else named


STARTED_TWICE = "started-twice"  # as counted among refusals


class NameTakenError(HatdfedError):
    """Another process has this name; `is_sure` if it is certainly alive, and may not have died unnoticed."""

    def __init__(self, sentence: str, *, is_sure: bool) -> None:
        super().__init__(sentence)
        self.is_sure = is_sure


def refuse_second_process(membership: Membership, member: EdgeMember, process: str, now: float) -> None:
    """Raise `NameTakenError` if a connected member's name is used by another process.

    A member that has been silent for so long that it counts as away may be replaced.
    """
    is_another = bool(process) and member.process not in ("", process)
    if not is_another or not membership.is_alive(member, now):
        return
    if membership.has_two_processes(member, process, now):
        raise NameTakenError(
            f"{member.name} already takes part as another process, perhaps on another machine. Stop that one first, or "
            "give this one an identity of its own.",
            is_sure=True,
        )
    raise NameTakenError(
        f"{member.name} is still connected as another process, which may be dead; this one gets in once that is sure",
        is_sure=False,
    )
