"""Servers that come and go: who is away neither trains nor speaks nor hears, and keeps the model it had."""

import numpy as np
import pytest

import hatdfed
from hatdfed.core.round import STRETCH, is_present, present
from hatdfed.setup.methods import METHODS

SMALL = {"dataset": "synthetic", "network": "linear", "servers": 5, "rounds": 25, "seed": 2, "validation_images": 60}


def test_without_churn_everybody_is_there():
    assert all(present(0, t, 7, 0.0).all() for t in range(50))


def test_who_is_away_is_away_for_a_stretch():
    there = np.array([present(1, t, 40, 0.5) for t in range(4 * STRETCH)])
    for start in range(0, len(there), STRETCH):
        assert (there[start : start + STRETCH] == there[start]).all()
    assert 0.3 < there.mean() < 0.7
    assert not (there == there[0]).all()


def test_one_server_and_all_servers_agree():
    assert present(3, 12, 9, 0.4).tolist() == [is_present(3, 12, server, 0.4) for server in range(9)]


@pytest.fixture(scope="module")
def run():
    return hatdfed.run(**SMALL, method="hat-dfed", churn=0.5)


def test_who_is_away_does_not_train(run):
    for row in run.servers:
        there = is_present(2, row["t"], row["server"], 0.5)
        assert there or row["num_samples"] == 0
    assert any(row["num_samples"] for row in run.servers)


def test_who_is_away_neither_speaks_nor_hears(run):
    assert run.links
    for row in run.links:
        assert is_present(2, row["t"], row["sender"], 0.5)
        assert is_present(2, row["t"], row["receiver"], 0.5)


def test_who_is_away_spends_nothing(run):
    for row in run.ledger:
        if row["joules"]:
            assert is_present(2, row["t"], row["receiver"], 0.5)


def test_who_is_away_keeps_the_model(run):
    accuracy = {(row["t"], row["server"]): row["accuracy"] for row in run.servers}
    stayed = 0
    for (t, server), value in accuracy.items():
        if t and not is_present(2, t, server, 0.5):
            assert value == accuracy[t - 1, server]
            stayed += 1
    assert stayed > 10


@pytest.mark.parametrize("method", METHODS)
def test_every_method_survives_that_nobody_is_there(method):
    settings = {**SMALL, "rounds": 3, "method": method}
    result = hatdfed.run(**settings, churn=1.0)
    assert result.summary["total_energy_mj"] == 0
    assert not result.links


def test_both_fleets_mean_the_same():
    stacked, mailbox = (
        hatdfed.run(**SMALL, method="sgp", churn=0.4, fleet=fleet, device="cpu") for fleet in ("stacked", "mailbox")
    )
    assert stacked.links
    assert [(r["t"], r["sender"], r["receiver"]) for r in stacked.links] == [
        (r["t"], r["sender"], r["receiver"]) for r in mailbox.links
    ]
    assert stacked.summary["avg_accuracy"] == pytest.approx(mailbox.summary["avg_accuracy"], abs=0.5)
    assert stacked.ledger == mailbox.ledger
