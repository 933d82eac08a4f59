"""Runs in which every server considers a few others only: both fleets, checkpoints, records, and what is refused."""

from itertools import pairwise

import numpy as np
import pytest
from tests.alone import mailbox_simulation, run_alone

from hatdfed import resume, run
from hatdfed.cli.app import app
from hatdfed.core.energy.energy_model import EnergyPrices
from hatdfed.core.links import LinkTable, Topology
from hatdfed.data.datasets import load_dataset
from hatdfed.errors import ConfigError
from hatdfed.fleets.sharded.fleet import LocalShards, ShardedFleet
from hatdfed.setup.build.placement import Placement
from hatdfed.setup.build.program import make_actors
from hatdfed.setup.build.ray_shards import make_shard
from hatdfed.setup.build.simulation import make_batch
from hatdfed.setup.build.world import make_world
from hatdfed.setup.layers import config_budget, resolve
from hatdfed.setup.notes import collect_notes
from hatdfed.setup.run_identity import resume_digest

DATASET = load_dataset("synthetic", options={"train": 800, "validation": 150, "test": 60})
FIXED = {
    "dataset": "synthetic", "network": "linear", "servers": 12, "rounds": 5, "validation_images": 100,
    "device_online_probability": 0.2, "candidates": 5, "refresh_every": 2,
}  # fmt: skip
METHODS = ("hat-dfed", "hat-dfed-plus", "rnd", "hat-dfed-released")


def records_of(config, fleet):
    """All rounds, and the models behind the last one."""
    kept = []
    sink = [lambda state, record: kept.append(record)]
    if fleet == "mailbox":
        simulation = mailbox_simulation(config, DATASET)
        run_alone(simulation.coordinator, simulation.fleet, rounds=config.rounds, sinks=sink)
    else:
        simulation = make_batch([config], DATASET, Placement("stacked", "cpu"), names=[""]).simulations[0]
        run_alone(simulation.coordinator, simulation.fleet, rounds=config.rounds, sinks=sink)
    return kept, simulation.fleet.models


@pytest.mark.parametrize("method", METHODS)
def test_both_fleets_play_the_same_rounds(method):
    config = resolve({"method": method, **FIXED})
    (by_post, posted), (stacked, at_once) = (records_of(config, fleet) for fleet in ("mailbox", "stacked"))
    for one, other in zip(by_post, stacked, strict=True):
        assert one.draw.topology == other.draw.topology
        np.testing.assert_array_equal(one.draw.links.senders, other.draw.links.senders)
        np.testing.assert_allclose(one.draw.propensity, other.draw.propensity, rtol=1e-9)
        assert one.report.energy == other.report.energy
        np.testing.assert_array_equal(one.report.delivered(one.draw.links), one.draw.drawn)
        for i, (mine, theirs) in enumerate(zip(one.report.servers, other.report.servers, strict=True)):
            assert mine.senders.tolist() == theirs.senders.tolist() == [i, *one.draw.topology.senders(i)]
            np.testing.assert_allclose(mine.importance, theirs.importance, atol=1e-4)
    np.testing.assert_allclose(posted, at_once, atol=2e-4)
    assert not np.array_equal(by_post[0].draw.links.senders, by_post[-1].draw.links.senders)


@pytest.mark.parametrize("fleet", ["stacked", "mailbox"])
@pytest.mark.parametrize("method", ["hat-dfed", "hat-dfed-plus"])
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not(tmp_path, method, fleet):
    whole = run(method=method, **FIXED, fleet=fleet, checkpoint_every=1)
    run(method=method, **{**FIXED, "rounds": 3}, horizon=5, fleet=fleet, checkpoint_every=1, out=tmp_path / "run")
    gone_on = resume(tmp_path / "run", {"rounds": 5}, fleet=fleet)
    assert gone_on.links == whole.links
    assert gone_on.ledger == whole.ledger
    assert gone_on.summary["accuracy_by_server"] == whole.summary["accuracy_by_server"]


def test_records_have_what_was_drawn_and_matrices_have_zeros_elsewhere():
    result = run(method="hat-dfed", **FIXED)
    last = [row for row in result.links if row["t"] == 4]
    assert len(last) == config_budget(result.config) == round(0.3 * 12 * 5)
    assert result.propensity.shape == (12, 12)
    assert ((result.propensity > 0).sum(axis=1) == 5).all()
    assert result.propensity.sum() == pytest.approx(len(last), rel=1e-6)
    for row in last:
        assert row["propensity"] == pytest.approx(result.propensity[row["receiver"], row["sender"]], rel=1e-6)
        assert row["delivered"] == 1
        assert 0 <= row["utility"] <= 1
        assert 0 < row["importance"] < 1
    prices = {(row["receiver"], row["sender"]): row["joules"] for row in result.ledger if row["cause"] == "link"}
    assert all(result.link_joules[link] == pytest.approx(joules) for link, joules in prices.items())


def test_a_large_run_reads_its_records_when_asked_and_makes_no_matrix(tmp_path):
    few = {"images_per_server": 4, "samples_per_round": 2, "devices": 2, "rounds": 2}
    result = run(method="rnd", **{**FIXED, "servers": 300, **few}, out=tmp_path / "run")
    assert result.link_joules is None
    assert result.propensity is None
    assert len(result.links) == 2 * config_budget(result.config)
    assert {row["cause"] for row in result.ledger[:5]} <= {"upload", "training", "link"}


def forbidden(*_):
    raise AssertionError("a table of all links was made")


@pytest.mark.parametrize(
    ("method", "fleet"), [("hat-dfed", "stacked"), ("hat-dfed-plus", "stacked"), ("hat-dfed", "mailbox")]
)
def test_nobody_makes_a_table_of_all_links(tmp_path, monkeypatch, method, fleet):
    monkeypatch.setattr(Topology, "links", property(forbidden))
    monkeypatch.setattr(EnergyPrices, "link_joules", property(forbidden))
    monkeypatch.setattr(LinkTable, "to_dense", forbidden)
    monkeypatch.setattr(LinkTable, "from_dense", forbidden)
    monkeypatch.setattr("hatdfed.core.links._all_of", forbidden)
    few = {"servers": 260, "images_per_server": 4, "samples_per_round": 2, "devices": 2, "refresh_every": 1}
    few |= {"validation_images": 20}  # every server counts its right answers in them
    rounds = 4 if fleet == "stacked" else 2
    run_folder = tmp_path / "run"
    result = run(method=method, **{**FIXED, **few, "rounds": rounds}, fleet=fleet, out=run_folder)
    assert len(result.rounds) == rounds
    assert len(result.links) > 260


def test_worlds_do_not_depend_on_candidates():
    """Prices are the same with and without a table of them, so differences between such runs are paired."""
    limited, plain = (run(method="rnd", **{**FIXED, "candidates": d, "rounds": 1}) for d in (5, None))
    np.testing.assert_array_equal(limited.link_joules, plain.link_joules)
    assert [row["joules"] for row in limited.ledger if row["cause"] != "link"] == [
        row["joules"] for row in plain.ledger if row["cause"] != "link"
    ]


def test_as_many_candidates_as_others_is_the_run_without_them():
    limited, plain = (run(method="hat-dfed", **{**FIXED, "candidates": d, "rounds": 3}) for d in (11, None))
    assert limited.links == plain.links
    assert limited.summary["accuracy_by_server"] == plain.summary["accuracy_by_server"]
    assert "has no effect: there are only 11 other servers" in " ".join(collect_notes(limited.config))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"method": "d-psgd"},
            "policy 'ring' always looks at all links. Use one of balanced-links, known-groups, link-bandit",
        ),
        ({"method": "ucb"}, "policy 'upper-confidence' always looks at all links"),
        ({"policy": {"name": "balanced-links", "degree": 6}}, "degree is 6, but every server considers 5 others"),
        ({"candidates": 0}, "candidates is 0, but must be"),
        ({"refresh_every": 0}, "refresh_every is 0, but must be"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(settings, message):
    with pytest.raises(ConfigError, match=message):
        run({**FIXED, **settings})


def test_a_deployment_refuses_candidates(tmp_path):
    (tmp_path / "run.yaml").write_text("candidates: 3\n", encoding="utf-8")
    command = ["coordinator", str(tmp_path / "run.yaml"), "--insecure", "--state", str(tmp_path / "state")]
    with pytest.raises(ConfigError, match="on real machines every link is considered"):
        app(command, standalone_mode=False)
    assert not (tmp_path / "state").exists()


def test_a_run_without_candidates_keeps_the_name_it_had_before_there_were_any():
    plain = resolve({"method": "hat-dfed"})
    assert resume_digest(plain) == resume_digest(plain.model_copy(update={"refresh_every": 3}))
    limited = plain.model_copy(update={"candidates": 2})
    assert resume_digest(limited) != resume_digest(plain)
    assert resume_digest(limited) != resume_digest(limited.model_copy(update={"refresh_every": 3}))


def test_a_fleet_in_shards_plays_the_same_rounds():
    config = resolve({"method": "hat-dfed", **FIXED, "rounds": 4})
    bounds = (0, 5, 12)
    coordinator, _ = make_actors(config, DATASET)
    shards = LocalShards([make_shard(config, DATASET, *ends, "cpu") for ends in pairwise(bounds)], bounds)
    kept = []
    fleet = ShardedFleet(shards, coordinator.prices, make_world(config, DATASET).test)
    run_alone(coordinator, fleet, rounds=4, sinks=[lambda state, record: kept.append(record)])
    for one, other in zip(records_of(config, "stacked")[0], kept, strict=True):
        assert one.draw.topology == other.draw.topology
        assert one.report.energy == other.report.energy
        np.testing.assert_array_equal(one.report.accuracy, other.report.accuracy)
