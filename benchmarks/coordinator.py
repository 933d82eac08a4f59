"""What a round costs the coordinator: drawing the links and learning from the reports, one core, for growing fleets.

OMP_NUM_THREADS=1 taskset -c 0 python benchmarks/coordinator.py      prints a table
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

from hatdfed.coordinator import Coordinator, CoordinatorState
from hatdfed.energy.prices import EnergyPrices, draw_prices
from hatdfed.policies.link_bandit import BanditState, LinkBandit
from hatdfed.randomness import stream
from hatdfed.round import RoundPlan, RoundReport, ServerReport
from hatdfed.utility import LinkUtility

FLEETS = (5, 50, 200, 1000, 2000)
WARM_UP = 3
LINKS_OF_A_SERVER = 1.2  # drawn in a round, on average: at 5 servers the paper's 30 %
SPREADS = {"close": 0.3, "far apart": 3.0}  # standard deviation of the log-weights at the start


def coordinator_cost(num_servers: int, rounds: int = 11, seed: int = 0, *, spread: float = 0.3) -> float:
    """Median milliseconds of `plan` and `learn` together."""
    return statistics.median(plan + learn for plan, learn in round_costs(num_servers, rounds, seed, spread=spread))


def round_costs(num_servers: int, rounds: int = 11, seed: int = 0, *, spread: float = 0.3) -> list[tuple[float, float]]:
    """Milliseconds of `plan` and of `learn` in each of `rounds` rounds, after a few that do not count."""
    coordinator = _coordinator(num_servers, seed)
    state = _learned_state(coordinator, spread)
    costs = []
    for t in range(WARM_UP + rounds):
        start = time.perf_counter()
        plan = coordinator.plan(state)
        planned = time.perf_counter()
        report = played(plan, coordinator.prices, stream(seed, "benchmark-round", t))
        reported = time.perf_counter()
        state, _ = coordinator.learn(state, plan, report)
        costs.append((1e3 * (planned - start), 1e3 * (time.perf_counter() - reported)))
        assert plan.draw.topology.num_links == coordinator.budget
    return costs[WARM_UP:]


def played(plan: RoundPlan, prices: EnergyPrices, rng: np.random.Generator) -> RoundReport:
    """What the servers would report: every hundredth model is lost, weights are equal."""
    return RoundReport(tuple(_server_report(plan, prices, server, rng) for server in range(prices.num_servers)))


def _server_report(plan: RoundPlan, prices: EnergyPrices, server: int, rng: np.random.Generator) -> ServerReport:
    senders = plan.draw.topology.senders(server)
    delivered = plan.draw.topology.links[server] & (rng.random(prices.num_servers) < 0.99)
    importance = np.full(prices.num_servers, np.nan)
    importance[delivered] = importance[server] = 1 / (1 + np.count_nonzero(delivered))
    online = int(rng.integers(1, prices.num_devices))
    energy = (
        prices.upload(plan.t, server, online),
        prices.training(plan.t, server, 2 * online),
        *(prices.link(plan.t, server, sender) for sender in senders),
    )
    return ServerReport(float(rng.uniform(0.5, 0.7)), 2 * online, importance, delivered, energy)


def _coordinator(num_servers: int, seed: int) -> Coordinator:
    prices = draw_prices(
        seed, num_servers, num_devices=30, samples_per_device=2, bits_per_sample=6272, model_bits=47.2e6,
        weak_joules_per_sample=17.33, strong_joules_per_sample=8.67, device_kbit_per_joule=1.0,
        link_kbit_per_joule=(20.0, 50.0),
    )  # fmt: skip
    budget = round(LINKS_OF_A_SERVER * num_servers)
    return Coordinator(LinkBandit(), LinkUtility(), prices, seed=seed, horizon=200, budget=budget)


def _learned_state(coordinator: Coordinator, spread: float) -> CoordinatorState:
    """As in the middle of a run: weights apart, links with a past."""
    shape = coordinator.prices.link_joules.shape
    rng = stream(coordinator.seed, "benchmark-state")
    state = coordinator.start(rng.uniform(0.5, 0.7, len(coordinator.prices.compute_joules)))
    log_weights = rng.normal(0, spread, shape)
    return state._replace(policy=BanditState(log_weights - log_weights.max()), utility_sum=20 * rng.random(shape))


def fastest(work: Callable[[], object], repeats: int = 7) -> float:
    """Milliseconds of the fastest of a few repeats: a yardstick for the machine of the moment."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(1e3 * (time.perf_counter() - start))
    return min(times)


def measure(num_servers: int, spread: float) -> dict[str, float]:
    """A row of the table."""
    costs = round_costs(num_servers, spread=spread)
    totals = [plan + learn for plan, learn in costs]
    values = np.random.default_rng(0).normal(size=num_servers * (num_servers - 1))
    return {
        "plan_ms": statistics.median(plan for plan, _ in costs),
        "learn_ms": statistics.median(learn for _, learn in costs),
        "total_ms": statistics.median(totals),
        "fastest_ms": min(totals),
        "copy_ms": fastest(values.copy),
        "sort_ms": fastest(lambda: np.sort(values)),
    }


def main() -> None:
    """Measure all fleets and print a line for each."""
    for num_servers in FLEETS:
        for name, spread in SPREADS.items():
            figures = "  ".join(f"{key} {value:.2f}" for key, value in measure(num_servers, spread).items())
            print(f"servers {num_servers}  links {num_servers * (num_servers - 1)}  weights {name}  {figures}")


if __name__ == "__main__":
    main()
