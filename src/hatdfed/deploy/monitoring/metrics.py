"""Every metric that a coordinator, an edge or a relay exports, declared once with its labels and its meaning.

All servers of metrics, docs/operations.md and the tests of dashboard and alert rules go through these tables. Names
follow Prometheus: base units, counters end in `_total`. There are no labels by pair of servers, which would grow with
N². Counters begin at zero when a process starts, except where the coordinator reads earlier rounds from its records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hatdfed.runs.round_row import columns_in

Values = Mapping[tuple[str, ...], float]  # by the values of the labels
Figures = Mapping[str, float | Values | None]  # by name of the metric; None: unknown now
_COUNTER_ENDING = "_total"
SERVER = ("server",)


@dataclass(frozen=True)
class ExportedMetric:
    """One metric."""

    name: str
    kind: Literal["gauge", "counter"]
    meaning: str  # in one sentence
    labels: tuple[str, ...] = ()


def _gauge(name: str, meaning: str, *labels: str) -> ExportedMetric:
    return ExportedMetric(name, "gauge", meaning, labels)


def _counter(name: str, meaning: str, *labels: str) -> ExportedMetric:
    return ExportedMetric(name + _COUNTER_ENDING, "counter", meaning, labels)


def _table(*metrics: ExportedMetric) -> dict[str, ExportedMetric]:
    return {metric.name: metric for metric in metrics}


COORDINATOR_METRICS = _table(
    _gauge("hatdfed_round", "Rounds that are committed."),
    _gauge("hatdfed_rounds", "Rounds that the run will have."),
    _gauge("hatdfed_run_state", "1 for the state that the run is in, 0 for all others.", "state"),
    _counter("hatdfed_coordinator_starts", "Starts of a coordinator on this run."),
    _gauge("hatdfed_servers_active", "Servers that take part now."),
    _gauge("hatdfed_servers_known", "Servers that ever joined."),
    _gauge("hatdfed_servers_required", "Servers without which no round begins."),
    _gauge("hatdfed_validation_accuracy_percent", "Mean over servers in the last round."),
    *(_gauge(f"hatdfed_{name}", column.meaning) for name, column in columns_in("own").items()),
    _gauge("hatdfed_round_seconds", "Duration of the last round."),
    _gauge("hatdfed_round_limit_seconds", "A round closes after this time; `deploy.round_seconds`."),
    _gauge(
        "hatdfed_last_round_timestamp_seconds",
        "When the last round was committed, or this coordinator started if that was later.",
    ),
    _gauge("hatdfed_coordinator_seconds", "The coordinator's own work in the last round."),
    _counter("hatdfed_incomplete_rounds", "Rounds that closed without the report of a server, since the start."),
    _gauge("hatdfed_waiting_seconds", "How long the coordinator has waited for the same thing; 0 while it does not."),
    _counter(
        "hatdfed_wait_seconds",
        "Time spent waiting, by what for: `servers`, `probes` (who reaches whom), `reports`, `final` figures.",
        "what",
    ),
    _counter("hatdfed_links", "Links that were drawn."),
    _counter("hatdfed_links_undelivered", "Of these, links whose model was not delivered."),
    _gauge("hatdfed_unreachable_pairs", "Pairs of active servers that cannot have a link; at most 100 are counted."),
    _counter("hatdfed_joules", "Energy by cause: by the energy prices, training as energy.source says.", "cause"),
    _counter(
        "hatdfed_refused",
        "Refused messages by reason, those that edges report included; reasons of the join server begin with `desk-`.",
        "reason",
    ),
    _gauge("hatdfed_server_active", "1 if the server takes part now, else 0.", *SERVER),
    _gauge("hatdfed_server_drained", "1 if the server was drained, else 0.", *SERVER),
    _gauge("hatdfed_server_quarantined", "1 while the server takes no part for some rounds, else 0.", *SERVER),
    _gauge("hatdfed_server_last_seen_timestamp_seconds", "When the server's last heartbeat or report came.", *SERVER),
    _gauge("hatdfed_server_round_seconds", "From order to report, in the last round that it reported.", *SERVER),
    _counter("hatdfed_server_missed_rounds", "Rounds that closed without this server's report.", *SERVER),
    _counter("hatdfed_server_joins", "Times that it joined or connected again.", *SERVER),
    _counter("hatdfed_server_refused", "Its messages that the coordinator or other edges refused.", "server", "reason"),
    _counter("hatdfed_server_links", "Its links; `in` are incoming.", "server", "direction"),
    _counter(
        "hatdfed_server_links_undelivered",
        "Of these, links whose model was not delivered.",
        "server",
        "direction",
    ),
)

EDGE_METRICS = _table(
    _gauge("hatdfed_edge_connected", "1 while this edge is connected to the coordinator, else 0."),
    _gauge("hatdfed_edge_coordinator_timestamp_seconds", "When the coordinator last answered; 0 if never."),
    _counter("hatdfed_edge_joins", "Times that this edge joined or connected again."),
    _gauge("hatdfed_edge_round", "The next round that this edge can execute."),
    _counter("hatdfed_edge_rounds", "Rounds that this edge committed."),
    _counter("hatdfed_edge_rounds_failed", "Rounds that ended in an error here."),
    _gauge("hatdfed_edge_round_seconds", "Duration of the last round, from order to commit."),
    _counter("hatdfed_edge_phase_seconds", "Time by phase: `training`, `exchange`, `merging`.", "phase"),
    _gauge("hatdfed_edge_validation_accuracy_percent", "Of the model that this edge committed last."),
    _counter("hatdfed_edge_links", "Links of the completed rounds; `in` are incoming.", "direction"),
    _counter("hatdfed_edge_sent_bytes", "Bytes of models that were sent, failed transfers included."),
    _counter("hatdfed_edge_received_bytes", "Bytes of models that were received, failed transfers included."),
    _counter(
        "hatdfed_edge_failed_bytes", "Bytes of transfers that were refused or broke off, even if resumed.", "direction"
    ),
    _counter("hatdfed_edge_resent_bytes", "Bytes that were sent to the same receiver again in one round."),
    _counter("hatdfed_edge_transfers", "Transfers by their end: `delivered` or `failed`.", "direction", "result"),
    _counter("hatdfed_edge_refused", "Messages that this edge refused, and own models it could not use.", "reason"),
)

RELAY_METRICS = _table(
    _gauge("hatdfed_relay_edges", "Edges that are connected and can be called."),
    _gauge("hatdfed_relay_sessions", "Sessions that are open: pairs of edges that exchange models through this relay."),
    _counter("hatdfed_relay_passed_bytes", "Bytes that were passed on between edges."),
    _counter("hatdfed_relay_refused", "Connections that were refused or ended by this relay.", "reason"),
    _counter("hatdfed_relay_calls_refused", "Calls that were refused: the other edge is not here, or a limit."),
)

# Of all kinds of processes. The names that begin with `process_` are those of all Prometheus clients.
PROCESS_METRICS = _table(
    _gauge("hatdfed_build_info", "Always 1; says which version runs, as what.", "version", "role", "node"),
    _gauge("hatdfed_certificate_expiry_timestamp_seconds", "When the certificate of this process expires."),
    _gauge("hatdfed_authority_expiry_timestamp_seconds", "When the certificate of the deployment's authority expires."),
    _gauge("hatdfed_disk_free_bytes", "Free space where this process keeps its state."),
    _gauge("process_start_time_seconds", "When the process started."),
    _counter("process_cpu_seconds", "CPU time, user and system."),
    _gauge("process_resident_memory_bytes", "Memory in use."),
    _gauge("process_open_fds", "Open files and connections."),
    _gauge("process_max_fds", "Limit of open files and connections."),
    _gauge("process_threads", "Threads."),
)


class FiguresCollector(Collector):
    """Turns figures into metrics at every scrape; a figure that no table declares is a mistake."""

    def __init__(self, metrics: Mapping[str, ExportedMetric], read: Callable[[], Figures]) -> None:
        self._metrics = metrics
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics that have a value."""
        for name, value in self._read().items():
            if value is not None:
                yield _make_family(self._metrics[name], value if isinstance(value, Mapping) else {(): value})


def _make_family(metric: ExportedMetric, values: Values) -> Metric:
    is_counter = metric.kind == "counter"
    make = CounterMetricFamily if is_counter else GaugeMetricFamily
    name = metric.name.removesuffix(_COUNTER_ENDING) if is_counter else metric.name
    family = make(name, metric.meaning, labels=metric.labels)
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family
