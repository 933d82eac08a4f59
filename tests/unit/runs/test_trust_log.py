"""What is kept of a policy's beliefs: changes of servers with their reasons, and verdicts at intervals."""

import numpy as np
import pytest

from hatdfed.core.beliefs import NO_GROUP, Beliefs
from hatdfed.core.links import LinkTable
from hatdfed.runs.trust_log import (
    MOST_VERDICTS,
    KeptBeliefs,
    TrustChange,
    find_new_beliefs,
    is_verdict_round,
    restore_kept,
)


def believing(groups, *, verdict=None, reason=None):
    """Beliefs with these groups; None: the server waits."""
    links = LinkTable.all_of(len(groups))
    group = np.array([NO_GROUP if each is None else each for each in groups])
    state = tuple("waiting" if each is None else "alone" if groups.count(each) == 1 else "member" for each in groups)
    column = np.full(len(links), np.nan) if verdict is None else links.from_dense(np.asarray(verdict, float))
    return Beliefs(links, column, group, state, tuple(reason or [""] * len(groups)))


def kept_after(*rounds, with_verdicts=True):
    """The record after these beliefs, and what was new in the last round."""
    kept, new = KeptBeliefs(), None
    for t, beliefs in enumerate(rounds):
        kept, new = find_new_beliefs(kept, t, beliefs, with_verdicts=with_verdicts)
    return kept, new


def test_the_first_row_of_every_server_is_the_start():
    _, new = kept_after(believing([None, None]))
    assert new.changes == [TrustChange(0, server, "waiting", None, "start") for server in range(2)]


def test_nothing_new_is_not_kept():
    beliefs = believing([0, 0, 1], verdict=np.full((3, 3), 0.5))
    _, new = kept_after(beliefs, beliefs)
    assert new.changes == []
    assert new.verdicts is None


def test_other_numbers_for_the_same_groups_are_nothing_new():
    kept, new = kept_after(believing([0, 0, 1]), believing([1, 1, 0]))
    assert new.changes == []
    assert kept.group.tolist() == [0, 0, 1]


def test_the_reason_of_the_policy_is_kept_even_where_nothing_else_changes():
    _, new = kept_after(believing([0, 0, 1]), believing([0, 0, 1], reason=["", "", "introduced again"]))
    assert new.changes == [TrustChange(1, 2, "alone", 1, "introduced again")]


def test_a_server_that_is_left_for_harm_and_joins_those_that_fit():
    verdict = np.full((5, 5), -0.5)
    verdict[2, 3:] = verdict[3:, 2] = 0.25
    _, new = kept_after(believing([0, 0, 0, 1, 1]), believing([0, 0, 1, 1, 1], verdict=verdict))
    assert new.changes == [TrustChange(1, 2, "member", 1, "harm", -0.5, 0.25)]


def test_good_verdicts_are_the_reason_to_join():
    verdict = np.full((3, 3), 0.5)
    _, new = kept_after(believing([0, 0, 1]), believing([0, 0, 0], verdict=verdict))
    assert new.changes == [TrustChange(1, 2, "member", 0, "fit", None, 0.5)]


def test_without_verdicts_of_its_own_a_server_moves_by_hearsay():
    _, new = kept_after(believing([0, 0, 1]), believing([0, 0, 0]))
    assert new.changes == [TrustChange(1, 2, "member", 0, "hearsay")]


def test_a_server_whose_companion_went_is_alone_because_others_left():
    _, new = kept_after(believing([0, 0]), believing([0, None], reason=["", "data changed"]))
    assert [change.reason for change in new.changes] == ["others left", "data changed"]
    assert [change.state for change in new.changes] == ["alone", "waiting"]


def test_servers_that_join_later_are_told_from_the_first():
    _, new = kept_after(believing([0, 0]), believing([0, 0, None]))
    assert new.changes == [TrustChange(1, 2, "waiting", None, "joined")]


def test_verdicts_are_kept_once_something_is_known_and_when_they_change():
    some = np.full((2, 2), 0.5)
    assert kept_after(believing([None, None]))[1].verdicts is None
    first = kept_after(believing([None, None]), believing([0, 0], verdict=some))[1].verdicts
    np.testing.assert_array_equal(first, np.array([[np.nan, 0.5], [0.5, np.nan]], dtype=np.float32))
    assert kept_after(believing([0, 0], verdict=some), believing([0, 0], verdict=some / 2))[1].verdicts is not None
    assert kept_after(believing([0, 0], verdict=some), with_verdicts=False)[1].verdicts is None


@pytest.mark.parametrize("rounds", [1, 39, 40, 41, 79, 100, 1000])
def test_verdicts_are_kept_of_about_forty_rounds_and_of_the_last(rounds):
    kept = [t for t in range(rounds) if is_verdict_round(t, rounds)]
    assert kept[-1] == rounds - 1
    assert min(rounds, MOST_VERDICTS // 2) <= len(kept) <= MOST_VERDICTS + 1


def test_the_record_is_restored_from_its_rows():
    rounds = [believing([None] * 3), believing([0, 0, 1]), believing([0, 1, 1], reason=["", "introduced", ""])]
    kept, rows = KeptBeliefs(), []
    for t, beliefs in enumerate(rounds):
        kept, new = find_new_beliefs(kept, t, beliefs, with_verdicts=False)
        rows += new.changes
    restored = restore_kept(rows, None)
    assert restored.state == kept.state
    assert restored.group.tolist() == kept.group.tolist()


def test_where_rows_were_lost_everything_is_kept_again():
    assert restore_kept([TrustChange(0, 1, "waiting", None, "start")], None).state == ()
