"""Prices of links that change during a run."""

import numpy as np
import pytest

from hatdfed.core.energy.energy_model import draw_prices
from hatdfed.core.energy.price_drift import PriceDrift
from hatdfed.core.links import LinkTable
from hatdfed.data.datasets import load_dataset
from hatdfed.setup.build.program import make_actors
from hatdfed.setup.layers import resolve

N, K = 6, 40
DRIFT = PriceDrift(2, 3.0, K)
LINKS = LinkTable.all_of(N)
WORLD = {
    "num_devices": 30, "samples_per_device": 2, "bits_per_sample": 512, "model_bits": 1e6,
    "weak_joules_per_sample": 0.5, "strong_joules_per_sample": 0.25, "device_kbit_per_joule": 1.0,
    "link_kbit_per_joule": (20.0, 50.0),
}  # fmt: skip


def factors(drift=DRIFT):
    return np.stack([drift.factor(t, LINKS.receiver, LINKS.sender) for t in range(K)])  # [K, E]


def test_prices_stay_within_the_factor_and_its_inverse_and_come_near_both():
    table = factors()
    assert 1 / 3 <= table.min() < 0.34
    assert 2.95 < table.max() <= 3


def test_over_a_run_cheap_and_dear_times_balance():
    np.testing.assert_allclose(np.log(factors()).mean(axis=0), 0, atol=1e-9)


def test_every_link_has_its_own_times():
    assert len({column.tobytes() for column in np.round(factors().T, 9)}) == len(LINKS)
    assert float(DRIFT.factor(0, 1, 2)) != pytest.approx(float(DRIFT.factor(0, 2, 1)))


def test_prices_move_slowly():
    steps = np.abs(np.diff(np.log(factors()), axis=0))
    assert steps.max() < np.log(3) * 2 * np.pi / K * 1.01


def test_one_link_alone_is_as_in_the_table():
    for place, (receiver, sender) in enumerate(LINKS.pairs(np.arange(len(LINKS)))):
        assert float(DRIFT.factor(7, int(receiver), int(sender))) == pytest.approx(factors()[7, place], rel=1e-12)


def test_a_seed_is_a_drift():
    np.testing.assert_array_equal(factors(), factors(PriceDrift(2, 3.0, K)))
    assert not np.allclose(factors(), factors(PriceDrift(3, 3.0, K)))


def test_the_ledger_charges_what_a_link_costs_in_its_round():
    steady, moving = (draw_prices(2, N, **WORLD, drift=drift) for drift in (None, DRIFT))
    for t in (0, 9, 33):
        plain, now = (prices.link(t, 4, 1, compression=0.25) for prices in (steady, moving))
        assert now.joules == pytest.approx(plain.joules * float(DRIFT.factor(t, 4, 1)), rel=1e-12)
        assert now.bits == plain.bits


@pytest.mark.parametrize("with_table", [True, False])
def test_what_is_told_before_a_round_is_what_is_charged_in_it(with_table):
    prices = draw_prices(2, N, **WORLD, drift=DRIFT, with_table=with_table)
    told = prices.apply_drift(prices.joules_of(LINKS), LINKS, 9)
    charged = [prices.link(9, int(i), int(j)).joules for i, j in LINKS.pairs(np.arange(len(LINKS)))]
    np.testing.assert_allclose(told, charged, rtol=1e-12)


def test_without_drift_prices_are_the_same_in_every_round():
    prices = draw_prices(2, N, **WORLD)
    joules = prices.joules_of(LINKS)
    assert prices.apply_drift(joules, LINKS, 9) is joules
    assert prices.link(0, 4, 1).joules == prices.link(9, 4, 1).joules


def coordinator(**more):
    config = resolve({"method": "hat-dfed", "dataset": "digits", "network": "linear", "servers": N, "seed": 2, **more})
    return make_actors(config, load_dataset("digits"))[0]


@pytest.mark.parametrize("more", [{}, {"candidates": 3}])
def test_a_policy_is_told_the_prices_of_the_round(more):
    steady, moving = (coordinator(rounds=K, world={"price_drift": most}, **more) for most in (1.0, 3.0))
    before = moving.start(np.zeros(N))
    for t in (0, 9, 33):
        context = moving.context(before._replace(t=t))
        plain = steady.context(steady.start(np.zeros(N))._replace(t=t))
        factor = DRIFT.factor(t, context.links.receiver, context.links.sender)
        np.testing.assert_allclose(context.prices, plain.prices * factor, rtol=1e-12)


def test_a_run_that_is_extended_keeps_its_drift():
    drifts = [coordinator(rounds=rounds, horizon=K, world={"price_drift": 3.0}).prices.drift for rounds in (K, 2 * K)]
    assert drifts[0] == drifts[1] == DRIFT
