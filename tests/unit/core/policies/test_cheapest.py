"""The cheapest links: everybody stays connected, within the budget and for little."""

import numpy as np
import pytest
from tests.connected import is_strongly_connected

from hatdfed.core.links import Topology, all_links
from hatdfed.core.policies.cheapest import CheapestLinks, _nearest_first, cheap_cycle, cycle_price
from hatdfed.randomness import stream
from hatdfed.testing import policy_context


def links_of(n, budget, t=0, **given):
    context = policy_context(n, t=t, budget=budget, **given)
    return CheapestLinks().propose(None, context, stream(0, "unused")).topology.links


def random_prices(n, seed=0):
    return stream(seed, "test-prices", n).uniform(1, 3, (n, n))


@pytest.mark.parametrize("n", [*range(2, 14), 20, 33, 54])
def test_everybody_reaches_everybody_within_a_window_of_rounds(n):
    for budget in {1, 2, n // 3, n - 1, n, n + 3, n * (n - 1)} & set(range(1, n * (n - 1) + 1)):
        window = -(-n // budget)
        for start in (0, 5):
            rounds = [links_of(n, budget, t) for t in range(start, start + window)]
            assert [links.sum() for links in rounds] == [budget] * window
            assert is_strongly_connected(Topology(np.any(rounds, axis=0)))


def test_the_cheapest_links_alone_would_leave_a_dear_server_out():
    prices = random_prices(6)
    prices[0] += 100
    alone = np.zeros((6, 6), dtype=bool)
    off_diagonal = np.where(all_links(6), prices, np.inf)
    alone.flat[np.argsort(off_diagonal, axis=None)[:9]] = True
    assert not is_strongly_connected(Topology(alone))
    assert is_strongly_connected(Topology(links_of(6, 9, prices=prices)))


def test_what_the_trip_leaves_of_the_budget_goes_to_the_cheapest_others():
    prices = random_prices(7)
    trip, more = links_of(7, 7, prices=prices), links_of(7, 12, prices=prices)
    assert (trip & more).sum() == 7
    added, left = more & ~trip, all_links(7) & ~more
    assert prices[added].max() <= prices[left].min()


@pytest.mark.parametrize("n", [3, 4, 5, 8, 13, 20, 54])
def test_the_trip_is_a_cheap_one(n):
    for seed in range(3):
        prices = random_prices(n, seed)
        links, rng = links_of(n, n, prices=prices), stream(seed, "cycles")
        assert (links.sum(axis=0) == 1).all()
        assert (links.sum(axis=1) == 1).all()
        random_cycles = [cycle_price(prices, rng.permutation(n)) for _ in range(200)]
        assert prices[links].sum() <= np.median(random_cycles)


def test_the_trip_is_never_dearer_than_the_plain_ring():
    for n in range(2, 21):
        for seed in range(2):
            prices = random_prices(n, seed)
            found = cycle_price(prices, cheap_cycle(prices))
            assert found <= cycle_price(prices, np.arange(n)) + 1e-9
            assert found <= cycle_price(prices, np.arange(n)[::-1]) + 1e-9


@pytest.mark.parametrize("unit", [1.0, 1e-9, 1e9])
def test_prices_are_read_as_row_receives_in_any_unit(unit):
    n = 9
    order = stream(3, "hidden").permutation(n)
    prices = np.full((n, n), 2.0)
    prices[np.roll(order, -1), order] = 1.0  # cheap one way round only
    links = links_of(n, n, prices=unit * prices)
    np.testing.assert_array_equal(links, prices == 1.0)
    assert not np.array_equal(links, (prices == 1.0).T)


def test_the_nearest_is_the_one_cheapest_to_send_to():
    order = stream(3, "hidden").permutation(9)
    prices = np.full((9, 9), 2.0)
    prices[np.roll(order, -1), order] = 1.0
    np.testing.assert_array_equal(_nearest_first(prices, order[0]), order)


@pytest.mark.parametrize("unit", [1.0, 1e-9, 1e9])
@pytest.mark.parametrize("n", [6, 12])
def test_no_single_server_could_be_moved_to_a_better_place(n, unit):
    prices = random_prices(n)
    links = links_of(n, n, prices=unit * prices)
    trip = [0]
    while len(trip) < n:
        trip.append(int(links[:, trip[-1]].argmax()))
    for server in trip:
        rest = [other for other in trip if other != server]
        moved = [np.array([*rest[:place], server, *rest[place:]]) for place in range(n)]
        assert prices[links].sum() <= min(cycle_price(prices, tour) for tour in moved) + 1e-6


def test_dead_links_and_absent_servers_are_gone_round():
    n = 8
    reachable = all_links(n)
    active = np.ones(n, dtype=bool)
    active[3] = False
    cheap = links_of(n, 7, active=active)
    reachable[cheap] = False
    links = links_of(n, 7, active=active, reachable=reachable)
    assert not (links & cheap).any()
    assert not links[3].any()
    assert not links[:, 3].any()
    assert is_strongly_connected(Topology(links[np.ix_(active, active)]))


@pytest.mark.parametrize("budget", [1, 2, 4, 5])
def test_without_any_round_trip_possible_links_are_drawn_all_the_same(budget):
    reachable = all_links(4)
    reachable[0] = False  # nobody can send to server 0
    reachable[1, [2, 3]] = False
    for t in range(4):
        links = links_of(4, budget, t, reachable=reachable)
        assert links.sum() == budget
        assert not (links & ~reachable).any()
    assert links_of(4, 12, reachable=reachable).sum() == 7, "all there are"


def test_fewer_than_two_servers_have_no_links():
    for present in (0, 1):
        assert not links_of(4, 3, active=np.arange(4) < present).any()
