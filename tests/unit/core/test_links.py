import numpy as np
import pytest

from hatdfed.core.links import Topology, all_links, are_all_links, is_strongly_connected, off_diagonal


def test_row_receives():
    topology = Topology.from_pairs(3, [(0, 1), (0, 2), (2, 1)])
    assert topology.senders(0) == (1, 2)
    assert topology.receivers(1) == (0, 2)
    assert topology.num_links == 3
    assert topology.num_servers == 3


def test_links_cannot_be_changed_afterwards_nor_through_the_original():
    links = np.zeros((2, 2), dtype=bool)
    topology = Topology(links)
    links[0, 1] = True
    assert topology.num_links == 0
    with pytest.raises(ValueError, match="read-only"):
        topology.links[0, 1] = True


@pytest.mark.parametrize(("links", "message"), [(np.eye(2), "itself"), (np.zeros((2, 3)), "square")])
def test_what_is_no_topology_is_refused(links, message):
    with pytest.raises(ValueError, match=message):
        Topology(links.astype(bool))


def test_equal_links_are_equal_topologies():
    assert Topology(all_links(3)) == Topology(all_links(3))
    assert hash(Topology(all_links(3))) == hash(Topology(all_links(3)))
    assert Topology(all_links(3)) != Topology.from_pairs(3, [(0, 1)])


def test_a_directed_ring_is_strongly_connected_and_a_line_is_not():
    assert is_strongly_connected(Topology.from_pairs(4, [(1, 0), (2, 1), (3, 2), (0, 3)]))
    assert not is_strongly_connected(Topology.from_pairs(4, [(1, 0), (2, 1), (3, 2)]))
    assert not is_strongly_connected(Topology.from_pairs(3, [(0, 1), (0, 2), (1, 2)]))


@pytest.mark.parametrize("size", [0, 1, 2, 5])
def test_off_the_diagonal_are_the_links_in_their_order(size):
    matrix = np.arange(size * size).reshape(size, size)
    np.testing.assert_array_equal(off_diagonal(matrix).ravel(), matrix[all_links(size)])
    off_diagonal(matrix)[:] = -1
    np.testing.assert_array_equal(matrix == -1, all_links(size))


def test_a_mask_without_one_link_is_not_all_links():
    mask = all_links(4)
    assert are_all_links(mask)
    mask[2, 1] = False
    assert not are_all_links(mask)
