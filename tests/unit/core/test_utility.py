import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hatdfed.core.energy.energy_model import draw_prices
from hatdfed.core.links import LinkTable, Topology, all_links
from hatdfed.core.policies.base import certain
from hatdfed.core.round import RoundReport, ServerReport
from hatdfed.core.utility import GAINS, NORMALISATIONS, THRIFTS, LinkUtility, RoundFacts, minmax, softmax
from hatdfed.errors import ConfigError

N = 4
LINKS = LinkTable.all_of(N)
DRAWN = Topology.from_pairs(N, [(0, 1), (1, 2), (2, 3)])


def prices(seed=0):
    return draw_prices(
        seed, N, num_devices=30, samples_per_device=2, bits_per_sample=6272, model_bits=47.2e6,
        weak_joules_per_sample=17.33, strong_joules_per_sample=8.67, device_kbit_per_joule=1.0,
        link_kbit_per_joule=(20.0, 50.0),
    )  # fmt: skip


def facts(gain=(0.1, 0.0, -0.2, 0.3), upload=(188.0, 200.0, 0.0, 150.0), compute=(400.0, 250.0, 0.0, 300.0)):
    draw = certain(LINKS, LINKS.from_dense(DRAWN.links))
    senders = [np.array([i, *DRAWN.senders(i)]) for i in range(N)]
    report = RoundReport(tuple(ServerReport(0.5, 1, those, np.full(len(those), 0.5), ()) for those in senders))
    every = np.ones(len(LINKS), dtype=bool)
    servers = (np.array(gain), np.array(upload), np.array(compute))
    return RoundFacts(*servers, prices(), LINKS, prices().joules_of(LINKS), every, draw, report)


def matrix(column):
    return LINKS.to_dense(column.reshape(-1))


@pytest.mark.parametrize("normalisation", NORMALISATIONS)
@pytest.mark.parametrize("gain", GAINS)
@pytest.mark.parametrize("thrift", THRIFTS)
def test_utility_lies_between_0_and_1_for_every_link(normalisation, gain, thrift):
    utility = LinkUtility(normalisation=normalisation, gain=gain, thrift=thrift)(facts())
    assert (utility >= 0).all()
    assert (utility <= 1).all()
    assert utility.shape == (N * (N - 1),)


def test_utility_is_the_printed_mix_of_gain_and_thrift():
    utility = matrix(LinkUtility(gain_share=0.6)(facts()))
    off = all_links(N)
    gain = (facts().gain - -0.2) / 0.5
    cost = (facts().upload_joules + facts().compute_joules)[None, :] + prices().link_joules
    thrift = 1 - (cost - cost[off].min()) / (cost[off].max() - cost[off].min())
    expected = 0.6 * gain[:, None] + 0.4 * thrift
    np.testing.assert_allclose(utility[off], expected[off], atol=1e-12)


def test_the_senders_work_and_the_link_count_against_a_link_not_the_receivers():
    base = matrix(LinkUtility(gain_share=0.0)(facts()))
    dearer_sender = matrix(LinkUtility(gain_share=0.0)(facts(compute=(400.0, 250.0, 0.0, 3000.0))))
    assert (dearer_sender[:3, 3] < base[:3, 3]).all()


def test_softmax_on_joules_is_one_hot_and_on_accuracies_flat():
    assert softmax(np.array([2360.0, 1442.0, 944.0])).max() == pytest.approx(1)
    flat = softmax(np.array([0.01, 0.02, -0.01]))
    assert np.ptp(flat) < 0.02


@given(st.floats(-5, 5), st.integers(1, 6))
def test_equal_values_give_a_half_under_minmax_and_uniform_under_softmax(value, size):
    values = np.full(size, value)
    np.testing.assert_array_equal(minmax(values), np.full(size, 0.5))
    for name in ("softmax", "softmax-standardised"):
        np.testing.assert_allclose(NORMALISATIONS[name](values), np.full(size, 1 / size))


def test_released_gain_needs_a_model_that_arrived():
    utility = matrix(GAINS["released"](facts(), softmax))
    assert (utility[~DRAWN.links] == 0).all()
    assert (utility[DRAWN.links] > 0).all()


def test_an_unknown_choice_is_refused():
    with pytest.raises(ConfigError, match="Did you mean minmax"):
        LinkUtility(normalisation="minmx")


def test_released_gain_is_a_softmax_over_servers_of_percent_times_the_links_weight():
    gain = np.array([0.01, 0.0, -0.02, 0.03])
    share = np.exp(100 * gain) / np.exp(100 * gain).sum()
    score = matrix(GAINS["released"](facts(gain=gain), softmax))
    assert score[0, 1] == pytest.approx(0.5 * share[0])
    assert score[2, 3] == pytest.approx(0.5 * share[2])


def test_released_thrift_counts_links_machines_and_devices_in_small_units():
    world = prices()
    online = np.array([15.0, 10.0, 30.0, 0.0])
    upload = online * world.device_upload_bits * world.device_joules_per_bit
    one = facts(upload=upload)
    machine = np.where(world.compute_joules == 17.33, 2.0, 1.0) if len(set(world.compute_joules)) > 1 else np.ones(N)
    middle = np.median(world.link_joules[all_links(N)])
    cost = {
        (i, j): machine[j] * online[j] / 30 + 0.4 * online[j] + (2.0 if world.link_joules[i, j] > middle else 1.0)
        for i, j in DRAWN.pairs.tolist()
    }
    weights = {link: np.exp(value - max(cost.values())) for link, value in cost.items()}
    thrift = matrix(THRIFTS["released"](one, softmax))
    for link, weight in weights.items():
        assert thrift[link] == pytest.approx(1 - weight / sum(weights.values()))
    assert (thrift[all_links(N) & ~DRAWN.links] == 1).all()


@pytest.mark.parametrize("normalisation", NORMALISATIONS)
def test_a_link_that_cannot_be_drawn_is_worth_nothing_and_counts_for_nobody(normalisation):
    whole, judge = facts(), LinkUtility(normalisation=normalisation)
    possible = all_links(N)
    possible[1, 0] = possible[:, 3] = possible[3] = False
    utility = matrix(judge(whole._replace(possible=LINKS.from_dense(possible))))
    assert (utility[~possible] == 0).all()
    norm = NORMALISATIONS[normalisation]
    cost = (whole.upload_joules + whole.compute_joules)[None, :] + prices().link_joules
    gain = np.broadcast_to(whole.gain[:, None], (N, N))
    expected = 0.6 * norm(gain[possible]) + 0.4 * (1 - norm(cost[possible]))
    np.testing.assert_allclose(utility[possible], expected, atol=1e-12)
