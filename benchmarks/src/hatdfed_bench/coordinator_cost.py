"""What a round costs the coordinator: drawing the links and learning from the reports, on one core."""

from __future__ import annotations

import statistics
import time

import numpy as np

from hatdfed.core.coordinator import Coordinator, CoordinatorState
from hatdfed.core.energy.energy_model import EnergyPrices, draw_prices
from hatdfed.core.policies.link_bandit import BanditState, LinkBandit
from hatdfed.core.regret import RegretSums
from hatdfed.core.round import RoundPlan, RoundReport, ServerReport
from hatdfed.core.utility import LinkUtility
from hatdfed.randomness import stream

WARM_UP = 3
LINKS_OF_A_SERVER = 1.2  # drawn in a round, on average: at 5 servers the paper's 30 %


def coordinator_cost(num_servers: int, rounds: int = 11, seed: int = 0, *, spread: float = 0.3) -> float:
    """Median milliseconds of `plan` and `learn` together."""
    return statistics.median(plan + learn for plan, learn in round_costs(num_servers, rounds, seed, spread=spread))


def round_costs(num_servers: int, rounds: int = 11, seed: int = 0, *, spread: float = 0.3) -> list[tuple[float, float]]:
    """Milliseconds of `plan` and of `learn` in each of `rounds` rounds, after a few that do not count."""
    coordinator = _coordinator(num_servers, seed)
    return costs_of(coordinator, _learned_state(coordinator, spread), rounds)


def costs_of(coordinator: Coordinator, state: CoordinatorState, rounds: int) -> list[tuple[float, float]]:
    """The same for any coordinator."""
    costs = []
    for t in range(WARM_UP + rounds):
        start = time.perf_counter()
        plan = coordinator.plan(state)
        planned = time.perf_counter()
        report = played(plan, coordinator.prices, stream(coordinator.seed, "benchmark-round", t))
        reported = time.perf_counter()
        state, _ = coordinator.learn(state, plan, report)
        costs.append((1e3 * (planned - start), 1e3 * (time.perf_counter() - reported)))
    return costs[WARM_UP:]


def played(plan: RoundPlan, prices: EnergyPrices, rng: np.random.Generator) -> RoundReport:
    """What the servers would report: every hundredth model is lost, weights are equal."""
    return RoundReport(tuple(_server_report(plan, prices, server, rng) for server in range(prices.num_servers)))


def _server_report(plan: RoundPlan, prices: EnergyPrices, server: int, rng: np.random.Generator) -> ServerReport:
    senders = plan.draw.topology.senders(server)
    heard = np.array([server, *(sender for sender in senders if rng.random() < 0.99)])
    online = int(rng.integers(1, prices.num_devices))
    energy = (
        prices.upload(plan.t, server, online, 2 * online),
        prices.training(plan.t, server, 2 * online),
        *(prices.link(plan.t, server, sender) for sender in senders),
    )
    weights = np.full(len(heard), 1 / len(heard))
    return ServerReport(float(rng.uniform(0.5, 0.7)), 2 * online, heard, weights, energy)


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
    rng = stream(coordinator.seed, "benchmark-state")
    state = coordinator.start(rng.uniform(0.5, 0.7, coordinator.prices.num_servers))
    num_links = len(state.regret.utility)
    log_weights = rng.normal(0, spread, num_links)
    return state._replace(
        policy=BanditState(log_weights - log_weights.max()), regret=RegretSums(20 * rng.random(num_links))
    )
