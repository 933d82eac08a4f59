"""A server whose own model is not finite, or far too large, goes back to a usable one: one rule in every fleet."""

import dataclasses

import numpy as np
import pytest
import torch
from tests.parity.same_rounds import assert_same_rounds
from tests.parity.test_sharded import sharded
from tests.parity.test_stacked import mailboxes, played, settings, stacked_alone
from tests.small_runs import SMALL

from hatdfed.core.refusals import NOT_FINITE, NOTHING_FINITE, OWN_NOT_FINITE, TOO_LARGE
from hatdfed.runs.calls import run
from hatdfed.server.aggregation import AveragingRule, Merged, Rule, Uniform, weighted
from hatdfed.server.guard import FLOOR, GROWTH, largest_norm

FLEETS = {"mailbox": mailboxes, "stacked": stacked_alone, "sharded": lambda config: sharded(config, (0, 3, 6))}
every_fleet = pytest.mark.parametrize("fleet", FLEETS)


def broken(pair, server, what, value=np.nan):
    """The fleet after something went wrong in one server."""
    _, fleet = pair
    snapshot = {name: array.copy() for name, array in fleet.snapshot().items()}
    snapshot[f"{server}.{what}"][3] = value
    fleet.restore(snapshot)
    return pair


def finite(fleet):
    return all(np.isfinite(array).all() for array in fleet.snapshot().values())


@every_fleet
@pytest.mark.parametrize("method", ["hat-dfed", "sgp", "d-psgd", "local", "hat-dfed-plus"])
def test_a_server_whose_training_diverged_goes_back_and_starts_its_optimiser_anew(method, fleet):
    config = settings(method, rounds=3, device_online_probability=0.9)
    pair = broken(FLEETS[fleet](config), 2, "first")
    before = pair[1].snapshot()["2.params"].copy()
    records = played(*pair, rounds=1)
    assert pair[1].refused == {OWN_NOT_FINITE: 1}
    assert finite(pair[1])
    assert pair[1].snapshot()["2.scalars"][0] == 0, "the optimiser has made no step"
    if method == "local":
        np.testing.assert_array_equal(pair[1].snapshot()["2.params"], before)
    assert records[0].report.arrived(records[0].draw.topology).all(), "what it sends is finite"


@every_fleet
@pytest.mark.parametrize(("value", "word"), [(np.nan, NOT_FINITE), (-np.inf, NOT_FINITE), (1e30, TOO_LARGE)])
def test_a_server_that_begins_without_a_usable_model_takes_what_arrived(fleet, value, word):
    pair = broken(FLEETS[fleet](settings("full", rounds=2, device_online_probability=0.9)), 2, "params", value)
    (record,) = played(*pair, rounds=1)
    assert not [i for i, report in enumerate(record.report.servers) if i != 2 and 2 in report.senders]
    assert pair[1].refused == {word: 5, OWN_NOT_FINITE: 1}
    np.testing.assert_array_equal(record.report.servers[2].senders, [2, 0, 1, 3, 4, 5])
    np.testing.assert_allclose(record.report.servers[2].importance, [0, 0.2, 0.2, 0.2, 0.2, 0.2])
    assert finite(pair[1])


@every_fleet
def test_a_server_with_nothing_finite_at_all_is_told(fleet):
    pair = broken(FLEETS[fleet](settings("local", rounds=2, device_online_probability=0.9)), 2, "params")
    played(*pair, rounds=2)
    assert pair[1].refused == {NOTHING_FINITE: 2}


@pytest.mark.parametrize("method", ["hat-dfed", "sgp", "d-psgd", "dac", "full"])
@pytest.mark.parametrize("what", ["first", "params"])
def test_fleets_agree_about_it(method, what):
    config = settings(method, rounds=2, device_online_probability=0.4)
    pairs = [broken(make(config), 2, what) for make in (stacked_alone, mailboxes)]
    assert_same_rounds(*(played(*pair, rounds=2) for pair in pairs))
    assert pairs[0][1].refused == pairs[1][1].refused
    assert pairs[0][1].refused[OWN_NOT_FINITE] == 1
    torch.testing.assert_close(pairs[0][1].models, pairs[1][1].models, rtol=0, atol=1e-4)


@dataclasses.dataclass(frozen=True)
class Division(Rule):
    """A rule of somebody's own that divides by zero in some inboxes."""

    def __call__(self, probe, inbox):
        merged = Uniform()(probe, inbox)
        return Merged(merged.model / (len(inbox.models) != 3), merged.importance, merged.mass)


def test_a_merge_that_is_not_finite_leaves_the_servers_own_model():
    config = settings("rnd", rounds=2, link_share=0.4, device_online_probability=0.9)
    pairs = [make(config, aggregator=Division()) for make in (stacked_alone, mailboxes)]
    ours, theirs = (played(*pair, rounds=2) for pair in pairs)
    assert pairs[1][1].refused[OWN_NOT_FINITE] > 0
    assert all(finite(fleet) for _, fleet in pairs)
    for record in theirs:
        for report in record.report.servers:
            if len(report.senders) == 3:
                assert report.importance.tolist() == [1, 0, 0]
    assert len(ours) == len(theirs)


@dataclasses.dataclass(frozen=True)
class Overflow(AveragingRule):
    """Finite weights that lead beyond the largest number when models are large."""

    def __call__(self, probe, inbox):
        return weighted(torch.where(inbox.present, 3e38, 0.0), inbox)


def test_a_merge_that_overflows_leaves_the_servers_own_model():
    config = settings("full", rounds=3, device_online_probability=0.9)
    pairs = [make(config, aggregator=Overflow()) for make in (stacked_alone, mailboxes)]
    assert_same_rounds(*(played(*pair, rounds=3) for pair in pairs))
    for _, fleet in pairs:
        assert fleet.refused == {OWN_NOT_FINITE: 18}
        assert finite(fleet)


@pytest.mark.parametrize("fleet", ["mailbox", "stacked"])
def test_a_run_says_so(fleet):
    """Steps so long that numbers overflow."""
    diverging = {**SMALL, "method": "rnd", "learner": {"optimiser": "sgd", "learning_rate": 1e30}}
    result = run(diverging, fleet=fleet)
    assert [note for note in result.summary["notes"] if "own model was not finite" in note]
    assert not [note for note in result.summary["notes"] if "refused" in note]


@every_fleet
def test_a_model_that_training_made_far_too_large_is_not_kept(fleet):
    """Finite, so that only its norm tells."""
    learner = {"optimiser": "sgd", "learning_rate": 1e6}
    config = settings("rnd", rounds=3, device_online_probability=0.9, learner=learner)
    pair = FLEETS[fleet](config)
    before = pair[1].snapshot()
    played(*pair, rounds=3)
    after = pair[1].snapshot()
    assert pair[1].refused == {OWN_NOT_FINITE: 18}
    assert max(np.abs(after[f"{i}.params"]).max() for i in range(6)) <= max(
        np.abs(before[f"{i}.params"]).max() for i in range(6)
    )


def test_the_bound_is_far_above_a_fresh_model_and_the_floor_serves_those_that_begin_at_zero():
    fresh = torch.full((100,), 2.0)
    assert largest_norm(fresh) == pytest.approx(GROWTH * 20)
    assert largest_norm(torch.zeros(100)) == pytest.approx(FLOOR * 10)
