import asyncio
import json
import shutil
import time

import grpc
import httpx2
import pytest
from tests.dashboard.site_on_disk import id_of, look_again, serving, unfinish

from hatdfed.dashboard.deployment import DeploymentMonitor, _clean, make_status_reader
from hatdfed.dashboard.event_streams import MAX_STREAMS
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.deploy.protocol.hatdfed_pb2_grpc import OperationServicer, add_OperationServicer_to_server
from hatdfed.errors import HatdfedError
from hatdfed.runs.records.database import RunDatabase

STATUS = {
    "run": "abc", "state": "running", "round": 3, "rounds": 9, "accuracy_percent": 41.5, "links": 12, "undelivered": 1,
    "joules": {"upload": 1.0, "training": 2.0, "link": 3.0}, "coordinator_seconds": 0.1, "waits_for": "edge-2",
    "waits_seconds": 4.5, "refused": {"too-late": 2, "<b>": 1},
    "servers": [{"index": 0, "name": "edge-1", "address": "127.0.0.1:1", "active": True, "drained": False,
                 "doing": "trains", "round": 4, "seen_seconds_ago": 0.4}],
}  # fmt: skip


def news(lines):
    """The next event of a stream."""
    return json.loads(next(line for line in lines if line.startswith("data:"))[5:])


def wait_until(holds):
    end = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_stream_tells_of_new_rounds_and_ends_with_the_client(site, runs):
    folder = runs / "both" / "rnd-seed0"
    unfinish(folder, 2)
    with serving(site) as address, httpx2.Client(base_url=address) as client:
        run_id = id_of(client, "both/rnd-seed0")
        with client.stream("GET", f"/api/runs/{run_id}/events") as stream:
            lines = stream.iter_lines()
            assert news(lines)["rounds"] == 2
            assert site.streams.count == 1
            database = RunDatabase(folder / "run.sqlite")
            database._connection.execute("INSERT INTO rounds (t, seconds) VALUES (2, 0.1)")
            database.flush()
            assert news(lines) == {"rounds": 3, "state": "running"}
            database.close()
        wait_until(lambda: site.streams.count == 0)


def test_a_stream_of_a_run_that_is_removed_ends(site, runs):
    with serving(site) as address, httpx2.Client(base_url=address) as client:
        run_id = id_of(client, "both/rnd-seed0")
        with client.stream("GET", f"/api/runs/{run_id}/events") as stream:
            lines = stream.iter_lines()
            news(lines)
            (runs / "both").rename(runs / "other")
            look_again(site)
            assert list(lines) is not None


def test_there_are_only_so_many_streams(client, site):
    site.streams.count = MAX_STREAMS
    answer = client.get("/api/runs/events")
    assert answer.status_code == 503
    assert "pages are open already" in answer.text


def test_without_a_coordinator_the_page_says_how_to_name_one(client):
    assert "No coordinator was named" in client.get("/deployment").text
    assert client.get("/api/deployment").json()["trouble"]


class Coordinator(OperationServicer):
    """Says where it stands, whoever asks."""

    async def Status(self, request, context):
        return pb.StatusText(json=json.dumps(STATUS))


@pytest.fixture
def asked():
    """Asks a coordinator that really listens, and says who was asked for what."""

    async def ask_it():
        server = grpc.aio.server()
        add_OperationServicer_to_server(Coordinator(), server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            return await DeploymentMonitor("here", make_status_reader(f"127.0.0.1:{port}", None)).read_status()
        finally:
            await server.stop(None)

    return asyncio.run(ask_it())


def test_a_deployment_is_shown_as_its_coordinator_tells_it(asked):
    assert asked["trouble"] is None
    assert (asked["round"], asked["rounds"], asked["joules"], asked["waits_for"]) == (3, 9, 6.0, "edge-2")
    assert asked["waits_seconds"] == 4.5
    assert asked["refused"] == [{"reason": "too-late", "count": 2}, {"reason": "<b>", "count": 1}]
    (server,) = asked["servers"]
    assert (server["name"], server["here"], server["doing"]) == ("edge-1", "here", "trains")


def test_a_coordinator_that_is_not_there_is_said_in_a_sentence():
    view = asyncio.run(DeploymentMonitor("127.0.0.1:9", make_status_reader("127.0.0.1:9", None)).read_status())
    assert "The coordinator at 127.0.0.1:9 does not answer" in view["trouble"]


def test_many_browsers_ask_the_coordinator_once_a_second():
    questions = []

    async def ask():
        questions.append(1)
        raise HatdfedError("away")

    async def look():
        deployment = DeploymentMonitor("x", ask)
        return await asyncio.gather(*(deployment.read_status() for _ in range(20)))

    assert {view["trouble"] for view in asyncio.run(look())} == {"away"}
    assert len(questions) == 1


def test_a_status_that_makes_no_sense_breaks_no_page():
    async def ask():
        return {"servers": "none", "refused": [1], "joules": 3, "round": "x", "waits_for": ["<script>"]}

    view = asyncio.run(DeploymentMonitor("x", ask).read_status())
    assert (view["servers"], view["refused"], view["joules"], view["round"]) == ([], [], 0.0, 0)


def test_certificates_that_cannot_be_read_are_said_in_a_sentence():
    async def ask():
        raise PermissionError(13, "Permission denied")

    view = asyncio.run(DeploymentMonitor("x", ask).read_status())
    assert view["trouble"] == "The certificates cannot be read (Permission denied)."


def test_the_list_tells_how_many_runs_there_are(site, runs):
    with (
        serving(site) as address,
        httpx2.Client(base_url=address) as client,
        client.stream("GET", "/api/runs/events") as stream,
    ):
        lines = stream.iter_lines()
        first = news(lines)
        shutil.copytree(runs / "both" / "rnd-seed0", runs / "more")
        second = news(lines)
    assert (first["total"], second["total"]) == (4, 5)
    assert first["stamp"] != second["stamp"]


def test_many_runs_are_not_walked_over_all_the_time(site, monkeypatch):
    moments = iter([10.0, 12.0, 13.0, 21.9, 22.1, 22.2])
    monkeypatch.setattr("hatdfed.dashboard.catalogue.time.monotonic", lambda: next(moments))
    scans = []
    monkeypatch.setattr(site.catalogue, "_scan", lambda: scans.append(1) or {})
    for _ in range(4):  # the first walk takes two seconds, so there is none for ten
        site.catalogue.cards()
    assert len(scans) == 2


def test_a_deployment_says_how_its_energy_is_known():
    assert _clean(STATUS)["energy_source"] == "", "a coordinator of an older version does not say"
    assert _clean(STATUS | {"energy_source": "modelled"})["energy_source"] == "modelled"
    assert _clean(STATUS | {"energy_source": "measured"})["energy_source"] == "training measured where possible"
