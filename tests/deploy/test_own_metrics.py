"""Metrics of the settings in a deployment: as in a simulation, and a metric that fails costs no round."""

import logging

import pytest
from tests.deploy.deployment import Deployment, settings

from hatdfed.core.metrics import METRICS
from hatdfed.runs.calls import run


@pytest.fixture
def bad_metrics(monkeypatch):
    """One that fails, and one that is not defined."""

    def broken(outputs, targets):
        raise ZeroDivisionError("no samples")

    monkeypatch.setitem(METRICS._loaded, "broken", broken)
    monkeypatch.setitem(METRICS._loaded, "undefined", lambda outputs, targets: None)


async def deployed(folder, config):
    async with Deployment(folder, config) as deployment:
        await deployment.start_edges(config.servers)
        summary = await deployment.run
        database = deployment.process.folder.read()
        return database.records("rounds"), database.records("servers"), summary


def test_a_deployment_measures_what_a_simulation_does(play, tmp_path, one_thread):
    config = settings(rounds=2, metrics=["macro_f1", "calibration_error"])
    simulation = run(config, fleet="mailbox")
    rounds, servers, summary = play(deployed(tmp_path, config))
    for name in config.metrics:
        for found, wanted in ((rounds, simulation.rounds), (servers, simulation.servers)):
            assert [row[name] for row in found] == pytest.approx([row[name] for row in wanted], abs=1e-4)
        assert summary["metrics"][name] == pytest.approx(simulation.summary["metrics"][name], abs=1e-4)
        assert len(summary["metrics_by_server"][name]) == config.servers


def test_a_metric_that_fails_on_an_edge_is_logged_and_unknown(play, tmp_path, one_thread, caplog, bad_metrics):
    config = settings(rounds=2, metrics=["broken", "undefined", "macro_f1"])
    with caplog.at_level(logging.WARNING):
        rounds, _, summary = play(deployed(tmp_path, config))
    assert "Metric 'broken' failed on outputs of shape [40, 10]" in caplog.text
    assert [(row["broken"], row["undefined"]) for row in rounds] == [(None, None)] * 2
    assert all(row["macro_f1"] is not None for row in rounds)
    assert summary["metrics"]["broken"] is summary["metrics"]["undefined"] is None
    assert summary["metrics"]["macro_f1"] > 0
