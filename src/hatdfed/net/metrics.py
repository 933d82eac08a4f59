"""The figures of `hatdfed status` for Prometheus, collected when it asks.

No labels by pair of servers: those would grow with N².
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hatdfed.errors import ConfigError


class StatusCollector(Collector):
    """Asks for the status at every scrape."""

    def __init__(self, status: Callable[[], dict[str, Any]]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """All metrics."""
        status = self._status()
        yield GaugeMetricFamily("hatdfed_round", "Rounds that are committed.", value=status["round"])
        yield GaugeMetricFamily("hatdfed_rounds", "Rounds that the run will have.", value=status["rounds"])
        active = sum(server["active"] for server in status["servers"])
        yield GaugeMetricFamily("hatdfed_servers_active", "Servers that take part now.", value=active)
        yield GaugeMetricFamily("hatdfed_servers_known", "Servers that ever joined.", value=len(status["servers"]))
        if status["accuracy_percent"] is not None:
            yield GaugeMetricFamily(
                "hatdfed_validation_accuracy_percent", "Mean over servers.", value=status["accuracy_percent"]
            )
        yield GaugeMetricFamily(
            "hatdfed_coordinator_seconds", "The coordinator's own work in a round.", value=status["coordinator_seconds"]
        )
        yield CounterMetricFamily("hatdfed_links", "Links that were drawn.", value=status["links"])
        yield CounterMetricFamily("hatdfed_links_undelivered", "Of these, not delivered.", value=status["undelivered"])
        joules = CounterMetricFamily("hatdfed_joules", "Energy by cause.", labels=["cause"])
        for cause, spent in status["joules"].items():
            joules.add_metric([cause], spent)
        yield joules
        refused = CounterMetricFamily("hatdfed_refused", "Messages that were refused, by reason.", labels=["reason"])
        for reason, count in status["refused"].items():
            refused.add_metric([reason], count)
        yield refused


def serve_metrics(status: Callable[[], dict[str, Any]], host: str, port: int) -> Callable[[], None]:
    """Answer Prometheus at http://host:port/metrics; returns what ends it."""
    registry = CollectorRegistry()
    registry.register(StatusCollector(status))
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise ConfigError(
            f"Metrics cannot be served at {host}:{port} ({error.strerror}). Choose another port."
        ) from None

    def end() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return end
