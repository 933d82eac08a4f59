"""Merging: weights sum to 1 over what is present, padding changes nothing, constants stay constant."""

import dataclasses
import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hatdfed.errors import ConfigError
from hatdfed.server.aggregation import (
    AGGREGATORS,
    BestBySamples,
    ByPlan,
    BySamples,
    HarmlessMean,
    Importance,
    Inbox,
    Probe,
    PushSum,
    Uniform,
)
from hatdfed.server.inbox import Comparison
from hatdfed.server.robust import Balance, ClippedGossip, Median, MultiKrum, TrimmedMean, Ubar

READINGS = [
    Importance(loss_order=order, loss_scale=scale, volume=volume)
    for order, scale, volume in itertools.product(
        ("low-first", "high-first"),
        ("per-sample", "printed", "released"),
        ("share", "softmax-of-counts", "receiver-count"),
    )
]
ROBUST = [Median(), TrimmedMean(), MultiKrum(), ClippedGossip(), ClippedGossip(radius=2.0), Balance(), Ubar()]
RULES = [
    *READINGS,
    Uniform(),
    BySamples(),
    BestBySamples(1),
    BestBySamples(2),
    ByPlan(),
    PushSum(),
    HarmlessMean(),
    *ROBUST,
]


@st.composite
def inboxes(draw):
    slots, params = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    number = st.floats(-10, 10, width=32)
    models = torch.tensor(
        draw(st.lists(st.lists(number, min_size=params, max_size=params), min_size=slots, max_size=slots))
    )
    counts = torch.tensor(draw(st.lists(st.integers(0, 60), min_size=slots, max_size=slots)))
    mass = torch.tensor(draw(st.lists(st.floats(0.1, 3), min_size=slots, max_size=slots)), dtype=torch.float64)
    present = torch.tensor([True, *draw(st.lists(st.booleans(), min_size=slots - 1, max_size=slots - 1))])
    mixing = torch.full((slots,), 1 / slots, dtype=torch.float64)
    losses = torch.tensor(
        draw(st.lists(st.lists(st.floats(0, 20, width=32), min_size=3, max_size=3), min_size=slots, max_size=slots))
    )
    probe = Probe(losses, torch.ones(3, dtype=torch.bool), all_labels(losses))
    return Inbox(models, counts, mixing, mass, present), probe


def all_labels(losses, valid=None):
    """The comparison that goes with these losses, where all samples count alike and the models know ten labels."""
    weight = torch.ones_like(losses) if valid is None else valid.float().expand_as(losses)
    right = torch.exp(-losses)
    return Comparison(
        right[:1].expand_as(right), right, weight, torch.full((len(losses),), 0.1), torch.ones(len(losses))
    )


def padded(inbox, probe):
    """One more slot and one more probe sample, both marked as not there and full of nonsense."""
    one = torch.ones(1)
    bigger = Inbox(
        torch.cat([inbox.models, torch.full((1, inbox.models.shape[1]), 7.0)]),
        torch.cat([inbox.num_samples, torch.tensor([99])]),
        torch.cat([inbox.mixing, 0.5 * one.double()]),
        torch.cat([inbox.mass, 5 * one.double()]),
        torch.cat([inbox.present, torch.tensor([False])]),
    )
    losses = torch.cat([probe.losses, torch.full((1, 3), 3.0)])
    losses = torch.cat([losses, torch.full((len(losses), 1), 11.0)], dim=1)
    valid = torch.cat([probe.valid, torch.tensor([False])])
    return bigger, Probe(losses, valid, all_labels(losses, valid))


def assert_close(actual, expected, rule, *, rtol=1e-5, atol=1e-5):
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol, msg=lambda text: f"{rule}: {text}")


# Making an inbox takes far longer than merging it, so every one goes through all rules.


@given(case=inboxes())
def test_weights_are_shares_of_what_is_present(case):
    inbox, probe = case
    for rule in RULES:
        weights = rule(probe, inbox).importance
        assert float(weights.sum()) == pytest.approx(1, abs=1e-5), rule
        assert (weights >= 0).all(), rule
        assert (weights[~inbox.present] == 0).all(), rule


@given(case=inboxes())
def test_padding_changes_nothing(case):
    inbox, probe = case
    bigger, longer = padded(inbox, probe)
    for rule in RULES:
        plain, more = rule(probe, inbox), rule(longer, bigger)
        assert_close(more.model, plain.model, rule)
        assert_close(more.importance[:-1], plain.importance, rule, atol=1e-6)
        assert float(more.importance[-1]) == 0, rule


@given(case=inboxes(), constant=st.floats(-100, 100, width=32))
def test_a_constant_stays_constant(case, constant):
    inbox, probe = case
    same = inbox._replace(models=torch.full_like(inbox.models, constant))
    for rule in RULES:
        assert_close(rule(probe, same).model, same.models[0], rule, rtol=1e-4, atol=1e-4)


@given(case=inboxes())
def test_a_server_that_heard_nobody_keeps_its_model(case):
    inbox, probe = case
    present = torch.zeros_like(inbox.present)
    present[0] = True
    alone = inbox._replace(present=present)
    for rule in RULES:
        assert_close(rule(probe, alone).model, inbox.models[0], rule)


def two_models(losses, counts=(10, 30)):
    inbox = Inbox(
        torch.tensor([[1.0], [3.0]]),
        torch.tensor(counts),
        torch.full((2,), torch.nan),
        torch.ones(2, dtype=torch.float64),
        torch.tensor([True, True]),
    )
    losses = torch.tensor(losses)
    return Probe(losses, torch.ones(losses.shape[1], dtype=torch.bool), all_labels(losses)), inbox


def test_root_mean_square_is_that_of_single_losses():
    probe, _ = two_models([[0.5, 1.0, 2.0], [1.0, 1.0, 1.0]])
    assert float(3 * probe.root_mean_square[0]) == pytest.approx(3.968627, abs=1e-5)


def test_our_reading_mixes_softmax_of_losses_and_share_of_samples():
    weights = Importance()(*two_models([[1.0, 1.0], [2.0, 2.0]])).importance
    quality = torch.softmax(torch.tensor([-1.0, -2.0]), 0)
    torch.testing.assert_close(weights, 0.4 * quality + 0.6 * torch.tensor([0.25, 0.75]))


def test_the_printed_reading_gives_the_worse_model_more_weight():
    printed = Importance(quality_share=1.0, loss_order="high-first", loss_scale="printed")
    ours = Importance(quality_share=1.0)
    case = two_models([[1.0, 1.0], [2.0, 2.0]])
    torch.testing.assert_close(printed(*case).importance, torch.softmax(torch.tensor([2.0, 4.0]), 0))
    assert ours(*case).importance[0] > ours(*case).importance[1]


def test_raw_counts_in_a_softmax_are_one_hot():
    rule = Importance(quality_share=0.0, volume="softmax-of-counts")
    assert float(rule(*two_models([[1.0], [1.0]])).importance[1]) == pytest.approx(1, abs=1e-6)


def test_the_receivers_count_for_everybody_is_no_count_at_all():
    rule = Importance(quality_share=0.0, volume="receiver-count")
    torch.testing.assert_close(rule(*two_models([[1.0], [1.0]])).importance, torch.tensor([0.5, 0.5]))


def test_volume_is_even_when_nobody_trained():
    rule = Importance(quality_share=0.0)
    torch.testing.assert_close(rule(*two_models([[1.0], [1.0]], counts=(0, 0))).importance, torch.tensor([0.5, 0.5]))


def test_what_did_not_arrive_goes_to_ones_own_model_under_a_plan():
    third = torch.full((3,), 1 / 3, dtype=torch.float64)
    inbox = Inbox(torch.eye(3), torch.ones(3), third, third, torch.tensor([True, False, True]))
    torch.testing.assert_close(ByPlan()(None, inbox).importance, torch.tensor([2 / 3, 0.0, 1 / 3]))


def test_push_sum_adds_up_the_mass_that_came():
    mass = torch.tensor([0.5, 1.0, 9.0], dtype=torch.float64)
    inbox = Inbox(torch.tensor([[1.0], [4.0], [0.0]]), torch.ones(3), mass, mass, torch.tensor([True, True, False]))
    merged = PushSum()(None, inbox)
    assert float(merged.mass) == pytest.approx(1.5)
    assert float(merged.model) == pytest.approx((0.5 * 1 + 1.0 * 4) / 1.5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"quality_share": 1.5}, "quality_share"),
        ({"loss_order": "low"}, "Did you mean low-first"),
        ({"volume": "x"}, "volume"),
    ],
)
def test_impossible_readings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        Importance(**settings)


def test_every_rule_in_the_table_is_under_these_laws():
    assert {type(rule) for rule in RULES} == set(AGGREGATORS.values())
    assert all(dataclasses.is_dataclass(rule) for rule in AGGREGATORS.values())


def test_the_released_scale_is_the_mean_loss_over_root_50():
    rule = Importance(quality_share=1.0, loss_scale="released")
    weights = rule(*two_models([[1.0, 3.0], [5.0, 9.0]])).importance
    torch.testing.assert_close(weights, torch.softmax(-torch.tensor([2.0, 7.0]) / 50**0.5, 0))


def test_a_model_whose_loss_is_no_number_weighs_nothing():
    weights = Importance(quality_share=1.0)(*two_models([[1.0, 2.0], [torch.nan, 1.0]])).importance
    torch.testing.assert_close(weights, torch.tensor([1.0, 0.0]))
