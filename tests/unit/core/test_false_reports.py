"""What liars tell the coordinator."""

import numpy as np
import pytest

from hatdfed.core.energy.energy_model import Cause, EnergyRow
from hatdfed.core.false_reports import falsify
from hatdfed.core.links import LinkTable
from hatdfed.core.round import RoundReport, ServerReport


def server(number, senders, num_samples, **scores):
    energy = (
        EnergyRow(5, Cause.TRAINING, number, number, 0.0, 40.0),
        EnergyRow(5, Cause.LINK, number, 0, 1000.0, 7.0),
    )
    rows = {name: np.array(values) for name, values in scores.items()}
    weights = np.full(len(senders), 1 / len(senders))
    return ServerReport(0.5, num_samples, np.array(senders), weights, energy, rows)


HONEST = RoundReport(
    (
        server(0, [0, 1, 3], 60, loss=[1.0, 2.0, 3.0]),
        server(1, [1, 0, 2, 3], 30, loss=[1.0, 2.0, np.nan, 4.0], similarity=[1.0, 0.5, 0.4, 0.3]),
        server(2, [2, 1], 20),
        None,
    ),
    consensus_distance=0.25,
)
TOLD = falsify(HONEST, np.array([1, 2, 3]))


def test_liars_claim_the_best_accuracy_and_as_many_samples_as_anyone():
    np.testing.assert_array_equal(TOLD.accuracy, [0.5, 1.0, 1.0, np.nan])
    assert [each and each.num_samples for each in TOLD.servers] == [60, 60, 60, None]


def test_liars_praise_each_other_and_condemn_the_honest():
    assert TOLD.servers[1].scores["loss"].tolist() == [0, 20, 0, 0]
    dense = LinkTable.all_of(4).to_dense(TOLD.scores("loss", LinkTable.all_of(4)), np.nan)
    np.testing.assert_array_equal(dense[1], [20, np.nan, 0, 0])


def test_scores_other_than_losses_and_those_that_were_not_asked_for_stay():
    assert TOLD.servers[1].scores["similarity"].tolist() == [1.0, 0.5, 0.4, 0.3]
    assert TOLD.servers[2].scores == {}


def test_liars_claim_a_tenth_of_their_joules():
    assert [row.joules for row in TOLD.servers[1].energy] == pytest.approx([4.0, 0.7])
    assert [row.bits for row in TOLD.servers[1].energy] == [0.0, 1000.0]


def test_the_honest_and_the_absent_are_left_alone():
    assert TOLD.servers[0] is HONEST.servers[0]
    assert TOLD.servers[3] is None
    assert TOLD.consensus_distance == 0.25


def test_the_true_reports_stay_as_they_were():
    assert HONEST.servers[1].accuracy == 0.5
    assert HONEST.servers[1].scores["loss"][0] == 1.0
    assert HONEST.servers[1].energy[0].joules == 40.0


def test_without_liars_nothing_changes():
    told = falsify(HONEST, np.zeros(0, dtype=np.int64))
    assert all(mine is theirs for mine, theirs in zip(told.servers, HONEST.servers, strict=True))


def test_a_round_without_reports_can_hold_no_lie():
    assert falsify(RoundReport((None, None)), np.array([0])).servers == (None, None)
