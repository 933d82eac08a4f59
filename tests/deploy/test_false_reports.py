"""An edge that lies in its reports is caught and named, and the others go on without it."""

import asyncio
import logging

from tests.deploy.deployment import QUICK, Deployment, settings
from typer.testing import CliRunner

from hatdfed.cli.app import app
from hatdfed.deploy.edge.edge import EdgeOptions
from hatdfed.deploy.edge.store import EdgeStore
from hatdfed_bench.hostile_edge import FalseReportsEdge

ROUNDS = 6
REASON = "It reported a score evidence of 100; it can be at most 60."


def start_liar(deployment, name):
    edge = FalseReportsEdge(
        EdgeOptions(f"127.0.0.1:{deployment.port}", "127.0.0.1:0", patience=20.0),
        deployment.endpoints(name),
        EdgeStore(deployment.folder / "stores" / name, 2),
        friends=[],
    )
    deployment.edges[name] = edge
    deployment.tasks[name] = asyncio.ensure_future(edge.serve())
    return edge


async def play_with_liar(folder):
    """Three honest edges, and a fourth one whose reports are false; the results, and the last status of the fourth."""
    config = settings("hat-dfed-trust", servers=4, rounds=ROUNDS)
    async with Deployment(folder, config, QUICK) as deployment:
        await deployment.start_edges(3)
        liar = start_liar(deployment, "edge-3")
        await deployment.until(lambda: liar._handler is not None)
        summary = await asyncio.wait_for(deployment.run, 60)
        return summary, deployment.status["servers"][3]


def test_an_edge_that_reports_what_cannot_be_is_left_out_and_named(play, tmp_path, one_thread, caplog):
    with caplog.at_level(logging.WARNING, "hatdfed.deploy.coordinator"):
        summary, status = play(play_with_liar(tmp_path))
    assert [(each["server"], each["reason"]) for each in summary["caught"]] == [(3, REASON)]
    assert status["caught"]["reason"] == REASON
    assert [r.getMessage() for r in caplog.records if "is false" in r.getMessage()] == [
        f"edge-3 gets no links any more: its report of round {summary['caught'][0]['round']} is false. {REASON}"
    ]
    shown = CliRunner().invoke(app, ["show", str(tmp_path / "run")], env={"COLUMNS": "300"})
    assert "server 3 in round" in shown.output
