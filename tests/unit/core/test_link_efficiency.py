import numpy as np
import pytest

from hatdfed.core.energy.energy_model import draw_prices, grow_prices
from hatdfed.core.energy.link_efficiency import LinkEfficiencies
from hatdfed.core.links import LinkTable, Topology

WORLD = {
    "num_devices": 30, "samples_per_device": 2, "bits_per_sample": 512, "model_bits": 1e6,
    "weak_joules_per_sample": 0.5, "strong_joules_per_sample": 0.25, "device_kbit_per_joule": 1.0,
    "link_kbit_per_joule": (20.0, 50.0),
}  # fmt: skip


@pytest.mark.parametrize(("seed", "size"), [(0, 2), (1, 7), (2**40, 53)])
def test_any_link_is_found_without_the_table_to_the_last_bit(seed, size):
    links = LinkEfficiencies(seed, size, (20.0, 50.0))
    table = links.table()
    receiver, sender = np.indices((size, size))
    np.testing.assert_array_equal(links[receiver, sender], table)
    for i, j in [(0, 0), (0, size - 1), (size - 1, 0), (size // 2, 1)]:
        assert links.one(i, j) == table[i, j]


def test_prices_are_the_same_with_and_without_a_table():
    plain, lean = (draw_prices(4, 9, **WORLD, with_table=with_table) for with_table in (True, False))
    np.testing.assert_array_equal(plain.link_joules, lean.link_joules)
    np.testing.assert_array_equal(plain.compute_joules, lean.compute_joules)
    assert plain.link(3, 2, 7, compression=0.25) == lean.link(3, 2, 7, compression=0.25)
    some = LinkTable.of_candidates((np.arange(9)[:, None] + [1]) % 9)
    for links in (some, LinkTable.all_of(9)):
        np.testing.assert_array_equal(plain.joules_of(links), lean.joules_of(links))
        np.testing.assert_array_equal(plain.joules_of(links), plain.link_joules[links.receiver, links.sender])
    more = {name: WORLD[name] for name in ("weak_joules_per_sample", "strong_joules_per_sample", "link_kbit_per_joule")}
    grown = [grow_prices(prices, 4, 12, **more).link_joules for prices in (plain, lean)]
    np.testing.assert_array_equal(*grown)


def test_a_topology_of_pairs_is_that_of_its_matrix():
    pairs = np.array([[3, 0], [0, 2], [3, 1], [0, 2], [1, 3]])
    topology = Topology.from_pairs(4, pairs)
    assert topology == Topology(topology.links)
    assert hash(topology) == hash(Topology(topology.links))
    assert topology.num_links == 4
    assert topology.pairs.tolist() == [[0, 2], [1, 3], [3, 0], [3, 1]]
    assert topology.senders(3) == (0, 1)
    assert topology.senders(2) == ()
    assert topology.receivers(2) == (0,)


@pytest.mark.parametrize(
    ("pairs", "message"), [([(1, 1)], "to itself"), ([(0, 4)], "from 0 to 3"), ([(-1, 0)], "from")]
)
def test_a_topology_refuses_pairs_that_cannot_be(pairs, message):
    with pytest.raises(ValueError, match=message):
        Topology.from_pairs(4, pairs)
