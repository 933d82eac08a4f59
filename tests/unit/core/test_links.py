import numpy as np
import pytest
from tests.connected import is_strongly_connected

from hatdfed.core.candidates import regular_graph
from hatdfed.core.links import (
    LinkTable,
    Topology,
    all_links,
    num_servers_of,
    off_diagonal,
)
from hatdfed.randomness import stream


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


def tables():
    """Tables of links of both kinds, and the matrix of what each considers."""
    for size in (1, 2, 3, 7, 20):
        yield pytest.param(LinkTable.all_of(size), all_links(size), id=f"all of {size}")
        for degree in sorted({1, size // 2, size - 1} & set(range(1, size))):
            candidates = regular_graph(size, degree, stream(size, "graph"))
            considered = np.zeros((size, size), dtype=bool)
            np.put_along_axis(considered, candidates, True, axis=1)
            yield pytest.param(LinkTable.of_candidates(candidates), considered, id=f"{degree} of {size}")


every_table = pytest.mark.parametrize(("links", "considered"), list(tables()))


@every_table
def test_links_stand_by_receiver_then_by_sender(links, considered):
    receiver, sender = np.nonzero(considered)
    assert len(links) == len(receiver)
    np.testing.assert_array_equal(links.receiver, receiver)
    np.testing.assert_array_equal(links.sender, sender)
    np.testing.assert_array_equal(links.pairs(np.arange(len(links))), np.argwhere(considered))
    np.testing.assert_array_equal(links.places(receiver, sender), np.arange(len(links)))
    np.testing.assert_array_equal(links.by_receiver(links.sender), links.senders)
    assert links.has_all == (considered.sum() == considered.size - len(considered))


@every_table
def test_numbers_of_servers_come_to_the_links_where_they_receive_and_send(links, considered):
    values = stream(0, "values").random(links.num_servers)
    np.testing.assert_array_equal(links.at_receivers(values), values[links.receiver])
    np.testing.assert_array_equal(links.at_senders(values), values[links.sender])
    for column in (links.at_receivers(values), links.at_senders(values)):
        column += 1  # it is the caller's, and nobody else's
    np.testing.assert_array_equal(values, stream(0, "values").random(links.num_servers))


@every_table
def test_a_column_becomes_a_matrix_and_comes_back(links, considered):
    column = stream(0, "column").random(len(links))
    matrix = links.to_dense(column, np.nan)
    np.testing.assert_array_equal(matrix[considered], column)
    assert np.isnan(matrix[~considered]).all()
    np.testing.assert_array_equal(links.from_dense(matrix), column)
    np.testing.assert_array_equal(links.from_dense(matrix.T.copy().T), column)
    assert links.to_dense(column > 0.5).dtype == bool
    assert not links.to_dense(column > 0.5)[~considered].any()


@pytest.mark.parametrize("links", [LinkTable.all_of(3), LinkTable.of_candidates(np.array([[1], [2], [0]]))])
def test_a_matrix_that_is_not_one_of_links_is_refused(links):
    with pytest.raises(ValueError, match=r"3 servers have a matrix of links of shape \(3, 3\), not \(4, 4\)"):
        links.from_dense(np.zeros((4, 4)))
    with pytest.raises(ValueError, match="server 1 has a link to itself"):
        links.from_dense(np.diag([False, True, False]))


def test_a_link_that_is_not_considered_has_no_place():
    links = LinkTable.of_candidates(np.array([[1], [2], [0]]))
    with pytest.raises(ValueError, match="not among those that are considered"):
        links.places(np.array([2]), np.array([1]))


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 5), (5, 6)])
def test_what_is_known_stays_with_its_links_when_servers_join(before, after):
    column = stream(0, "known").random(before * (before - 1))
    grown = LinkTable.all_of(after).to_dense(LinkTable.all_of(after).grow(column, 7.0))
    np.testing.assert_array_equal(grown[:before, :before], LinkTable.all_of(before).to_dense(column))
    assert (grown[all_links(after)] == 7).sum() == after * (after - 1) - before * (before - 1)


def test_as_many_servers_as_have_so_many_links():
    assert [num_servers_of(n * (n - 1)) for n in (1, 2, 3, 5000)] == [1, 2, 3, 5000]
