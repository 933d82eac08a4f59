"""Verdicts on the same models, compared between their receivers."""

import numpy as np
import pytest

from hatdfed.core.cross_check import find_contradictions
from hatdfed.core.links import LinkTable
from hatdfed.core.round import RoundReport, ServerReport

N = 10
LINKS = LinkTable.all_of(N)
GOOD, BAD = 0.1, 5.0


def everyone_agrees():
    return np.full((N, N), GOOD)


def make_report(harm, evidence=60.0, heard=None):
    """The reports of a round in which everybody judges everybody, or those that were `heard`."""

    def one(i):
        senders = np.array([i, *(j for j in range(N) if j != i and (heard is None or heard[i, j]))])
        scores = {"harm": harm[i, senders], "evidence": np.full(len(senders), evidence)}
        return ServerReport(0.5, 30, senders, np.zeros(len(senders)), (), scores)

    return RoundReport(tuple(one(i) for i in range(N)))


def test_who_sets_apart_servers_that_agree_is_named_with_its_witnesses():
    harm = everyone_agrees()
    harm[0, [4, 5, 6, 7, 8, 9]] = BAD
    found = find_contradictions(make_report(harm), LINKS)
    assert list(found) == [0]
    assert "servers 4, 5, 6, 7, 8 and 1 more harmful" in found[0]
    assert "servers 1, 2, 3, with" in found[0]


def test_two_who_tell_the_same_story_are_found():
    harm = everyone_agrees()
    harm[:2, 5:] = BAD
    assert list(find_contradictions(make_report(harm), LINKS)) == [0, 1]


def two_kinds(size):
    harm = everyone_agrees()
    harm[:size, size:] = harm[size:, :size] = BAD
    return harm


def one_sided(size):
    """Models of the first servers fit all data, but those of the others do not fit the data of the first."""
    harm = everyone_agrees()
    harm[:size, size:] = BAD
    return harm


def differs_here_and_there():
    harm = everyone_agrees()
    for i in range(N):
        harm[i, [(i + 1) % N, (i + 2) % N]] = BAD
    return harm


HONEST = {
    "all agree": everyone_agrees(),
    "a lone server": two_kinds(1),
    "a minority": two_kinds(2),
    "two halves": two_kinds(5),
    "a lone server whose model fits all": one_sided(1),
    "a small minority whose models fit all": one_sided(3),
    "a minority whose models fit all": one_sided(4),
    "a majority whose models fit all": one_sided(7),
    "everybody differs from two": differs_here_and_there(),
    "all models are bad": np.full((N, N), BAD),
}


@pytest.mark.parametrize("name", HONEST)
def test_servers_whose_data_differ_are_not_named(name):
    assert find_contradictions(make_report(HONEST[name]), LINKS) == {}


def test_verdicts_on_little_evidence_are_not_compared():
    harm = everyone_agrees()
    harm[0, 6:] = BAD
    assert find_contradictions(make_report(harm, evidence=10.0), LINKS) == {}
    assert find_contradictions(make_report(np.where(harm == BAD, np.nan, harm)), LINKS) == {}


def test_a_few_models_are_not_enough():
    harm = everyone_agrees()
    harm[0, 4:] = BAD
    heard = (np.arange(N) - np.arange(N)[:, None]) % N <= 4
    assert find_contradictions(make_report(harm, heard=heard), LINKS) == {}


def test_a_few_contradictions_are_not_enough():
    harm = everyone_agrees()
    harm[0, 6:] = BAD
    assert find_contradictions(make_report(harm), LINKS) == {}


def test_without_scores_or_with_candidates_nothing_is_compared():
    bare = ServerReport(0.5, 30, np.arange(N), np.zeros(N), ())
    assert find_contradictions(RoundReport((bare, *[None] * (N - 1))), LINKS) == {}
    harm = everyone_agrees()
    harm[0, 6:] = BAD
    few = LinkTable.of_candidates((np.arange(N)[:, None] + [1, 2, 3]) % N)
    assert find_contradictions(make_report(harm), few) == {}
