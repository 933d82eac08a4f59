"""The coordinator's metrics, from the same figures as `hatdfed status`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from hatdfed.deploy.coordinator.status import STATES
from hatdfed.deploy.monitoring.metrics import Figures, Values
from hatdfed.runs.round_row import columns_in


def make_figures(status: Mapping[str, Any]) -> Figures:
    """Return a value for every metric of `COORDINATOR_METRICS`; None where it is unknown."""
    servers, figures = status["servers"], status["figures"]
    return {
        "hatdfed_round": status["round"],
        "hatdfed_rounds": status["rounds"],
        "hatdfed_run_state": {(state,): float(state == status["state"]) for state in STATES},
        "hatdfed_coordinator_starts_total": status["epoch"],
        "hatdfed_servers_active": sum(server["active"] for server in servers),
        "hatdfed_servers_known": len(servers),
        "hatdfed_servers_required": status["quorum"],
        "hatdfed_validation_accuracy_percent": status["accuracy_percent"],
        **{f"hatdfed_{name}": figures[name] for name in columns_in("own")},
        "hatdfed_round_seconds": status["round_seconds"],
        "hatdfed_round_limit_seconds": status["round_limit_seconds"],
        "hatdfed_last_round_timestamp_seconds": status["last_round_at"],
        "hatdfed_coordinator_seconds": status["coordinator_seconds"],
        "hatdfed_incomplete_rounds_total": status["incomplete_rounds"],
        "hatdfed_waiting_seconds": status["waiting_seconds"],
        "hatdfed_wait_seconds_total": _by_label(status["waited_seconds"]),
        "hatdfed_links_total": status["links"],
        "hatdfed_links_undelivered_total": status["undelivered"],
        "hatdfed_unreachable_pairs": len(status["apart"]),
        "hatdfed_joules_total": _by_label(status["joules"]),
        "hatdfed_refused_total": _by_label(status["refused"]),
        **_make_server_figures(servers),
    }


def _make_server_figures(servers: Sequence[Mapping[str, Any]]) -> Figures:
    now = time.time()
    seen: Values = {(s["name"],): now - s["seen_seconds_ago"] for s in servers if s["seen_seconds_ago"] is not None}
    return {
        "hatdfed_server_active": _by_server(servers, "active"),
        "hatdfed_server_drained": _by_server(servers, "drained"),
        "hatdfed_server_quarantined": _by_server(servers, "quarantined"),
        "hatdfed_server_last_seen_timestamp_seconds": seen,
        "hatdfed_server_round_seconds": _by_server(servers, "round_seconds"),
        "hatdfed_server_missed_rounds_total": _by_server(servers, "missed_rounds"),
        "hatdfed_server_joins_total": _by_server(servers, "joins"),
        "hatdfed_server_refused_total": _by_server_and(servers, "refused"),
        "hatdfed_server_links_total": _by_server_and(servers, "links"),
        "hatdfed_server_links_undelivered_total": _by_server_and(servers, "undelivered"),
    }


def _by_label(counts: Mapping[str, float]) -> Values:
    return {(label,): value for label, value in counts.items()}


def _by_server(servers: Sequence[Mapping[str, Any]], figure: str) -> Values:
    return {(server["name"],): float(server[figure]) for server in servers if server[figure] is not None}


def _by_server_and(servers: Sequence[Mapping[str, Any]], figure: str) -> Values:
    return {(server["name"], label): value for server in servers for label, value in server[figure].items()}
