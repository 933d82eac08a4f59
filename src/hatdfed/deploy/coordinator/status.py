"""The status of a deployment: the same figures for `hatdfed status`, the dashboard and Prometheus."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from hatdfed.core.round import Caught, RoundRecord
from hatdfed.deploy.coordinator.conduct import Conduct
from hatdfed.deploy.coordinator.edge_hub import EdgeHub
from hatdfed.deploy.coordinator.membership import EdgeMember
from hatdfed.runs.round_row import JOULES, ROUND_COLUMNS, RoundColumn, round_row

STATES = ("starting", "running", "finishing", "stopped", "done")
_MAX_ACCUSERS = 20  # that are named
_MAX_PAIRS = 100  # of servers that do not reach each other: nobody reads more


class DeploymentProgress:
    """Figures over the rounds that were played, those before a restart included."""

    def __init__(self, run: str, rounds: int, energy_source: str = "modelled") -> None:
        self.run = run
        self.rounds = rounds
        self.energy_source = energy_source
        self.played = 0
        self.undelivered = 0
        # Every figure over the rounds so far: its sum, or its last known value; None while nobody knows it.
        self.figures: dict[str, Any] = {
            name: 0 if column.over_rounds == "sum" and not column.may_be_unknown else None
            for name, column in _figures()
        }
        self.state = "starting"
        self.coordinator_seconds = 0.0  # own work in the last round: drawing, learning, committing
        self.last_round_at = time.time()  # or when this coordinator started
        self.last_round_seconds: float | None = None
        self.links_by_server = LinkCounts()
        self.undelivered_by_server = LinkCounts()
        self.caught: dict[int, Caught] = {}  # by server

    def take_over(self, rounds: list[dict[str, Any]], links: list[dict[str, Any]]) -> None:
        """Count the rounds that earlier starts have played, from the records."""
        self.undelivered = sum(not link["delivered"] for link in links)
        self._count_links((link["receiver"], link["sender"], bool(link["delivered"])) for link in links)
        for row in rounds:
            self._add(row)

    def count(self, record: RoundRecord, seconds: float) -> None:
        """Count one more round."""
        arrived = record.report.arrived(record.draw.topology)
        self.undelivered += int(np.count_nonzero(~arrived))
        links = zip(record.draw.topology.pairs.tolist(), arrived.tolist(), strict=True)
        self._count_links((receiver, sender, delivered) for (receiver, sender), delivered in links)
        self._add(round_row(record, seconds))
        self.note_caught(record.caught)
        self.last_round_at, self.last_round_seconds = time.time(), seconds

    def note_caught(self, caught: Iterable[Caught]) -> None:
        """Note servers whose reports were false."""
        self.caught |= {each.server: each for each in caught}

    def _count_links(self, links: Iterable[tuple[int, int, bool]]) -> None:
        for receiver, sender, delivered in links:
            self.links_by_server.count(receiver, sender)
            if not delivered:
                self.undelivered_by_server.count(receiver, sender)

    def _add(self, row: Mapping[str, Any]) -> None:
        self.played += 1
        for name, column in _figures():
            if row[name] is not None:
                before = self.figures[name] if column.over_rounds == "sum" else None
                self.figures[name] = row[name] + (before or 0)


class LinkCounts:
    """Links of every server, by direction."""

    def __init__(self) -> None:
        self._received: Counter[int] = Counter()
        self._sent: Counter[int] = Counter()

    def count(self, receiver: int, sender: int) -> None:
        """Count one link."""
        self._received[receiver] += 1
        self._sent[sender] += 1

    def of(self, server: int) -> dict[str, int]:
        """Return a server's links by direction."""
        return {"in": self._received[server], "out": self._sent[server]}


def _figures() -> list[tuple[str, RoundColumn]]:
    return [(name, column) for name, column in ROUND_COLUMNS.items() if column.over_rounds is not None]


def make_status(hub: EdgeHub, progress: DeploymentProgress) -> dict[str, Any]:
    """Collect everything that `hatdfed status` shows."""
    now = time.monotonic()
    members = hub.membership.members
    pairs = hub.membership.unreachable_pairs(now)
    return {
        "run": progress.run,
        "state": progress.state,
        "round": progress.played,
        "rounds": progress.rounds,
        "epoch": hub.epoch,
        "accuracy_percent": progress.figures["avg_accuracy"],
        "links": progress.figures["links"],
        "undelivered": progress.undelivered,
        "energy_source": progress.energy_source,
        "joules": {str(cause): progress.figures[name] for cause, name in JOULES.items()},
        "figures": progress.figures,
        "coordinator_seconds": progress.coordinator_seconds,
        "round_seconds": progress.last_round_seconds,
        "round_limit_seconds": hub.settings.round_seconds,
        "last_round_at": progress.last_round_at,
        "incomplete_rounds": hub.incomplete_rounds,
        "waiting_seconds": round(hub.waits.seconds_so_far, 1),
        "waited_seconds": hub.waits.totals,
        "quorum": hub.quorum,
        "waits_for": hub.waits_for,
        "waits_seconds": None if hub.waits_until is None else round(max(0.0, hub.waits_until - now), 1),
        "refused": dict(sum(map(Counter, (hub.open_round.refused, hub.refused, hub.refused_calls)), Counter())),
        "apart": [list(pair) for pair in pairs[:_MAX_PAIRS]],
        "servers": [
            {
                "index": member.index,
                "name": member.name,
                "address": member.address,
                "relayed": member.is_relayed,
                "active": hub.membership.is_active(member, now),
                "drained": member.is_drained,
                "quarantined": member.is_quarantined,
                **_describe_conduct(hub.participation.conduct, member.name),
                "caught": _describe_caught(progress.caught.get(member.index)),
                "doing": _describe_exclusion(progress.caught.get(member.index))
                + _describe_quarantine(hub, member)
                + _describe_doing(hub, member, now)
                + _describe_unreachable(member.name, pairs),
                "round": member.round,
                "seen_seconds_ago": None if math.isinf(member.last_seen) else round(now - member.last_seen, 1),
                "joins": member.joins,
                "missed_rounds": member.missed_rounds,
                "round_seconds": member.round_seconds,
                "links": progress.links_by_server.of(member.index),
                "undelivered": progress.undelivered_by_server.of(member.index),
            }
            for member in members
        ],
    }


def _describe_doing(hub: EdgeHub, member: EdgeMember, now: float) -> str:
    """Say what an edge does, or did when it was last heard from: nobody knows whether a silent one still does it."""
    is_silent = not member.has_left and not hub.membership.is_alive(member, now)
    return f"silent; last known: {member.doing}" if is_silent else member.doing


def _describe_caught(caught: Caught | None) -> dict[str, Any] | None:
    return None if caught is None else {"round": caught.round, "reason": caught.reason}


def _describe_exclusion(caught: Caught | None) -> str:
    return "" if caught is None else f"has no links since round {caught.round + 1}: {caught.reason} "


def _describe_quarantine(hub: EdgeHub, member: EdgeMember) -> str:
    until = hub.participation.conduct.of(member.name).until
    return f"takes no part until round {until + 1}; " if member.is_quarantined else ""


def _describe_conduct(conduct: Conduct, name: str) -> dict[str, Any]:
    """What of a member's messages was refused, and by whom besides the coordinator."""
    standing = conduct.of(name)
    return {"refused": dict(standing.refused), "refused_by": sorted(standing.refused_by)[:_MAX_ACCUSERS]}


def _describe_unreachable(name: str, pairs: list[tuple[str, str]]) -> str:
    """Name the servers with which this one can have no link, to be appended to what it is doing."""
    names = [other for pair in pairs if name in pair for other in pair if other != name]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"; does not reach {', '.join(names[:3])}{more}" if names else ""
