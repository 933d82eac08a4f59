"""A relay's metrics. None of them names an edge, so their number is bounded."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path

from hatdfed.deploy.monitoring.metrics import PROCESS_METRICS, RELAY_METRICS, Figures, FiguresCollector
from hatdfed.deploy.monitoring.process_figures import ProcessFigures
from hatdfed.deploy.monitoring.server import serve_metrics
from hatdfed.deploy.relay.relay import Relay
from hatdfed.deploy.transport.endpoints import Endpoints


def serve_relay_metrics(
    relay: Relay, endpoints: Endpoints, address: tuple[str, int]
) -> AbstractAsyncContextManager[int]:
    """Serve the metrics of a relay while the context is open; yields the port."""
    folder = Path() if endpoints.identity is None else endpoints.identity.path
    return serve_metrics(
        *address,
        FiguresCollector(RELAY_METRICS, lambda: make_figures(relay)),
        FiguresCollector(PROCESS_METRICS, ProcessFigures(endpoints, folder).read),
    )


def make_figures(relay: Relay) -> Figures:
    """Return a value for every metric of `RELAY_METRICS`."""
    return {
        "hatdfed_relay_edges": len(relay.waiting),
        "hatdfed_relay_sessions": relay.num_sessions,
        "hatdfed_relay_passed_bytes_total": relay.passed_bytes,
        "hatdfed_relay_refused_total": {(reason,): count for reason, count in relay.refused.items()},
        "hatdfed_relay_calls_refused_total": relay.refused_calls,
    }
