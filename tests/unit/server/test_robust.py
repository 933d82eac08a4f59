"""Byzantine-robust rules: worked examples, a plain implementation of each in numpy, guards, laws."""

import math

import numpy as np
import pytest
import torch

from hatdfed.errors import ConfigError
from hatdfed.server import inbox as inbox_module
from hatdfed.server import robust
from hatdfed.server.aggregation import AGGREGATORS, Inbox, Probe
from hatdfed.server.merge_laws import random_inbox
from hatdfed.server.robust import Balance, ClippedGossip, Median, MultiKrum, TrimmedMean, Ubar
from hatdfed.testing import AggregatorLaws

NAMES = {
    "median": Median,
    "trimmed-mean": TrimmedMean,
    "multi-krum": MultiKrum,
    "clipped-gossip": ClippedGossip,
    "balance": Balance,
    "ubar": Ubar,
}
RULES = [
    Median(),
    TrimmedMean(0),
    TrimmedMean(),
    TrimmedMean(2),
    MultiKrum(),
    MultiKrum(liars=0),
    MultiKrum(liars=2, kept=1),
    MultiKrum(liars=1, kept=50),
    ClippedGossip(),
    ClippedGossip(liars=0),
    ClippedGossip(liars=2),
    ClippedGossip(radius=1.5),
    Balance(),
    Balance(closeness=1.5, own_share=0.2),
    Ubar(),
    Ubar(honest_share=1.0, own_share=0.0),
    Ubar(honest_share=0.7),
]


def inbox_of(*models, present=None):
    models = torch.tensor(models, dtype=torch.float32)
    slots = len(models)
    return Inbox(
        models,
        torch.full((slots,), 12),
        torch.full((slots,), torch.nan, dtype=torch.float64),
        torch.ones(slots, dtype=torch.float64),
        torch.ones(slots, dtype=torch.bool) if present is None else torch.tensor(present),
    )


def probe_of(*losses):
    each = torch.tensor(losses)[:, None]
    return Probe(each, torch.ones(1, dtype=torch.bool))


def assert_merges_to(merged, model, importance=None):
    torch.testing.assert_close(merged.model, torch.tensor(model, dtype=torch.float32))
    if importance is not None:
        torch.testing.assert_close(merged.importance, torch.tensor(importance, dtype=torch.float32))


# Worked examples.


def test_the_median_of_three_is_the_value_in_the_middle_of_each_coordinate():
    merged = Median()(None, inbox_of([1, 10], [2, 30], [9, 20]))
    assert_merges_to(merged, [2, 20], [0, 0.5, 0.5])


def test_the_median_of_four_is_the_mean_of_the_two_in_the_middle():
    merged = Median()(None, inbox_of([1.0], [2.0], [4.0], [90.0]))
    assert_merges_to(merged, [3], [0, 0.5, 0.5, 0])


def test_the_trimmed_mean_drops_the_largest_and_the_smallest_value_of_each_coordinate():
    merged = TrimmedMean()(None, inbox_of([1, 5], [2, -90], [6, 4], [90, 3]))
    assert_merges_to(merged, [4, 3.5], [0, 0.25, 0.5, 0.25])


def test_multi_krum_leaves_out_the_model_that_is_far_from_all_others():
    # n = 5 and f = 1: a score is the sum of the 2 smallest squares, here 2, 3, 3, 10 and more than 19,000.
    case = inbox_of([0, 0], [1, 0], [0, 1], [2, 2], [100, 0])
    assert_merges_to(MultiKrum()(None, case), [0.75, 0.75], [0.25, 0.25, 0.25, 0.25, 0])
    assert_merges_to(MultiKrum(kept=1)(None, case), [0, 0], [1, 0, 0, 0, 0])


def test_clipped_gossip_shortens_differences_to_the_radius():
    # Differences of length 5 and 1 with radius 2.5: the first is halved; each has weight 1/3.
    merged = ClippedGossip(radius=2.5)(None, inbox_of([0, 0], [3, 4], [0, 1]))
    assert_merges_to(merged, [0.5, 1.0], [1 / 2, 1 / 6, 1 / 3])


def test_the_adaptive_radius_comes_from_all_distances_but_the_largest_ones():
    # f = 1: τ² = 3² + 4², so the model at distance 50 gets a tenth of its weight of 1/4.
    merged = ClippedGossip()(None, inbox_of([0.0], [3.0], [4.0], [50.0]))
    assert_merges_to(merged, [(3 + 4 + 5) / 4], [1 - 0.25 - 0.25 - 0.025, 0.25, 0.25, 0.025])
    # f = 2: τ² = 3²/2.
    radius = math.sqrt(4.5)
    assert_merges_to(ClippedGossip(liars=2)(None, inbox_of([0.0], [3.0], [4.0], [50.0])), [3 * radius / 4])


def test_balance_accepts_what_is_near_relative_to_the_own_norm():
    case = inbox_of([3, 4], [3, 5], [4, 4], [3, 6])  # norm 5; distances 1, 1 and 2
    assert_merges_to(Balance(closeness=0.3)(None, case), [3.25, 4.25], [0.5, 0.25, 0.25, 0])
    assert_merges_to(Balance(closeness=0.1)(None, case), [3, 4], [1, 0, 0, 0])


def test_ubar_selects_by_distance_and_then_by_loss():
    case = inbox_of([0.0], [1.0], [2.0], [3.0], [4.0])
    rule = Ubar(honest_share=0.5)  # the models at 1 and 2
    assert_merges_to(rule(probe_of(1.0, 0.5, 2.0, 0.1, 0.1), case), [0.5], [0.5, 0.5, 0, 0, 0])
    assert_merges_to(rule(probe_of(1.0, 0.5, 1.0, 0.1, 0.1), case), [0.75], [0.5, 0.25, 0.25, 0, 0])
    assert_merges_to(rule(probe_of(1.0, 3.0, 2.0, 0.1, 0.1), case), [1.0], [0.5, 0, 0.5, 0, 0])  # none is as good


def test_ubar_selects_at_least_one_model():
    assert_merges_to(Ubar(honest_share=0.4)(probe_of(1.0, 0.5), inbox_of([0.0], [1.0])), [0.5])


def test_ubar_prefers_any_loss_to_one_that_is_no_number():
    case = inbox_of([0.0], [1.0], [2.0])
    rule = Ubar(honest_share=1.0)
    assert_merges_to(rule(probe_of(1.0, torch.nan, 5.0), case), [1.0], [0.5, 0, 0.5])
    assert_merges_to(rule(probe_of(1.0, torch.nan, torch.inf), case), [1.0], [0.5, 0, 0.5])


def test_without_losses_ubar_cannot_merge():
    with pytest.raises(ValueError, match="probe"):
        Ubar()(None, inbox_of([0.0]))


# Guards.


def test_the_trimmed_mean_trims_as_many_as_leave_one():
    assert_merges_to(TrimmedMean(9)(None, inbox_of([1.0], [50.0], [2.0])), [2], [0, 0, 1])
    assert_merges_to(TrimmedMean(9)(None, inbox_of([1.0], [50.0], [2.0], [4.0])), [3], [0, 0, 0.5, 0.5])


def test_the_trimmed_mean_of_two_is_the_own_model_unless_nobody_is_assumed_to_lie():
    assert_merges_to(TrimmedMean(1)(None, inbox_of([1.0], [50.0])), [1], [1, 0])
    assert_merges_to(TrimmedMean(0)(None, inbox_of([1.0], [50.0])), [25.5], [0.5, 0.5])


@pytest.mark.parametrize(("liars", "slots"), [(0, 2), (1, 3), (2, 4), (7, 5)])
def test_multi_krum_keeps_the_own_model_where_it_is_undefined(liars, slots):
    models = [[float(slot + 1)] for slot in range(slots)]
    assert_merges_to(MultiKrum(liars=liars)(None, inbox_of(*models)), [1], [1] + [0] * (slots - 1))


def test_multi_krum_counts_only_models_that_are_there():
    case = inbox_of([1.0], [5.0], [5.0], [5.0], present=[True, True, False, True])
    assert_merges_to(MultiKrum(liars=1)(None, case), [1], [1, 0, 0, 0])


@pytest.mark.parametrize("liars", [1, 2, 9])
def test_clipped_gossip_keeps_the_own_model_where_all_others_may_lie(liars):
    assert_merges_to(ClippedGossip(liars=liars)(None, inbox_of([1.0], [50.0])), [1], [1, 0])


def test_clipped_gossip_without_liars_is_the_mean():
    assert_merges_to(ClippedGossip(liars=0)(None, inbox_of([1.0], [50.0])), [25.5], [0.5, 0.5])


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_what_absent_slots_hold_does_not_matter(rule):
    for seed in range(20):
        probe, case = random_inbox(seed, slots=6)
        plain = rule(probe, case)
        for filler in (torch.nan, torch.inf, -torch.inf, 1e38):
            case.models[~case.present] = filler
            other = rule(probe, case)
            torch.testing.assert_close(other.model, plain.model)
            torch.testing.assert_close(other.importance, plain.importance)


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_a_server_alone_with_a_model_that_is_not_finite_keeps_it(rule):
    """So the guard of the server notices."""
    case = inbox_of([torch.nan, torch.nan], [1.0, 2.0], [2.0, 1.0], present=[True, False, False])
    assert not torch.isfinite(rule(probe_of(1.0, 1.0, 1.0), case).model).any()


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_all_servers_at_once_are_each_as_alone(rule):
    cases = [random_inbox(seed, slots=6, params=7) for seed in range(12)]
    probes = Probe(*(torch.stack([getattr(probe, name) for probe, _ in cases]) for name in ("losses", "valid")))
    inboxes = Inbox(*(torch.stack(parts) for parts in zip(*(case for _, case in cases), strict=True)))
    lifted = torch.vmap(rule, in_dims=(probes.for_each, 0))(probes, inboxes)
    for row, (probe, case) in enumerate(cases):
        alone = rule(probe, case)
        torch.testing.assert_close(lifted.model[row], alone.model)
        torch.testing.assert_close(lifted.importance[row], alone.importance)
        torch.testing.assert_close(lifted.mass[row], alone.mass)


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_merging_in_pieces_changes_nothing(rule, monkeypatch):
    cases = [random_inbox(seed, slots=5, params=11) for seed in range(10)]
    whole = [rule(*case) for case in cases]
    monkeypatch.setattr(robust, "CHUNK", 4)
    monkeypatch.setattr(inbox_module, "CHUNK", 4)
    for case, expected in zip(cases, whole, strict=True):
        torch.testing.assert_close(rule(*case).model, expected.model)
        torch.testing.assert_close(rule(*case).importance, expected.importance)


# Against plain loops in float64, which know nothing of absent slots: they get the models present.


def reference_median(models, losses, rule):
    merged = [np.median([model[p] for model in models]) for p in range(len(models[0]))]
    return np.array(merged)


def reference_trimmed_mean(models, losses, rule):
    trim = rule.trim
    while 2 * trim >= len(models):
        trim -= 1
    if trim == 0 and rule.trim > 0:
        return models[0]
    merged = []
    for p in range(len(models[0])):
        values = sorted(model[p] for model in models)
        middle = values[trim : len(values) - trim]
        merged.append(sum(middle) / len(middle))
    return np.array(merged)


def reference_multi_krum(models, losses, rule):
    n, f = len(models), rule.liars
    if n - f - 2 < 1:
        return models[0]
    scores = []
    for i in range(n):
        squares = sorted(((models[i] - models[j]) ** 2).sum() for j in range(n) if j != i)
        scores.append(sum(squares[: n - f - 2]))
    best = sorted(range(n), key=lambda i: scores[i])[: n - f if rule.kept is None else rule.kept]
    return sum(models[i] for i in best) / len(best)


def reference_clipped_gossip(models, losses, rule):
    own, received = models[0], models[1:]
    distances = [np.linalg.norm(model - own) for model in received]
    if rule.radius is not None:
        radius = rule.radius
    elif rule.liars == 0:
        radius = math.inf
    else:
        trusted = sorted(distances)[: max(0, len(received) - rule.liars)]
        radius = math.sqrt(sum(distance**2 for distance in trusted) / rule.liars)
    merged = own.copy()
    for model, distance in zip(received, distances, strict=True):
        merged += (model - own) * min(1.0, radius / distance) / len(models)
    return merged


def reference_balance(models, losses, rule):
    own = models[0]
    accepted = [m for m in models[1:] if np.linalg.norm(m - own) <= rule.closeness * np.linalg.norm(own)]
    if not accepted:
        return own
    return rule.own_share * own + (1 - rule.own_share) * sum(accepted) / len(accepted)


def reference_ubar(models, losses, rule):
    own, received = models[0], range(1, len(models))
    if not received:
        return own
    nearest = sorted(received, key=lambda j: np.linalg.norm(models[j] - own))
    selected = nearest[: max(1, int(rule.honest_share * len(received) + 1e-6))]
    kept = [j for j in selected if losses[j] <= losses[0]] or [min(selected, key=lambda j: losses[j])]
    return rule.own_share * own + (1 - rule.own_share) * sum(models[j] for j in kept) / len(kept)


REFERENCES = {
    Median: reference_median,
    TrimmedMean: reference_trimmed_mean,
    MultiKrum: reference_multi_krum,
    ClippedGossip: reference_clipped_gossip,
    Balance: reference_balance,
    Ubar: reference_ubar,
}


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_rules_agree_with_plain_loops(rule):
    for seed in range(60):
        probe, case = random_inbox(seed, slots=1 + seed % 9, params=6)
        case.models[1:] = case.models[0] + 0.8 * (case.models[1:] - case.models[0])  # so that BALANCE accepts some
        present = case.present.numpy()
        models = list(case.models.double().numpy()[present])
        losses = probe.losses.double().mean(dim=1).numpy()[present]
        case.models[~case.present] = torch.nan
        expected = REFERENCES[type(rule)](models, losses, rule)
        np.testing.assert_allclose(rule(probe, case).model.numpy(), expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("rule", [rule for rule in RULES if not isinstance(rule, Median | TrimmedMean)], ids=repr)
def test_the_model_is_the_average_with_the_weights_that_are_told(rule):
    for seed in range(20):
        probe, case = random_inbox(seed, slots=7)
        merged = rule(probe, case)
        torch.testing.assert_close(merged.model, merged.importance @ case.models)


@pytest.mark.parametrize("rule", [TrimmedMean(2), MultiKrum(liars=2), Median()], ids=repr)
def test_two_liars_of_seven_cannot_move_the_result_beyond_the_honest_models(rule):
    generator = torch.Generator().manual_seed(0)
    honest = torch.randn(5, 8, generator=generator)
    for lie in (1e6, -1e6):
        case = inbox_of(*honest.tolist(), [lie] * 8, [lie] * 8)
        merged = rule(None, case).model
        assert (merged >= honest.min(dim=0).values - 1e-4).all()
        assert (merged <= honest.max(dim=0).values + 1e-4).all()


@pytest.mark.parametrize("rule", RULES, ids=repr)
class TestLaws(AggregatorLaws):
    @pytest.fixture(autouse=True)
    def _choose(self, rule):
        self.rule = rule

    def aggregator(self):
        return self.rule


def test_all_rules_are_known_by_name():
    assert {name: AGGREGATORS[name] for name in NAMES} == NAMES
    assert not any(AGGREGATORS[name].averages for name in NAMES)
    assert [name for name in NAMES if AGGREGATORS[name].needs_probe] == ["ubar"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TrimmedMean(-1), "aggregator.trim is -1, but must be at least 0."),
        (lambda: MultiKrum(liars=-2), "aggregator.liars is -2, but must be at least 0."),
        (lambda: MultiKrum(kept=0), "aggregator.kept is 0, but must be at least 1."),
        (lambda: ClippedGossip(radius=0.0), "aggregator.radius is 0.0, but must be a number above 0, or null."),
        (lambda: ClippedGossip(radius=math.nan), "aggregator.radius is nan, but must be a number above 0, or null."),
        (lambda: ClippedGossip(liars=-1), "aggregator.liars is -1, but must be at least 0."),
        (lambda: Balance(closeness=math.inf), "aggregator.closeness is inf, but must be a number above 0."),
        (lambda: Balance(own_share=1.5), "aggregator.own_share is 1.5, but must lie between 0 and 1."),
        (lambda: Ubar(honest_share=0), "aggregator.honest_share is 0, but must be a share above 0, at most 1."),
        (lambda: Ubar(own_share=-0.1), "aggregator.own_share is -0.1, but must lie between 0 and 1."),
    ],
)
def test_impossible_settings_are_refused_in_a_sentence(make, message):
    with pytest.raises(ConfigError) as refusal:
        make()
    assert str(refusal.value) == message
