"""Who belongs to a run, with which model, who is active, and who can reach whom. No sockets and no clock.

A member keeps its index for good: indices are given out in the order of joining and never reused, so that a server that
returns finds what the policy has learned about its links.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.links import BoolMatrix, LinkTable, all_links
from hatdfed.core.round import Presence
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.errors import HatdfedError

_RETRY_SECONDS = 60.0  # after which two servers that do not reach each other try again
_MOVE_SECONDS = 5.0  # between two changes of a member's address: all others dial each new one
_MAX_RETRIES_AT_ONCE = 8  # for one server: most retries fail slowly
_MAX_SENTENCES = 20
_LAYOUT = re.compile(r"[0-9a-f]{1,64}")
_MAX_MODEL_SIZE = 10**12
_MAX_FLOPS = 1e18  # of a sample
_MAX_MESSAGE_SHARE = 4.0  # no codec makes a model longer than that


class Route(Enum):
    """How a model gets from its sender to its receiver."""

    PUSH = "push"  # the sender dials
    PULL = "pull"  # the receiver dials
    RELAY = "relay"  # the sender dials through the relay


@dataclass
class EdgeMember:
    """One edge as the coordinator knows it."""

    index: int
    name: str
    address: str = ""  # where other edges can dial it; empty: nowhere
    moved_at: float = -np.inf  # when it last joined with another address than before
    is_relayed: bool = False  # can be called through the relay
    is_ready: bool = False  # has its program, its data and its model, and reads orders
    is_drained: bool = False  # takes no more part in the run
    is_quarantined: bool = False  # takes no part for some rounds (`conduct`)
    manifest: Manifest | None = None  # what it said of its model when it was last ready
    lost_at: float = -np.inf  # when its connection was lost or the coordinator restarted, after which it may be back
    has_left: bool = False  # said goodbye, so that no round waits for it
    last_seen: float = -np.inf
    accuracy: float | None = None  # of the model that it joined with; None before it was ready for the first time
    round: int = 0  # the next one that it can play
    doing: str = "joining"
    dial_results: dict[int, bool] = field(default_factory=dict)  # by peer: whether it could dial it
    pending_probes: set[int] = field(default_factory=set)  # peers that it was asked to dial, without an answer yet
    probed_at: dict[int, float] = field(default_factory=dict)  # by peer: when it was last asked to dial it
    joins: int = 0  # since the coordinator's start, as the next two
    missed_rounds: int = 0  # that closed without its report
    round_seconds: float | None = None  # from order to report, in the last round that it reported
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
        """Add a new member, or update one that joins again; raises `MovedTooSoonError`."""
        member = self._by_name.setdefault(name, EdgeMember(len(self._by_name), name))
        if member.joins and member.address != address:
            if (wait := member.moved_at + _MOVE_SECONDS - now) > 0:
                raise MovedTooSoonError(f"{name} has just changed its address; it may do so again in {wait:.1f} s")
            member.moved_at = now
        for other in self.members:
            if member.address != address:  # results for the old address say nothing about the new one
                self._forget(other, member.index)
            # A lost connection may work again, so it is probed soon. Until then an open round needs the old result.
            other.probed_at.pop(member.index, None)
        member.pending_probes.clear()  # the orders to probe may not have reached it
        member.probed_at.clear()
        member.address, member.is_ready, member.doing = address, False, "joining"
        member.last_seen, member.has_left, member.process = now, False, process
        member.joins += 1
        return member

    def has_two_processes(self, member: EdgeMember, process: str, now: float) -> bool:
        """Return whether a member was seen after another process asked to join in its name: then there are two."""
        if member.rival[0] != process:
            member.rival = process, now
        return member.last_seen > member.rival[1]

    def restore(self, name: str, accuracy: float | None, now: float) -> EdgeMember:
        """Add a member from before a restart; for a while it is waited for as if it had just been seen."""
        member = EdgeMember(len(self._by_name), name, accuracy=accuracy, doing="not seen since the restart")
        member.last_seen, member.lost_at = now, -np.inf if accuracy is None else now
        self._by_name[name] = member
        return member

    def is_active(self, member: EdgeMember, now: float) -> bool:
        """Return whether it can take part in the next round."""
        return member.is_ready and self._may_play(member) and self.is_alive(member, now)

    @staticmethod
    def _may_play(member: EdgeMember) -> bool:
        return not (member.is_drained or member.is_quarantined)

    def is_alive(self, member: EdgeMember, now: float) -> bool:
        """Return whether it was seen recently."""
        return not member.has_left and now - member.last_seen <= self._away_seconds

    def expected_back(self, now: float) -> list[EdgeMember]:
        """Return the members whose connection was lost so recently that they may be back at once.

        Heartbeats do not prolong that: somebody who only sends those would keep all others waiting.
        """
        lost = [member for member in self.members if now - member.lost_at <= self._away_seconds]
        return [member for member in lost if self._may_play(member) and self.is_alive(member, now)]

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
        """Return the links of which either end can dial the other, or both the relay; rows receive."""
        can_dial = np.zeros((self.num_servers, self.num_servers), dtype=bool)
        known = self.members[: self.num_servers]
        can_dial[: len(known), : len(known)] = [bool(other.address) for other in known]
        for member in known:  # as in `can_dial`, but a whole row at once: there may be hundreds of servers
            missed = [index for index, yes in member.dial_results.items() if not yes and index < len(known)]
            can_dial[member.index, missed] = False
        relayed = np.zeros(self.num_servers, dtype=bool)
        relayed[: len(known)] = [member.is_relayed for member in known]
        result: BoolMatrix = (can_dial | can_dial.T | np.outer(relayed, relayed)) & all_links(self.num_servers)
        return result

    def can_dial(self, member: EdgeMember, other: EdgeMember) -> bool:
        """Return whether one member can dial another; assumed where it was not probed."""
        return bool(other.address) and member.dial_results.get(other.index, True)

    def choose_route(self, sender: EdgeMember, receiver: EdgeMember) -> Route:
        """Choose how a model travels: a sender dials its receiver if it can; else the receiver dials."""
        if self.can_dial(sender, receiver):
            return Route.PUSH
        if self.can_dial(receiver, sender):
            return Route.PULL
        # A pair that was drawn although neither has an address was to use the relay, even if one has lost it since.
        has_lost_it = (sender.is_relayed or receiver.is_relayed) and not sender.address
        return Route.RELAY if has_lost_it or (sender.is_relayed and receiver.is_relayed) else Route.PULL

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

    def is_probe_pending(self, now: float, ignored: Set[int] = frozenset()) -> bool:
        """Return whether an active member has a first probe pending, of one that is not `ignored`.

        No draw waits for retries.
        """
        return any(
            member.pending_probes - member.dial_results.keys() - ignored
            for member in self.members
            if member.index not in ignored and self.is_active(member, now)
        )

    def give_up_probes(self) -> None:
        """Assume that pending probes succeed: a model that is not delivered will show if they do not."""
        for member in self.members:
            member.dial_results = {**dict.fromkeys(member.pending_probes, True), **member.dial_results}
            member.pending_probes.clear()

    def forget_links(self, member: EdgeMember) -> None:
        """Forget who reaches a member and whom it reaches, so that all are probed before its next link."""
        for other in self.members:
            self.forget_pair(member.index, other.index)

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


def describe_neighbour(
    member: EdgeMember, *, dial: bool, mixing: float = math.nan, relayed: bool = False
) -> pb.Neighbour:
    """Describe a member to another edge."""
    return pb.Neighbour(
        index=member.index, name=member.name, address=member.address, dial=dial, mixing=mixing, relayed=relayed
    )


def describe_manifests(members: Iterable[EdgeMember]) -> str:
    """Say who brings which model."""
    names: dict[Manifest, list[str]] = {}
    for member in members:
        if member.manifest is not None:
            names.setdefault(member.manifest, []).append(member.name)
    return "; ".join(f"{', '.join(those)} with {manifest}" for manifest, those in names.items())


def find_majority(members: Iterable[EdgeMember]) -> Manifest | None:
    """Return the model that more than half of these members bring; None if there is none."""
    votes = [member.manifest for member in members if member.manifest is not None]
    return next((manifest for manifest in votes if 2 * votes.count(manifest) > len(votes)), None)


STARTED_TWICE = "started-twice"  # as counted among refusals


class MovedTooSoonError(HatdfedError):
    """A member changes its address too often."""


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


@dataclass(frozen=True)
class Manifest:
    """What the models of all edges have in common: most edges define it, all others must agree."""

    num_params: int
    bits_per_sample: int
    layout: str
    message_share: float
    forward_flops: float = 0.0  # of a sample; 0: not counted, as no machine has a profile


def read_manifest(prepared: pb.Prepared) -> Manifest | None:
    """Read an edge's description of its model; None if it is not plausible."""
    is_plausible = (
        0 < prepared.num_params <= _MAX_MODEL_SIZE
        and 0 < prepared.bits_per_sample <= _MAX_MODEL_SIZE
        and _LAYOUT.fullmatch(prepared.layout) is not None
        and 0 < prepared.message_share <= _MAX_MESSAGE_SHARE
        and 0 <= prepared.accuracy <= 1
        and 0 <= prepared.forward_flops <= _MAX_FLOPS
    )
    if not is_plausible:
        return None
    return Manifest(
        num_params=prepared.num_params,
        bits_per_sample=prepared.bits_per_sample,
        layout=prepared.layout,
        message_share=prepared.message_share,
        forward_flops=prepared.forward_flops,
    )
