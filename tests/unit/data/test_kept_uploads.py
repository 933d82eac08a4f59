"""A server that keeps what its devices sent: what it holds, what is sent, what it trains on."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.data.own_files import WORK, fill, open_source
from tests.unit.data.test_devices import VALIDATION

from hatdfed.core.effort import ServerEffort
from hatdfed.data.devices import DataChange, LocalWork, SimulatedDevices
from hatdfed.server.work import NOTHING, Batch

POOL = Batch(torch.arange(200.0).view(200, 1, 1, 1), torch.arange(200))
QUIET = ServerEffort(2, asks=False)
ROUNDS = 12


def devices(keeps=True, memory=None, owned=100, work=None, **more):
    settings = LocalWork(keeps_uploads=keeps, memory_samples=memory, **(work or {}))
    return SimulatedDevices(POOL, np.arange(owned), VALIDATION, 200, settings, 0, 0, **more)


def played(source, efforts=()):
    """The plans of some rounds, each going on with what the one before holds."""
    held, plans = NOTHING, []
    for t in range(ROUNDS):
        plans.append(source.plan(t, dict(enumerate(efforts)).get(t), held))
        held = plans[-1].held
    return plans


def trained(plan):
    return set(np.concatenate([NOTHING, *plan.batches]).tolist())


def test_a_server_that_keeps_everything_trains_on_the_same_and_is_sent_every_sample_once():
    kept, anew = played(devices()), played(devices(keeps=False))
    for one, other in zip(kept, anew, strict=True):
        assert all(map(np.array_equal, one.batches, other.batches))
        assert np.array_equal(one.probe, other.probe)
    assert sum(plan.num_sent for plan in kept) == len(set().union(*map(trained, kept))) == len(kept[-1].held)
    assert sum(plan.num_sent for plan in anew) == sum(plan.num_samples for plan in anew) > 2 * len(kept[-1].held)
    assert not any(len(plan.held) for plan in anew)


@given(memory=st.integers(1, 80))
def test_no_more_is_kept_than_the_memory_holds_and_the_oldest_is_dropped_first(memory):
    plans = played(devices(memory=memory))
    for before, after in pairwise(plans):
        assert len(after.held) <= memory
        assert len(set(after.held.tolist())) == len(after.held)
        new = [sample for sample in after.held.tolist() if sample not in before.held]
        survivors = len(after.held) - len(new)
        assert after.held.tolist() == [*before.held.tolist()[len(before.held) - survivors :], *new]
        assert after.num_sent == len(trained(after) - set(before.held.tolist()))


def test_a_server_that_asks_nobody_trains_on_what_it_holds():
    first, second, *_ = played(devices(), [None, QUIET])
    usual = devices().plan(1)
    assert trained(second) <= set(first.held.tolist())
    assert second.num_samples == min(usual.num_samples, len(first.held))
    assert second.volume == usual.num_samples
    assert (second.num_sent, second.devices_online) == (0, 0)
    assert np.array_equal(second.held, first.held)
    assert set(second.probe.tolist()) <= trained(second)


def test_a_server_that_rests_may_collect_data_for_later():
    resting, later, *_ = played(devices(), [ServerEffort(0, asks=True), QUIET])
    assert not resting.batches
    assert resting.num_sent == len(resting.held) == resting.volume > 0
    assert trained(later) <= set(resting.held.tolist())


@pytest.mark.parametrize("wanted", [10, 45])
def test_as_many_samples_as_wanted_are_trained_on_once_so_many_are_held(wanted):
    kept, usual = played(devices(work={"train_samples": wanted})), played(devices())
    for before, plan, other in zip([None, *kept], kept, usual, strict=False):
        known = set() if before is None else set(before.held.tolist())
        offered = trained(other)
        assert plan.num_sent == other.num_sent, "devices send as before"
        assert plan.num_samples == min(wanted, len(known | offered))
        assert trained(plan) <= known | offered
        assert trained(plan) <= offered or offered <= trained(plan), "those of the round come first"
        assert plan.volume == wanted


def test_no_server_trains_on_more_than_a_rounds_samples_or_than_it_owns():
    assert max(plan.num_samples for plan in played(devices(work={"train_samples": 50, "samples_per_round": 20}))) == 20
    assert played(devices(owned=30, work={"train_samples": 50}))[-1].num_samples == 30


def test_an_absent_server_trains_on_nothing_that_it_holds():
    plans = played(devices(work={"train_samples": 40, "churn": 1.0}))
    assert not any(plan.batches for plan in plans)
    assert not any(plan.volume for plan in plans)


def test_samples_of_other_data_are_sent_when_the_data_change():
    change = DataChange(6, np.arange(100, 200), VALIDATION)
    plans = played(devices(change=change))
    assert plans[5].num_sent < plans[6].num_sent == plans[6].num_samples
    assert max(plans[5].held) < 100 <= min(trained(plans[6]))


@pytest.mark.parametrize("keeps", [True, False])
def test_an_image_of_ones_own_counts_as_sent_when_it_is_first_used(tmp_path, keeps):
    settings = LocalWork(**{**vars(WORK), "keeps_uploads": keeps})
    source = open_source(fill(tmp_path, range(40)), settings=settings)
    works = [source.work(t) for t in range(8)]
    owned = 40 - len(source.validation.y)
    assert sum(work.num_sent for work in works) == (owned if keeps else 8 * 12)
    assert [work.num_samples for work in works] == [12] * 8
