"""A budget for a whole run is never exceeded, and little of it is left."""

import numpy as np
import pytest
from tests.small_runs import SMALL

from hatdfed.core.effort import full_effort
from hatdfed.core.run_budget import RunBudget
from hatdfed.randomness import stream
from hatdfed.runs.calls import run
from hatdfed.testing import policy_context

RUN = {**SMALL, "rounds": 20, "servers": 4}


def spend(method, budget, **more):
    result = run(**RUN, method=method, budget_joules=budget, **more)
    return 1e6 * result.summary["total_energy_mj"], result


@pytest.mark.parametrize("method", ["hat-dfed", "hat-dfed-plus", "d-psgd"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_no_run_exceeds_its_budget(method, share):
    usual = 1e6 * run(**RUN, method=method).summary["total_energy_mj"]
    spent, _ = spend(method, share * usual)
    assert spent <= share * usual
    assert spent > 0.5 * share * usual or share < 0.5, "a round or two cost more than a small budget leaves over"


def test_a_budget_that_is_large_enough_changes_no_result():
    free = run(**RUN, method="hat-dfed-plus")
    spent, rich = spend("hat-dfed-plus", 1e9)
    assert spent == pytest.approx(1e6 * free.summary["total_energy_mj"])
    assert rich.summary["accuracy_by_server"] == free.summary["accuracy_by_server"]


def test_training_policy_and_links_share_one_budget():
    usual = 1e6 * run(**RUN, method="hat-dfed-plus").summary["total_energy_mj"]
    spent, result = spend("hat-dfed-plus", 0.5 * usual, training={"name": "skip-train"})
    joules = result.summary["energy_by_cause_mj"]
    assert spent <= 0.5 * usual
    assert all(joules[cause] > 0 for cause in ("training", "upload", "link"))


def test_a_run_under_a_budget_goes_on_where_it_was(tmp_path):
    from hatdfed.runs.calls import resume

    settings = {**RUN, "method": "hat-dfed-plus", "budget_joules": 200.0, "training": {"name": "marginal-gain"}}
    whole = run(**settings, horizon=20)
    run(**{**settings, "rounds": 10}, horizon=20, checkpoint_every=10, out=tmp_path / "run")
    again = resume(tmp_path / "run", {"rounds": 20})
    assert again.summary["accuracy_by_server"] == whole.summary["accuracy_by_server"]
    assert again.summary["total_energy_mj"] == whole.summary["total_energy_mj"]


def test_servers_rest_in_turn_when_not_all_can_train():
    budget, rested = RunBudget(100.0), np.zeros(5)
    for t in range(300):
        effort = budget.fit(full_effort(5, 2), np.full(5, 10.0), 35.0, stream(0, "training", t))
        assert np.count_nonzero(effort.passes) == 3
        assert (effort.asks == (effort.passes > 0)).all()
        rested += effort.passes == 0
    assert rested == pytest.approx(120, abs=30)


def test_the_finish_is_put_aside():
    context = policy_context(4, t=0, horizon=10)
    budget = RunBudget(1000.0, finish_rounds=2)
    aside = 2 * context.prices.sum()
    assert budget.allow(0.0, context) == pytest.approx((1000 - aside) / 8)
    assert budget.allow(100.0, context._replace(t=7)) == pytest.approx(1000 - aside - 100)
    assert budget.allow(100.0, context._replace(t=8)) == 900
    assert RunBudget(10.0, finish_rounds=2).allow(0.0, context._replace(t=7)) == pytest.approx(5.0)
