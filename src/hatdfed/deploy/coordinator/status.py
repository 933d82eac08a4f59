"""The status of a deployment: the same figures for `hatdfed status`, the dashboard and Prometheus."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from hatdfed.core.round import RoundRecord
from hatdfed.deploy.coordinator.edge_hub import EdgeHub
from hatdfed.runs.round_row import JOULES, ROUND_COLUMNS, RoundColumn, round_row

_MAX_PAIRS = 100  # of servers that do not reach each other: nobody reads more


class DeploymentProgress:
    """Figures over the rounds that were played, those before a restart included."""

    def __init__(self, run: str, rounds: int) -> None:
        self.run = run
        self.rounds = rounds
        self.played = 0
        self.undelivered = 0
        # Every figure over the rounds so far: its sum, or its last known value.
        self.figures: dict[str, Any] = {name: 0 if column.over_rounds == "sum" else None for name, column in _figures()}
        self.state = "starting"
        self.coordinator_seconds = 0.0  # own work in the last round: drawing, learning, committing

    def take_over(self, rounds: list[dict[str, Any]], links: list[dict[str, Any]]) -> None:
        """Count the rounds that earlier starts have played, from the records."""
        self.undelivered = sum(not link["delivered"] for link in links)
        for row in rounds:
            self._add(row)

    def count(self, record: RoundRecord, seconds: float) -> None:
        """Count one more round."""
        self.undelivered += int(np.count_nonzero(~record.report.arrived(record.draw.topology)))
        self._add(round_row(record, seconds))

    def _add(self, row: Mapping[str, Any]) -> None:
        self.played += 1
        for name, column in _figures():
            if row[name] is not None:
                self.figures[name] = row[name] + (self.figures[name] if column.over_rounds == "sum" else 0)


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
        "joules": {str(cause): progress.figures[name] for cause, name in JOULES.items()},
        "figures": progress.figures,
        "coordinator_seconds": progress.coordinator_seconds,
        "waits_for": hub.waits_for,
        "waits_seconds": None if hub.closes_at is None else round(max(0.0, hub.closes_at - now), 1),
        "refused": dict(Counter(dict(hub.open_round.refused)) + Counter(dict(hub.refused))),
        "apart": [list(pair) for pair in pairs[:_MAX_PAIRS]],
        "servers": [
            {
                "index": member.index,
                "name": member.name,
                "address": member.address,
                "active": hub.membership.is_active(member, now),
                "drained": member.is_drained,
                "doing": member.doing + _describe_unreachable(member.name, pairs),
                "round": member.round,
                "seen_seconds_ago": None if math.isinf(member.last_seen) else round(now - member.last_seen, 1),
            }
            for member in members
        ],
    }


def _describe_unreachable(name: str, pairs: list[tuple[str, str]]) -> str:
    """Name the servers with which this one can have no link, to be appended to what it is doing."""
    names = [other for pair in pairs if name in pair for other in pair if other != name]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"; does not reach {', '.join(names[:3])}{more}" if names else ""
