import pytest

from hatdfed_bench.coordinator_cost import coordinator_cost, round_costs


@pytest.mark.parametrize("servers", [5, 300])
def test_a_round_is_measured_by_its_two_halves(servers):
    costs = round_costs(servers, 2)
    assert len(costs) == 2
    assert all(plan > 0 and learn > 0 for plan, learn in costs)


def test_the_cost_is_the_median_of_their_sums(monkeypatch):
    monkeypatch.setattr("hatdfed_bench.coordinator_cost.round_costs", lambda *_, **__: [(1, 2), (30, 40), (3, 4)])
    assert coordinator_cost(5) == 7
