"""An edge's metrics."""

from __future__ import annotations

from hatdfed.core.refusals import NOTHING_FINITE, OWN_NOT_FINITE
from hatdfed.deploy.edge.coordinator_link import CoordinatorLink
from hatdfed.deploy.edge.order_handler import OrderHandler
from hatdfed.deploy.edge.presence import CoordinatorPresence
from hatdfed.deploy.edge.round_mailbox import RoundMailbox
from hatdfed.deploy.monitoring.metrics import Figures


def make_figures(presence: CoordinatorPresence, link: CoordinatorLink, handler: OrderHandler | None) -> Figures:
    """Return a value for every metric of `EDGE_METRICS`; those of rounds only once this edge is ready for them."""
    return {
        "hatdfed_edge_connected": float(presence.is_connected),
        "hatdfed_edge_coordinator_timestamp_seconds": link.answered_at,
        "hatdfed_edge_joins_total": presence.joins,
        **({} if handler is None else _make_round_figures(handler)),
    }


def _make_round_figures(handler: OrderHandler) -> Figures:
    runner, mailbox = handler.runner, handler.mailbox
    last, transfers = runner.last_outcome, mailbox.transfers
    return {
        "hatdfed_edge_round": runner.next_round,
        "hatdfed_edge_rounds_total": runner.played_rounds,
        "hatdfed_edge_rounds_failed_total": handler.failed_rounds,
        "hatdfed_edge_round_seconds": runner.round_seconds,
        "hatdfed_edge_phase_seconds_total": {(phase,): value for phase, value in runner.phases.totals.items()},
        "hatdfed_edge_validation_accuracy_percent": None if last is None else 100 * last.accuracy,
        "hatdfed_edge_links_total": {(direction,): count for direction, count in mailbox.links.items()},
        "hatdfed_edge_sent_bytes_total": transfers.bytes["out"],
        "hatdfed_edge_received_bytes_total": transfers.bytes["in"],
        "hatdfed_edge_failed_bytes_total": {(direction,): size for direction, size in transfers.failed_bytes.items()},
        "hatdfed_edge_resent_bytes_total": transfers.resent_bytes,
        "hatdfed_edge_transfers_total": {end: float(count) for end, count in transfers.ended.items()},
        "hatdfed_edge_refused_total": {(reason,): count for reason, count in _count_refusals(mailbox).items()},
    }


def _count_refusals(mailbox: RoundMailbox) -> dict[str, int]:
    """Count refusals by reason; those of own models from zero on, so that Prometheus sees the first one as a change."""
    return {OWN_NOT_FINITE: 0, NOTHING_FINITE: 0, **(mailbox.reported_refusals + mailbox.refused)}
