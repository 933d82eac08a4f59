"""Who belongs to a run, who is there, and who can reach whom. No sockets and no clock of its own in here.

A server keeps its place for good: places are given out in the order of joining and never taken back, so that a server
that returns finds what the policy has learned about its links.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.availability import Presence
from hatdfed.core.links import BoolMatrix, LinkTable, all_links
from hatdfed.errors import HatdfedError

_AGAIN_SECONDS = 60.0  # after which two servers that do not reach each other try once more
_AGAIN_AT_ONCE = 8  # of such tries for one server: most of them fail slowly
_MOST_SENTENCES = 20


@dataclass
class EdgeMember:
    """One edge server as the coordinator knows it."""

    index: int
    name: str
    address: str = ""  # where others can dial it; empty: nowhere
    is_ready: bool = False  # has its program, its data and its model, and listens to orders
    is_drained: bool = False  # wanted no more
    is_awaited: bool = False  # was there before a restart of the coordinator, and may just be dialling again
    has_left: bool = False  # said goodbye, so that nobody waits until it counts as away
    last_seen: float = -np.inf
    accuracy: float | None = None  # of the model that it came with; None before it was ready for the first time
    round: int = 0  # the next one that it can play
    doing: str = "joining"
    dials: dict[int, bool] = field(default_factory=dict)  # whom it could dial, and whom not
    asked: set[int] = field(default_factory=set)  # whom it was asked to dial and has not answered for
    asked_at: dict[int, float] = field(default_factory=dict)  # when that was, for the last time
    process: str = ""  # which of its processes was admitted; empty: it does not say
    claim: tuple[str, float] = ("", np.inf)  # another process that wants its place, and since when


class Membership:
    """All members, by name and by place."""

    def __init__(self, places: int, away_seconds: float) -> None:
        self._places = places  # servers that the run was started for
        self._away_seconds = away_seconds
        self._by_name: dict[str, EdgeMember] = {}
        self._apart: set[tuple[str, str]] = set()  # as was last said

    @property
    def members(self) -> list[EdgeMember]:
        """In the order of their places."""
        return list(self._by_name.values())

    @property
    def num_places(self) -> int:
        """N: as many as the run was started for, or more once more have been ready."""
        return max([self._places, *(m.index + 1 for m in self.members if m.accuracy is not None)])

    def named(self, name: str) -> EdgeMember | None:
        """The member of that name."""
        return self._by_name.get(name)

    def at(self, index: int) -> EdgeMember | None:
        """The member in that place."""
        members = self.members
        return members[index] if 0 <= index < len(members) else None

    def admit(self, name: str, address: str, now: float, process: str = "") -> EdgeMember:
        """A new member at the end, or one that is back."""
        member = self._by_name.setdefault(name, EdgeMember(len(self._by_name), name))
        for other in self.members:
            if member.address != address:  # what was found out about the old one is worth nothing
                self._forget(other, member.index)
            # A line that was lost may be there again: it is tried soon. Until then an open round needs what is known.
            other.asked_at.pop(member.index, None)
        member.asked.clear()  # what it was asked for may not have reached it
        member.asked_at.clear()
        member.address, member.is_ready, member.doing = address, False, "joining"
        member.last_seen, member.has_left, member.process = now, False, process
        return member

    def is_alive_beside(self, member: EdgeMember, process: str, now: float) -> bool:
        """Whether a member gave a sign of life after another process had come in its name: then there are two."""
        if member.claim[0] != process:
            member.claim = process, now
        return member.last_seen > member.claim[1]

    def restore(self, name: str, accuracy: float | None, now: float) -> EdgeMember:
        """A member from before a restart; for a while it is waited for like one that was just seen."""
        member = EdgeMember(len(self._by_name), name, accuracy=accuracy, doing="not seen since the restart")
        member.last_seen, member.is_awaited = now, accuracy is not None
        self._by_name[name] = member
        return member

    def is_active(self, member: EdgeMember, now: float) -> bool:
        """Whether a round can count on it."""
        return member.is_ready and not member.is_drained and self.is_alive(member, now)

    def is_alive(self, member: EdgeMember, now: float) -> bool:
        """Whether it gave a sign of life not long ago."""
        return not member.has_left and now - member.last_seen <= self._away_seconds

    def awaited(self, now: float) -> list[EdgeMember]:
        """Who was there before a restart and may still be on its way back."""
        return [m for m in self.members if m.is_awaited and not m.is_drained and self.is_alive(m, now)]

    def active(self, now: float) -> NDArray[np.bool_]:  # -> [N]
        """All places at once; a place that nobody has taken is not active."""
        found = np.zeros(self.num_places, dtype=bool)
        for member in self.members[: self.num_places]:
            found[member.index] = self.is_active(member, now)
        return found

    def presence(self, now: float) -> Presence:
        """What the next draw may count on."""
        return Presence(self.active(now), LinkTable.all_of(self.num_places).from_dense(self.reachable()))

    def reachable(self) -> BoolMatrix:  # -> [N, N]
        """Links along which one of the two ends can dial the other; row receives."""
        can_dial = np.zeros((self.num_places, self.num_places), dtype=bool)
        known = self.members[: self.num_places]
        can_dial[: len(known), : len(known)] = [bool(other.address) for other in known]
        for member in known:  # as `can_dial` says, but a row at once: there may be hundreds of servers
            missed = [index for index, yes in member.dials.items() if not yes and index < len(known)]
            can_dial[member.index, missed] = False
        result: BoolMatrix = (can_dial | can_dial.T) & all_links(self.num_places)
        return result

    def can_dial(self, member: EdgeMember, other: EdgeMember) -> bool:
        """What was found out, or hope while nothing was."""
        return bool(other.address) and member.dials.get(other.index, True)

    # Finding out who can dial whom.

    def to_ask(self, now: float) -> list[tuple[EdgeMember, list[EdgeMember]]]:
        """Whom each member that is there should try to dial; it is noted that they were asked."""
        there = [member for member in self.members if self.is_active(member, now)]
        asks = []
        for member in there:
            known = member.dials.keys() | member.asked | {member.index}
            others = [other for other in there if other.address and other.index not in known]
            if others := others + self._to_ask_again(member, there, now):
                member.asked |= {other.index for other in others}
                member.asked_at |= {other.index: now for other in others}
                asks.append((member, others))
        return asks

    def _to_ask_again(self, member: EdgeMember, there: list[EdgeMember], now: float) -> list[EdgeMember]:
        """Whom it could not dial and who cannot dial it either: a line may be mended."""
        due = {
            index
            for index, yes in member.dials.items()
            if not yes and index not in member.asked and now - member.asked_at.get(index, -np.inf) >= _AGAIN_SECONDS
        }
        if not due:
            return []
        return [o for o in there if o.index in due and o.address and not self.can_dial(o, member)][:_AGAIN_AT_ONCE]

    def answered(self, member: EdgeMember, yes: Iterable[int], no: Iterable[int]) -> None:
        """Whom a member could dial, and whom not."""
        places = range(len(self._by_name))
        found = {**{index: False for index in no if index in places}, **{i: True for i in yes if i in places}}
        member.dials |= found
        member.asked -= found.keys()

    def is_answer_due(self, now: float) -> bool:
        """Whether somebody who is there still tries for the first time; no draw waits for another try."""
        return any(member.asked - member.dials.keys() for member in self.members if self.is_active(member, now))

    def stop_asking(self) -> None:
        """Who has not answered may be reached or not: a model that does not arrive will tell."""
        for member in self.members:
            member.dials = {**dict.fromkeys(member.asked, True), **member.dials}
            member.asked.clear()

    def doubt(self, one: int, other: int) -> None:
        """A model did not arrive between two servers: what was known of them is no longer."""
        for index, peer in ((one, other), (other, one)):
            if (member := self.at(index)) is not None:
                self._forget(member, peer)

    @staticmethod
    def _forget(member: EdgeMember, peer: int) -> None:
        member.dials.pop(peer, None)
        member.asked.discard(peer)
        member.asked_at.pop(peer, None)

    def apart(self, now: float) -> list[tuple[str, str]]:
        """Who is there and cannot have a link with whom, by name."""
        active = self.active(now)
        missing = np.triu(active[:, None] & active[None, :] & ~self.reachable(), k=1)
        names = [member.name for member in self.members]
        return [(names[i], names[j]) for i, j in np.argwhere(missing)]

    def news_of_apart(self, now: float) -> list[str]:
        """What has changed since it was last asked, in words."""
        apart, before = set(self.apart(now)), self._apart
        here = {member.name for member in self.members if self.is_active(member, now)}
        again = {pair for pair in before - apart if here.issuperset(pair)}
        self._apart = apart
        return [
            *_sentences(apart - before, "do not reach each other: they get no link until they do"),
            *_sentences(again, "reach each other again"),
        ]


def _sentences(pairs: set[tuple[str, str]], what: str) -> list[str]:
    """One for each pair, and one for all that are too many to be named."""
    named = [f"{one} and {other} {what}" for one, other in sorted(pairs)[:_MOST_SENTENCES]]
    more = len(pairs) - len(named)
    return [*named, f"{more} more pairs of servers {what}"] if more else named


STARTED_TWICE = "started-twice"  # as it is counted among refusals


class NameTakenError(HatdfedError):
    """Another process has this name; whether it is surely alive, or may have died without a word."""

    def __init__(self, sentence: str, *, is_sure: bool) -> None:
        super().__init__(sentence)
        self.is_sure = is_sure


def refuse_second(membership: Membership, member: EdgeMember, process: str, now: float) -> None:
    """Whose line is open is there, unless it has been silent until it counts as away: then its place is free."""
    is_another = bool(process) and member.process not in ("", process)
    if not is_another or not membership.is_alive(member, now):
        return
    if membership.is_alive_beside(member, process, now):
        raise NameTakenError(
            f"{member.name} already takes part as another process, perhaps on another machine. Stop that one first, or "
            "give this one an identity of its own.",
            is_sure=True,
        )
    raise NameTakenError(
        f"{member.name} is still connected as another process, which may be dead; this one gets in once that is sure",
        is_sure=False,
    )
