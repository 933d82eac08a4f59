from __future__ import annotations

from dataclasses import replace

import pytest

import hatdfed
from hatdfed.core.policies import POLICIES
from hatdfed.core.policies.link_bandit import LinkBandit
from hatdfed.report.run_data import run_data
from hatdfed.runs.result import RunResult
from hatdfed.setup.config import Component
from hatdfed.setup.layers import resolve


@pytest.fixture(scope="module")
def result() -> RunResult:
    return hatdfed.run(method="hat-dfed", servers=3, rounds=2, out=None)


def test_a_bandit_has_its_budget_and_its_learning_rate(result) -> None:
    run = run_data(result)
    assert run.budget is not None
    assert run.learning_rate is not None


class OtherBandit(LinkBandit):
    """May do anything with its draw."""


@pytest.mark.parametrize(
    "change",
    [
        {"policy": {"exploration": 0.2}},
        {"policy": {"capping": "clip"}},
        {"policy": {"propensity": "after-rounding"}},
        {"policy": {"name": "other-bandit"}},
        {"churn": 0.1},
        {"candidates": 1},
        {"schedule": {"every": 2}},
        {"utility": {"gain": "released"}},
        {"utility": {"thrift": "released"}},
    ],
)
def test_no_bound_is_drawn_where_it_is_not_proved(result, monkeypatch, change) -> None:
    monkeypatch.setitem(POLICIES.built_in, "other-bandit", OtherBandit)
    config = resolve({"method": "hat-dfed", "servers": 3, "rounds": 2, **change})
    assert run_data(replace(result, config=config)).learning_rate is None


@pytest.mark.parametrize("policy", [Component(name="mine"), Component(name="ring", unheard_of=1)])
def test_a_policy_that_this_process_does_not_know_is_drawn_from_its_records(result, policy: Component) -> None:
    run = run_data(replace(result, config=result.config.model_copy(update={"policy": policy})))
    assert (run.budget, run.learning_rate) == (None, None)
    assert run.rounds == result.rounds
