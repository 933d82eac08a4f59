"""The ledger is the bill: three causes, and nothing else."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hatdfed.core.effort import ServerEffort
from hatdfed.core.energy.energy_model import Cause, EnergyRow, draw_prices, joules_by_cause, total_joules
from hatdfed.runs.calls import run

PAPER = {
    "num_devices": 30,
    "samples_per_device": 2,
    "bits_per_sample": 6272,
    "model_bits": 47.2e6,
    "weak_joules_per_sample": 17.33,
    "strong_joules_per_sample": 8.67,
    "device_kbit_per_joule": 1.0,
    "link_kbit_per_joule": (20.0, 50.0),
}

rows = st.lists(
    st.builds(
        EnergyRow,
        st.integers(0, 5),
        st.sampled_from(list(Cause)),
        st.integers(0, 4),
        st.integers(0, 4),
        st.floats(0, 1e9),
        st.floats(0, 1e9),
    )
)


@given(rows)
def test_the_three_causes_sum_to_the_round_total(ledger):
    assert math.fsum(joules_by_cause(ledger).values()) == pytest.approx(total_joules(ledger), rel=1e-15)


def test_prices_are_those_of_the_paper():
    prices = draw_prices(0, 5, **PAPER)
    assert prices.upload(0, 0, 1, 2).joules == pytest.approx(12.544)
    assert set(prices.compute_joules) <= {17.33, 8.67}
    off = ~np.eye(5, dtype=bool)
    assert (prices.link_joules[off] >= 944).all()
    assert (prices.link_joules[off] <= 2360).all()
    assert prices.training(0, 0, 0).joules == 0


def test_passes_are_free_by_the_paper_and_charged_for_if_wanted():
    by_sample, by_pass = draw_prices(0, 5, **PAPER), draw_prices(0, 5, **PAPER, local_passes=2)
    tau = float(by_sample.compute_joules[3])
    for passes in (1, 4):
        effort = ServerEffort(passes, asks=True)
        assert by_sample.training(0, 3, 10, effort).joules == 10 * tau
        assert by_pass.training(0, 3, 10, effort).joules == 10 * passes * tau
    assert by_pass.training(0, 3, 10).joules == 20 * tau, "as many passes as the settings say"


@pytest.mark.parametrize("passes", [1, 3])
def test_a_runs_training_is_charged_by_the_pass(passes):
    settings = {"method": "rnd", "dataset": "synthetic", "network": "linear", "rounds": 2, "servers": 3}
    by_sample, by_pass = (
        run(**settings, local_passes=passes, energy={"training_per": per}).summary["energy_by_cause_mj"]
        for per in ("sample", "pass")
    )
    assert by_pass["training"] == pytest.approx(passes * by_sample["training"])
    assert by_pass["upload"] == by_sample["upload"]


def test_the_mean_link_costs_what_the_papers_range_implies():
    prices = draw_prices(0, 400, **PAPER)
    assert prices.link_joules[~np.eye(400, dtype=bool)].mean() == pytest.approx(1442, rel=0.01)


def test_half_the_bits_cost_half_the_joules():
    prices = draw_prices(0, 5, **PAPER)
    assert prices.link(0, 1, 2, compression=0.5).joules == pytest.approx(prices.link(0, 1, 2).joules / 2)


def test_prices_belong_to_the_seed():
    np.testing.assert_array_equal(draw_prices(7, 6, **PAPER).link_joules, draw_prices(7, 6, **PAPER).link_joules)
    assert not np.array_equal(draw_prices(7, 6, **PAPER).link_joules, draw_prices(8, 6, **PAPER).link_joules)


@settings(max_examples=5, deadline=None)
@given(method=st.sampled_from(["hat-dfed", "rnd", "full", "local"]), seed=st.integers(0, 100))
def test_a_runs_ledger_is_exactly_the_papers_formula(method, seed):
    result = run(method=method, seed=seed, dataset="synthetic", network="linear", rounds=3, servers=4)
    samples = {(row["t"], row["server"]): row["num_samples"] for row in result.servers}
    for row in result.ledger:
        if row["cause"] == "training":
            assert row["joules"] in {samples[row["t"], row["receiver"]] * tau for tau in (0.5, 0.25)}
        if row["cause"] == "link":
            assert row["joules"] == pytest.approx(result.link_joules[row["receiver"]][row["sender"]], rel=1e-12)
        if row["cause"] == "upload":
            assert row["joules"] == pytest.approx(samples[row["t"], row["receiver"]] * 512 / 1000, rel=1e-12)
    drawn = {(row["t"], row["receiver"], row["sender"]) for row in result.links}
    billed = [(row["t"], row["receiver"], row["sender"]) for row in result.ledger if row["cause"] == "link"]
    assert sorted(billed) == sorted(drawn)
    total = math.fsum(row["joules"] for row in result.ledger)
    assert result.summary["total_energy_mj"] * 1e6 == pytest.approx(total, rel=1e-14)
    assert math.fsum(result.summary["energy_by_cause_mj"].values()) == pytest.approx(total / 1e6, rel=1e-14)
