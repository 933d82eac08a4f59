"""The rules that judge, on results made by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.paper.made_results import results_by_seed

from hatdfed.runs.statistics import PairedDifference
from hatdfed_paper.verdict_rules import (
    NOT,
    PARTLY,
    REPRODUCED,
    judge_at_least,
    judge_at_most,
    judge_best_of_sweep,
    judge_difference,
    judge_share,
)


@pytest.mark.parametrize(
    ("interval", "published", "verdict"),
    [
        ((2.0, 1.0, 3.0), 1.9, REPRODUCED),
        ((5.0, 4.0, 6.0), 1.9, REPRODUCED),
        ((1.0, 0.5, 1.5), 1.9, PARTLY),
        ((1.0, -0.5, 2.5), 1.9, NOT),
        ((-3.0, -4.0, -2.0), 1.9, NOT),
        ((2.0, None, None), 1.9, NOT),
    ],
)
def test_a_claimed_difference_is_judged_by_its_interval(interval, published, verdict):
    assert judge_difference(PairedDifference(*interval, 10), published) == verdict


@pytest.mark.parametrize(
    ("accuracy", "verdict"),
    [
        ({0.2: (50, 60), 0.3: (52, 62), 0.4: (51, 61)}, REPRODUCED),
        ({0.2: (50, 60), 0.3: (52, 62), 0.4: (51, 65)}, NOT),
        ({0.2: (50, 60), 0.3: (52, 62), 0.4: (55, 65)}, NOT),
    ],
)
def test_a_value_called_best_is_judged_against_the_best(accuracy, verdict):
    sweep = {value: {"link_share": value} for value in accuracy}
    figures = [
        (sweep[value], seed, {"avg_accuracy": float(figure)})
        for value, both in accuracy.items()
        for seed, figure in enumerate(both)
    ]
    (found,) = judge_best_of_sweep("RQ2", "γ", results_by_seed(figures), sweep, 0.3)
    assert found.verdict == verdict


def test_any_value_that_is_distinguishably_higher_speaks_against():
    """0.5 has the highest mean but varies; 0.4 is lower and surely above 0.3."""
    accuracy = {0.3: (50, 60, 70), 0.4: (52, 62, 72.1), 0.5: (40, 62, 90)}
    sweep = {value: {"link_share": value} for value in accuracy}
    figures = [
        (sweep[value], seed, {"avg_accuracy": float(figure)})
        for value, each in accuracy.items()
        for seed, figure in enumerate(each)
    ]
    (found,) = judge_best_of_sweep("RQ2", "γ", results_by_seed(figures), sweep, 0.3)
    assert found.verdict == NOT
    assert found.ours.startswith("0.5 is ahead")


@pytest.mark.parametrize(
    ("interval", "verdict"), [((0.5, 0.2, 0.8), REPRODUCED), ((0.9, 0.5, 1.3), NOT), ((2.0, 1.5, 2.5), NOT)]
)
def test_only_marginally(interval, verdict):
    (found,) = judge_at_most("RQ2", "γ", PairedDifference(*interval, 10), 1.0, "points")
    assert found.verdict == verdict


@pytest.mark.parametrize(
    ("interval", "verdict"), [((6.0, 5.5, 6.5), REPRODUCED), ((5.5, 4.5, 6.5), NOT), ((1.4, 1.2, 1.6), NOT)]
)
def test_sharply_is_judged_by_the_rule_that_judges_only_marginally(interval, verdict):
    """A rise that is surely there, but below what the word means, does not reproduce it even partly."""
    ours = PairedDifference(*interval, 10)
    (sharp,) = judge_at_least("RQ4", "α", ours, 5.0, "%")
    (mirrored,) = judge_at_most("RQ4", "α", PairedDifference(-ours.mean, -ours.high, -ours.low, 10), -5.0, "%")
    assert (sharp.verdict, mirrored.verdict) == (verdict, verdict)
    assert (sharp.null, mirrored.null) == ("at most 5 %", "at least -5 %")


def test_no_value_of_a_flat_sweep_is_reproduced_as_the_best():
    sweep = {value: {"link_share": value} for value in (0.2, 0.3, 0.4)}
    wobble = {0.2: (0, 1, 0), 0.3: (1, 0, 0), 0.4: (0, 0, 1)}
    figures = [
        (sweep[v], k, {"avg_accuracy": 50.0 + each}) for v, three in wobble.items() for k, each in enumerate(three)
    ]
    found = [next(judge_best_of_sweep("RQ2", "γ", results_by_seed(figures), sweep, value)) for value in sweep]
    assert {each.verdict for each in found} == {NOT}


def test_a_sweep_with_gaps_is_not_judged():
    assert list(judge_best_of_sweep("RQ2", "γ", results_by_seed([]), {0.3: {"link_share": 0.3}}, 0.3)) == []


def test_shares():
    assert [judge_share(near, 8) for near in (8, 4, 3)] == [REPRODUCED, PARTLY, NOT]


@pytest.mark.parametrize("size", [0.0, 1.9])
def test_what_is_no_number_is_not_reproduced(size):
    nothing = float("nan")
    assert judge_difference(PairedDifference(nothing, nothing, nothing, 10), size) == NOT


@given(
    low=st.floats(-10, 10), width=st.floats(0, 10), size=st.floats(0.1, 5), published=st.floats(0.0, 10),
)  # fmt: skip
def test_the_rule_is_the_same_in_both_directions(low, width, size, published):
    """A claim and its opposite are never both held; "more than" and "less than" a size mirror each other."""
    ours = PairedDifference(low + width / 2, low, low + width, 10)
    mirrored = PairedDifference(-ours.mean, -ours.high, -ours.low, 10)
    assert NOT in (judge_difference(ours, published), judge_difference(mirrored, published))
    (least,) = judge_at_least("", "", ours, size, "points")
    across = PairedDifference(2 * size - ours.mean, 2 * size - ours.high, 2 * size - ours.low, 10)
    (most,) = judge_at_most("", "", across, size, "points")
    if abs(low - size) > 1e-9:
        assert least.verdict == most.verdict
