from __future__ import annotations

from dataclasses import replace

import pytest

import hatdfed
from hatdfed.report.run_data import run_data
from hatdfed.runs.recorder import RunResult
from hatdfed.setup.config import Component


@pytest.fixture(scope="module")
def result() -> RunResult:
    return hatdfed.run(method="hat-dfed", servers=3, rounds=2, out=None)


def test_a_bandit_has_its_budget_and_its_learning_rate(result) -> None:
    run = run_data(result)
    assert run.budget is not None
    assert run.learning_rate is not None


@pytest.mark.parametrize("policy", [Component(name="mine"), Component(name="ring", unheard_of=1)])
def test_a_policy_that_this_process_does_not_know_is_drawn_from_its_records(result, policy: Component) -> None:
    run = run_data(replace(result, config=result.config.model_copy(update={"policy": policy})))
    assert (run.budget, run.learning_rate) == (None, None)
    assert run.rounds == result.rounds
