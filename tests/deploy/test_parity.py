"""Real connections with certificates against mailboxes in memory: the same topologies, the same models."""

import pytest
import torch
from tests.alone import mailbox_simulation, run_alone
from tests.deploy.deployment import Deployment, settings
from tests.uneven_effort import plan_unevenly

from hatdfed.data.datasets import load_dataset
from hatdfed.runs.calls import run

TOLERANCE = 1e-5


def simulated(config):
    """Links of every round, and the models of the last."""
    simulation = mailbox_simulation(config, load_dataset(config.dataset, options=config.dataset_options))
    links = []
    keep = lambda state, record: links.append(record.draw.topology.links.tolist())  # noqa: E731
    run_alone(simulation.coordinator, simulation.fleet, rounds=config.rounds, sinks=[keep])
    return links, simulation.fleet.models


async def deployed(folder, config):
    async with Deployment(folder, config) as deployment:
        edges = await deployment.start_edges(config.servers)
        summary = await deployment.run
        handlers = [edge._handler for edge in edges]
        by_index = sorted(handlers, key=lambda handler: handler.mailbox.index)
        models = torch.stack([handler.runner.server.params for handler in by_index])
        links = [deployment_links(deployment, t) for t in range(config.rounds)]
    return links, models, summary


def deployment_links(deployment, t):
    rows = deployment.process.folder.read().records("links")
    matrix = [[False] * deployment.config.servers for _ in range(deployment.config.servers)]
    for row in rows:
        if row["t"] == t:
            assert row["delivered"]
            matrix[row["receiver"]][row["sender"]] = True
    return matrix


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("hat-dfed", {}),
        ("hat-dfed-plus", {"schedule": {"every": 2, "finish_rounds": 1}, "codec": "float32"}),
        ("sgp", {"servers": 4}),
        ("d-psgd", {}),
        ("rnd", {"codec": "int4", "rounds": 2}),
    ],
)
def test_deployment_and_simulation_give_the_same(play, tmp_path, one_thread, method, more):
    config = settings(method, **more)
    expected, models = simulated(config)
    links, deployed_models, summary = play(deployed(tmp_path, config))
    assert links == expected
    torch.testing.assert_close(deployed_models, models, atol=TOLERANCE, rtol=0)
    assert summary["rounds"] == config.rounds
    assert summary["accuracy_from"] == "test"


def test_deployment_and_simulation_leave_the_same_fields(play, tmp_path, one_thread):
    config = settings(rounds=1)
    simulation = run(config, out=tmp_path / "simulation")
    deployment = play(deployed(tmp_path / "deployment", config))[2]
    assert deployment.keys() == simulation.summary.keys()
    assert deployment["confusion_matrix"] == simulation.summary["confusion_matrix"]
    assert deployment["training_loss"] == pytest.approx(simulation.summary["training_loss"], rel=1e-4)
    assert deployment["validation_loss"] == pytest.approx(simulation.summary["validation_loss"], rel=1e-4)
    assert deployment["computed_by"] == {"fleet": "remote"}


def test_deployment_and_simulation_take_the_same_simulated_time(play, tmp_path, one_thread):
    config = settings(rounds=2, machines={"profiles": ["raspberry-pi-4", "phone"]})
    simulation = run(config, fleet="mailbox")
    _, _, summary = play(deployed(tmp_path, config))
    assert summary["simulated_seconds"] == pytest.approx(simulation.summary["simulated_seconds"])
    assert summary["energy_by_cause_mj"] == pytest.approx(simulation.summary["energy_by_cause_mj"])


async def beliefs_of(folder, config):
    async with Deployment(folder, config) as deployment:
        await deployment.start_edges(config.servers)
        summary = await deployment.run
        database = deployment.process.folder.read()
        return database.records("trust"), database.last_verdicts(), summary


def test_a_deployment_keeps_what_its_policy_believes_as_a_simulation_does(play, tmp_path, one_thread):
    early = {"policy": {"latest": 0.2, "quiet": 1}, "schedule": {"every": 1, "finish_rounds": 1}}
    config = settings("hat-dfed-trust", rounds=5, codec="float32", **early)
    result = run(config, fleet="mailbox")
    rows, (at, verdicts), summary = play(beliefs_of(tmp_path, config))
    facts = [(row["t"], row["server"], row["state"], row["group_number"], row["reason"]) for row in rows]
    assert facts == [change[:5] for change in result.trust.changes]
    assert at == result.trust.verdicts_at
    torch.testing.assert_close(
        torch.tensor(verdicts), torch.tensor(result.trust.verdicts), atol=1e-3, rtol=0, equal_nan=True
    )
    assert summary["groups"] == result.summary["groups"]


@pytest.mark.parametrize("method", ["hat-dfed", "d-psgd"])
def test_edges_train_as_much_as_their_orders_say(play, tmp_path, one_thread, monkeypatch, method):
    plan_unevenly(monkeypatch)
    config = settings(method)
    expected, models = simulated(config)
    links, deployed_models, summary = play(deployed(tmp_path, config))
    assert links == expected
    torch.testing.assert_close(deployed_models, models, atol=TOLERANCE, rtol=0)
    spent = run(config, fleet="mailbox").summary["energy_by_cause_mj"]
    assert summary["energy_by_cause_mj"] == pytest.approx(spent)


def test_edges_hold_and_send_what_a_simulation_does(play, tmp_path, one_thread, monkeypatch):
    plan_unevenly(monkeypatch)
    config = settings("d-psgd", uploads={"keep": "samples", "memory_samples": 40})
    _, models = simulated(config)
    _, deployed_models, summary = play(deployed(tmp_path, config))
    torch.testing.assert_close(deployed_models, models, atol=TOLERANCE, rtol=0)
    assert summary["energy_by_cause_mj"] == pytest.approx(run(config, fleet="mailbox").summary["energy_by_cause_mj"])


def test_a_deployment_trains_by_its_policy_within_its_budget(play, tmp_path, one_thread):
    more = {"training": {"name": "marginal-gain", "warm_up": 0.0}, "uploads": {"keep": "samples"}, "rounds": 5}
    usual = run(settings("hat-dfed-plus", **more), fleet="mailbox").summary["total_energy_mj"]
    config = settings("hat-dfed-plus", **more, budget_joules=0.8e6 * usual)
    _, models = simulated(settings("hat-dfed-plus", **more))
    _, _, summary = play(deployed(tmp_path / "budget", config))
    assert 0 < summary["total_energy_mj"] <= 0.8 * usual
    _, deployed_models, summary = play(deployed(tmp_path / "free", settings("hat-dfed-plus", **more)))
    torch.testing.assert_close(deployed_models, models, atol=1e-3, rtol=0)
    assert summary["total_energy_mj"] == pytest.approx(usual)
