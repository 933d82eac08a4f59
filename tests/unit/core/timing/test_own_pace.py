"""The schedule of servers that train at their own pace."""

import heapq

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hatdfed.core.links import LinkTable
from hatdfed.core.timing.own_pace import OwnPace

CYCLES = st.lists(st.floats(0.5, 50.0), min_size=2, max_size=7).map(np.array)


def play_events(cycle, ticks):
    """The ticks in which each server is done, from a queue of events."""
    tick = min(cycle)
    queue = [(length, server, 1) for server, length in enumerate(cycle)]
    heapq.heapify(queue)
    done = [[] for _ in cycle]
    while queue[0][0] <= ticks * tick * (1 + 1e-12):
        at, server, number = heapq.heappop(queue)
        done[server].append(max(0, int(np.ceil(at / tick - 1e-9)) - 1))
        heapq.heappush(queue, ((number + 1) * cycle[server], server, number + 1))
    return done


@given(CYCLES)
def test_servers_are_due_when_a_queue_of_events_says_so(cycle):
    pace, ticks = OwnPace(cycle), 30
    due = np.stack([pace.find_due(t) for t in range(ticks)])
    assert [np.flatnonzero(each).tolist() for each in due.T] == play_events(cycle, ticks)


@given(CYCLES)
def test_the_fastest_server_is_due_in_every_tick_and_others_in_proportion(cycle):
    pace, ticks = OwnPace(cycle), 60
    trainings = np.sum([pace.find_due(t) for t in range(ticks)], axis=0)
    assert trainings[cycle.argmin()] == ticks
    np.testing.assert_array_less(np.abs(trainings - ticks * cycle.min() / cycle), 1.0)


def test_equal_machines_are_always_due_and_have_news_for_everybody():
    pace, links = OwnPace(np.full(4, 0.7)), LinkTable.all_of(4)
    for t in (0, 1, 2, 17, 999):
        assert pace.find_due(t).all()
        assert pace.find_possible(t, None, links).all()
        assert pace.find_ages(t, links) == pytest.approx(np.zeros(12), abs=1e-6)


def received(pace, ticks):
    """By receiver: tick, sender and version of every model that can come."""
    links, found = LinkTable.all_of(len(pace.cycle)), []
    for t in range(ticks):
        possible = pace.find_possible(t, None, links)
        versions = pace.count_cycles(t)
        found += [(i, t, j, int(versions[j])) for i, j in links.pairs(np.flatnonzero(possible)).tolist()]
    return found


@given(CYCLES)
def test_only_servers_that_are_due_receive_and_no_version_comes_twice(cycle):
    pace = OwnPace(cycle)
    found = received(pace, 25)
    assert all(pace.find_due(t)[i] for i, t, _, _ in found)
    versions = [(i, j, version) for i, _, j, version in found]
    assert len(versions) == len(set(versions))
    assert all(version > 0 for _, _, _, version in found)


@given(CYCLES)
def test_every_receiver_gets_the_newest_version_that_it_does_not_have(cycle):
    pace, last = OwnPace(cycle), {}
    found = {(i, t, j): version for i, t, j, version in received(pace, 25)}
    for t in range(25):
        versions = pace.count_cycles(t)
        for i in np.flatnonzero(pace.find_due(t)).tolist():
            for j in set(range(len(cycle))) - {i}:
                assert found.get((i, t, j)) == (versions[j] if versions[j] > last.get((i, j), 0) else None)
                last[i, j] = versions[j]


def test_the_age_of_a_model_is_the_time_since_it_was_finished():
    pace, links = OwnPace(np.array([1.0, 2.5, 4.0])), LinkTable.all_of(3)
    ages = links.to_dense(pace.find_ages(4, links))  # at 5 s
    np.testing.assert_allclose(ages[0], [0.0, 0.0, 1.0], atol=1e-9)
    np.testing.assert_allclose(links.to_dense(pace.find_ages(3, links))[0], [0.0, 1.5, 0.0], atol=1e-9)
