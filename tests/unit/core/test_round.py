import numpy as np
import pytest

from hatdfed.core.links import LinkTable, Topology
from hatdfed.core.policies.base import certain, make_draw
from hatdfed.core.round import RoundReport, ServerReport, estimate_consensus_distance

N = 4
DRAWN = Topology.from_pairs(N, [(0, 1), (0, 2), (0, 3), (1, 0), (2, 0), (3, 2)])
TABLES = [LinkTable.all_of(N), LinkTable.of_candidates(np.array([[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]]))]


def server(senders, importance, **scores):
    rows = {name: np.array(values) for name, values in scores.items()}
    return ServerReport(0.5, 30, np.array(senders), np.array(importance), (), rows)


# Server 0 heard 3 before 1 and never 2; the model for server 1 was lost; server 3 sent no report.
REPORT = RoundReport(
    (
        server([0, 3, 1], [0.5, 0.3, 0.2], loss=[1.0, 2.0, 3.0]),
        server([1], [1.0]),
        server([2, 0], [0.6, 0.4], loss=[4.0, np.nan]),
        None,
    )
)


def test_what_arrived_is_told_in_the_order_of_the_topology():
    assert REPORT.arrived(DRAWN).tolist() == [True, False, True, False, True, False]
    np.testing.assert_array_equal(REPORT.weights(DRAWN), [0.2, np.nan, 0.3, np.nan, 0.4, np.nan])


@pytest.mark.parametrize("links", TABLES, ids=["all", "candidates"])
def test_rows_of_reports_become_columns_without_ones_own_model(links):
    nan = np.nan
    delivered = [[0, 1, 0, 1], [0, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]
    importance = [[nan, 0.2, nan, 0.3], [nan] * N, [0.4, nan, nan, nan], [nan] * N]
    loss = [[nan, 3.0, nan, 2.0], [nan] * N, [nan] * N, [nan] * N]
    np.testing.assert_array_equal(links.to_dense(REPORT.delivered(links)), delivered)
    np.testing.assert_array_equal(links.to_dense(REPORT.importance(links), nan), importance)
    np.testing.assert_array_equal(links.to_dense(REPORT.scores("loss", links), nan), loss)
    assert np.isnan(REPORT.scores("similarity", links)).all()


@pytest.mark.parametrize("servers", [(None,) * N, (server([0], [1.0]), None, None, None)])
def test_where_nobody_heard_anybody_nothing_arrived(servers):
    report = RoundReport(servers)
    assert not report.arrived(DRAWN).any()
    assert np.isnan(report.weights(DRAWN)).all()
    assert not report.delivered(TABLES[0]).any()


@pytest.mark.parametrize("links", TABLES, ids=["all", "candidates"])
def test_a_draw_knows_where_its_links_stand(links):
    draw = certain(links, links.from_dense(DRAWN.links))
    assert draw.topology == DRAWN
    np.testing.assert_array_equal(links.to_dense(draw.drawn), DRAWN.links)
    np.testing.assert_array_equal(links.pairs(draw.places), DRAWN.pairs)
    np.testing.assert_array_equal(draw.propensity, draw.drawn)


def test_probabilities_of_a_draw_cannot_be_overwritten_through_what_they_were_made_of():
    links, propensity = TABLES[0], np.full(12, 0.5)
    draw = make_draw(links, links.from_dense(DRAWN.links), propensity)
    propensity[:] = 0
    assert (draw.propensity == 0.5).all()
    with pytest.raises(ValueError, match="read-only"):
        draw.propensity[0] = 0


@pytest.mark.parametrize("column", [np.zeros((N, N)), np.zeros(11)])
def test_a_draw_that_is_not_a_column_is_refused(column):
    with pytest.raises(ValueError, match=r"`links\.from_dense` makes a column of a matrix"):
        make_draw(TABLES[0], np.zeros(12, dtype=bool), column)


def sketches(*rows):
    return [None if row is None else np.array(row, dtype=np.float32) for row in rows]


def test_the_distance_is_relative_to_the_mean_model():
    # The mean is (3, 4) of length 5; the models are 1 and 1 away from it.
    assert estimate_consensus_distance(sketches([4, 4], [2, 4])) == pytest.approx(1 / 5)


def test_servers_count_alike_however_far_away_they_are():
    # Around the mean (10, 0): distances 3, 3 and 0.
    assert estimate_consensus_distance(sketches([10, 3], [10, -3], [10, 0])) == pytest.approx(2 / 10)


def test_a_server_alone_and_servers_that_agree_are_at_distance_0():
    assert estimate_consensus_distance(sketches([1, 2])) == 0
    assert estimate_consensus_distance(sketches([1, 2], [1, 2])) == 0


@pytest.mark.parametrize("rows", [(), (None,), ([1, 2], None), ([1, -1], [-1, 1]), ([0, 0],), ([np.nan, 1], [1, 1])])
def test_it_is_unknown_without_all_sketches_and_around_a_mean_of_0(rows):
    assert estimate_consensus_distance(sketches(*rows)) is None


def test_the_mean_of_claims_whose_sum_is_no_number_is_a_number():
    claims = server([0], [1.0])._replace(training_loss=1.7e308, metrics={"mine": -1.7e308})
    report = RoundReport((claims, claims, None))
    assert report.training_loss == 1.7e308
    assert report.metrics == {"mine": -1.7e308}
