"""A thousand servers: the coordinator's round is a few passes over the links, no sorting, no loop over links."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

_FILE = Path(__file__).parents[2] / "benchmarks/coordinator.py"
_spec = importlib.util.spec_from_file_location("benchmark_coordinator", _FILE)
bench = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(bench)


@pytest.mark.parametrize("spread", [0.3, 3.0])
def test_a_round_of_a_thousand_servers_costs_no_more_than_a_few_sorts_of_its_links(spread):
    """About three on a quiet machine, and it was twelve; the fastest of some rounds, since machines are not quiet."""
    values = np.random.default_rng(0).normal(size=999_000)
    costs = [sum(cost) for cost in bench.round_costs(1000, 5, spread=spread)]
    assert min(costs) < 10 * bench.fastest(lambda: np.sort(values))


def test_the_benchmark_measures_small_fleets_too():
    assert bench.coordinator_cost(5, rounds=2) > 0
