"""What a coordinator and its edges export to Prometheus."""

import asyncio
import json
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.deploy.deployment import Deployment, settings

from hatdfed.deploy.edge.transfers import SentFrames, TransferTally
from hatdfed.deploy.identity.names import relay_id
from hatdfed.deploy.monitoring.metrics import COORDINATOR_METRICS, EDGE_METRICS, PROCESS_METRICS, RELAY_METRICS
from hatdfed.deploy.monitoring.time_by_kind import TimeByKind
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.deploy.relay.metrics import serve_relay_metrics
from hatdfed.deploy.relay.relay import Relay
from hatdfed.deploy.transport.endpoints import Endpoints
from hatdfed.version import __version__

HOST = "127.0.0.1"


async def scrape(port):
    """All samples, by name and labels."""
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    text = (await reader.read()).decode().partition("\r\n\r\n")[2]
    writer.close()
    families = list(text_string_to_metric_families(text))
    return {(s.name, *sorted(s.labels.values())): s.value for family in families for s in family.samples}


def names(samples):
    return {name for name, *_ in samples}


class Watched(Deployment):
    """A deployment whose processes export metrics."""

    metrics = (HOST, 0)


@pytest.fixture(scope="module")
def found(play, tmp_path_factory):
    """Samples of the coordinator and of one edge after three rounds, and of another edge without a coordinator."""

    async def scene():
        async with Watched(tmp_path_factory.mktemp("metrics"), settings(rounds=50)) as deployment:
            edges = await deployment.start_edges(3)
            await deployment.until(lambda: deployment.process.progress.played >= 3)
            coordinator = await scrape(deployment.process.metrics_port)
            edge = await scrape(edges[0].metrics_port)
            deployment.run.cancel()
            await asyncio.gather(deployment.run, return_exceptions=True)
            await deployment.until(lambda: not edges[1]._presence.is_connected)
            return coordinator, edge, await scrape(edges[1].metrics_port)

    return play(scene())


def test_what_is_declared_is_exported_and_nothing_else(found):
    coordinator, edge, _ = found
    silent = {"hatdfed_refused_total", "hatdfed_server_refused_total", "hatdfed_edge_refused_total"}  # nothing was
    assert names(coordinator) | silent == COORDINATOR_METRICS.keys() | PROCESS_METRICS.keys() | silent
    assert names(edge) | silent == EDGE_METRICS.keys() | PROCESS_METRICS.keys() | silent


def test_names_follow_the_conventions_of_prometheus():
    tables = COORDINATOR_METRICS, EDGE_METRICS, RELAY_METRICS, PROCESS_METRICS
    for metric in [metric for table in tables for metric in table.values()]:
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert metric.meaning.endswith("."), metric.name


def test_the_coordinator_tells_of_every_server(found):
    samples, _, _ = found
    rounds, links = samples["hatdfed_round",], samples["hatdfed_links_total",]
    assert rounds >= 3
    for name in ("edge-0", "edge-1", "edge-2"):
        assert samples["hatdfed_server_active", name] == 1
        assert samples["hatdfed_server_drained", name] == 0
        assert samples["hatdfed_server_joins_total", name] == 1
        assert samples["hatdfed_server_missed_rounds_total", name] == 0
        assert 0 < samples["hatdfed_server_round_seconds", name] < 20
        assert abs(samples["hatdfed_server_last_seen_timestamp_seconds", name] - time.time()) < 60
    for direction in ("in", "out"):
        counted = sum(samples["hatdfed_server_links_total", name, direction] for name in ("edge-0", "edge-1", "edge-2"))
        assert counted == pytest.approx(links, abs=9)  # a round may have ended in between
    assert samples["hatdfed_servers_required",] == samples["hatdfed_servers_active",] == 3
    assert samples["hatdfed_run_state", "running"] == 1
    assert samples["hatdfed_run_state", "done"] == 0
    assert samples["hatdfed_wait_seconds_total", "reports"] > 0


def test_an_edge_tells_of_its_rounds_and_transfers(found):
    _, samples, _ = found
    assert samples["hatdfed_edge_connected",] == 1
    assert samples["hatdfed_edge_rounds_total",] >= 2
    assert samples["hatdfed_edge_rounds_failed_total",] == 0
    assert (
        samples["hatdfed_edge_sent_bytes_total",] > 1000 * samples["hatdfed_edge_transfers_total", "delivered", "out"]
    )
    assert samples["hatdfed_edge_received_bytes_total",] > 0
    assert samples["hatdfed_edge_failed_bytes_total", "in"] == samples["hatdfed_edge_resent_bytes_total",] == 0
    assert samples["hatdfed_edge_phase_seconds_total", "training"] > 0
    assert abs(samples["hatdfed_edge_coordinator_timestamp_seconds",] - time.time()) < 60


def test_a_process_tells_of_itself(found):
    for samples, role, name in zip(
        found, ("coordinator", "edge", "edge"), ("coordinator", "edge-0", "edge-1"), strict=True
    ):
        assert samples["hatdfed_build_info", *sorted((__version__, role, name))] == 1
        assert samples["process_resident_memory_bytes",] > 10**7
        assert 5 < samples["process_open_fds",] < samples["process_max_fds",]
        assert samples["process_threads",] >= 2
        assert time.time() - 600 < samples["process_start_time_seconds",] <= time.time()
        assert samples["hatdfed_certificate_expiry_timestamp_seconds",] > time.time()
        assert samples["hatdfed_authority_expiry_timestamp_seconds",] > time.time()
        assert samples["hatdfed_disk_free_bytes",] > 0


def test_an_edge_without_its_coordinator_still_answers(found):
    _, _, samples = found
    assert samples["hatdfed_edge_connected",] == 0
    assert samples["hatdfed_edge_rounds_total",] >= 2


def hand_over(frames, ended=None):
    """Frames as a transfer makes them; it notes in `ended` that it is over."""
    try:
        yield from frames
    finally:
        if ended is not None:
            ended.append(True)


def test_a_transfer_that_breaks_off_ends_its_frames_at_once():
    ended = []
    frames = hand_over([pb.Frame(chunk=bytes(10))] * 2, ended)
    sent = SentFrames(TransferTally(), frames)
    next(sent)
    sent.count_end(delivered=False)
    assert ended == [True]
    assert list(sent) == []


def test_bytes_that_are_sent_again_are_counted_once_more():
    tally = TransferTally()
    frames = [pb.Frame(parcel=pb.Parcel()), *(pb.Frame(chunk=bytes(10)) for _ in range(3))]
    first = SentFrames(tally, hand_over(frames[:3]))
    assert len(list(first)) == 3
    first.count_end(delivered=False)
    rest = SentFrames(tally, hand_over(frames[1:3]), offset=15, reached=20)  # the receiver has 15 of the 20 bytes
    assert len(list(rest)) == 2
    rest.count_end(delivered=True)
    SentFrames(tally, hand_over([])).count_end(delivered=True)
    assert (tally.bytes["out"], tally.failed_bytes["out"], tally.resent_bytes) == (40, 20, 5)
    assert tally.ended == {("out", "delivered"): 1, ("out", "failed"): 1, ("in", "delivered"): 0, ("in", "failed"): 0}


def test_time_is_added_up_by_kind():
    now = [0.0]
    times = TimeByKind("one", "other", clock=lambda: now[0])
    times.begin("one")
    now[0] = 1.0
    times.begin("one")
    assert times.seconds_so_far == 1.0
    times.begin("other")
    now[0] = 4.0
    assert times.totals == {"one": 1.0, "other": 3.0}
    times.end()
    now[0] = 9.0
    assert times.seconds_so_far == 0
    assert times.totals == {"one": 1.0, "other": 3.0}


async def visit_a_relay():
    """Samples of a relay at which one edge waits, after a session, a call to nobody and a line that is not JSON."""
    relay = Relay(None)
    endpoints = Endpoints(None, relay_id("relay-1"))
    async with relay.serve(HOST, 0) as port, serve_relay_metrics(relay, endpoints, (HOST, 0)) as metrics_port:

        async def connect(line):
            streams = await asyncio.open_connection(HOST, port)
            streams[1].write(line + b"\n")
            return streams

        stranger, edge = await connect(b"?"), await connect(b'{"protocol": 1, "name": "edge-1"}')
        await stranger[0].read()
        edge[1].write(b'{"ask": "call", "to": "nobody", "id": 1}\n{"ask": "call", "to": "edge-1", "id": 2}\n')
        lines = [json.loads(await edge[0].readline()) for _ in range(4)]
        sides = [await connect(b"HATDFED-RELAY " + lines[-1]["session"].encode()) for _ in range(2)]
        sides[0][1].write(b"12345")
        await sides[1][0].readexactly(5)
        samples = await scrape(metrics_port)
        for _, writer in (stranger, edge, *sides):
            writer.transport.abort()
        return samples


def test_a_relay_counts_edges_sessions_bytes_and_refusals(play):
    samples = play(visit_a_relay())
    assert names(samples) >= RELAY_METRICS.keys() | {"process_open_fds", "hatdfed_build_info"}
    own = {name: value for name, value in samples.items() if name[0].startswith("hatdfed_relay")}
    assert own == {
        ("hatdfed_relay_edges",): 1,
        ("hatdfed_relay_sessions",): 1,
        ("hatdfed_relay_passed_bytes_total",): 5,
        ("hatdfed_relay_refused_total", "bad-line"): 1,
        ("hatdfed_relay_calls_refused_total",): 1,
    }
