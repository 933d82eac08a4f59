"""The records of a run, and the quantities that figures show, computed from them.

Figures of one run are drawn in `run_figures`, those of many in `comparison_figures`. Imports neither torch nor
matplotlib.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.energy.energy_model import PAPER_CAUSES
from hatdfed.core.policies import POLICIES
from hatdfed.core.policies.base import TopologyPolicy
from hatdfed.core.policies.link_bandit import LinkBandit, theorem_learning_rate
from hatdfed.errors import ConfigError
from hatdfed.runs.round_row import JOULES, ROUND_COLUMNS
from hatdfed.runs.summary import mean_and_deviation
from hatdfed.runs.trust_history import TrustHistory
from hatdfed.setup.build.coordinator import build_component
from hatdfed.setup.config import Config, ScheduleConfig
from hatdfed.setup.layers import config_budget, considered_links

if TYPE_CHECKING:  # the recorder needs torch, reading records does not
    from hatdfed.runs.result import RunResult

Vector = NDArray[np.float64]
Record = Mapping[str, Any]

# Column of a round's record, and what a reader calls it. The order is that of the stacks, from the bottom up.
CAUSES = {name: ROUND_COLUMNS[name].label for name in JOULES.values()}
PAPER_COLUMNS = frozenset(JOULES[cause] for cause in PAPER_CAUSES)

_NO_NUMBER = (type(None), str, bytes)  # other types that SQLite may return from a column of numbers


class RunData(NamedTuple):
    """One run as records; accuracies are percent."""

    label: str  # the method, e.g. "hat-dfed"
    title: str  # e.g. "hat-dfed on digits, 5 servers, seed 0"
    num_servers: int
    rounds: Sequence[Record]  # columns as in `hatdfed.runs.round_row`
    servers: Sequence[Record]  # and of these as in `hatdfed.runs.records.schema`
    links: Sequence[Record]
    summary: Record  # avg_accuracy, std_accuracy (test, after the last round), total_energy_mj, link_energy_mj
    link_joules: Vector | None = None  # [N, N] price of each link, row receives; None where unknown
    budget: int | None = None  # B, links that the policy draws in a round; None if it does not use a budget
    learning_rate: float | None = None  # η of a bandit for which the regret bounds hold, else None
    horizon: int = 0  # K, number of rounds that η was chosen for
    trust: TrustHistory | None = None  # of a policy that learns whom to hear


class LastLinks(NamedTuple):
    """The links of the last round."""

    receiver: NDArray[np.intp]
    sender: NDArray[np.intp]
    delivered: NDArray[np.bool_]
    propensity: Vector
    joules: Vector | None  # None where no prices are known


def column(records: Iterable[Record], key: str) -> Vector:
    """Read one field of all records; nan where it is missing, None or not a number."""
    values = (record.get(key) for record in records)
    return np.array([np.nan if isinstance(value, _NO_NUMBER) else value for value in values], dtype=np.float64)


def rounds_played(run: RunData) -> Vector:  # [R]
    """Return the number of rounds completed after each round: 1 after the first, whatever its `t`."""
    t = column(run.rounds, "t")
    return t - t[:1] + 1


def server_accuracy(run: RunData) -> Vector:  # [N, R]
    """Return the accuracy of every server in every round, nan where none was reported."""
    position = {record["t"]: index for index, record in enumerate(run.rounds)}
    accuracy = np.full((run.num_servers, len(run.rounds)), np.nan)
    for record in run.servers:
        if record["t"] in position and record["accuracy"] is not None:
            accuracy[record["server"], position[record["t"]]] = record["accuracy"]
    return accuracy


def cumulative_joules(run: RunData) -> dict[str, Vector]:  # cause -> [R + 1]
    """Return the cumulative joules of each cause; the first entry is 0, before any round."""
    spent = joules_by_cause(run.rounds)
    return {cause: np.concatenate([[0.0], np.cumsum(joules)]) for cause, joules in spent.items()}


def joules_by_cause(rounds: Sequence[Record]) -> dict[str, Vector]:  # cause -> [R]
    """Return the joules of each round by cause; of those that the paper does not have, only what was spent on."""
    spent = {cause: np.nan_to_num(column(rounds, cause)) for cause in CAUSES}
    return {cause: joules for cause, joules in spent.items() if cause in PAPER_COLUMNS or joules.any()}


def total_joules(run: RunData) -> float:
    """Return the joules of a run over all causes and rounds."""
    return float(sum(joules[-1] for joules in cumulative_joules(run).values()))


def spent_on(run: RunData, cause: str) -> float:
    """Return the joules of a run that one cause took."""
    return float(np.nan_to_num(column(run.rounds, cause)).sum())


def last_links(run: RunData) -> LastLinks:
    """Return the links of the last round with their probabilities and prices."""
    t = run.rounds[-1]["t"]
    records = [link for link in run.links if link["t"] == t and link["receiver"] != link["sender"]]
    receiver, sender = (np.array([link[end] for link in records], dtype=np.intp) for end in ("receiver", "sender"))
    delivered = np.array([bool(link["delivered"]) for link in records], dtype=np.bool_)
    prices = None if run.link_joules is None else run.link_joules[receiver, sender]
    return LastLinks(receiver, sender, delivered, column(records, "propensity"), prices)


def finite(values: Vector) -> Vector:
    """Return the finite numbers among `values`."""
    return values[np.isfinite(values)]


def mean_and_sd(values: Vector) -> tuple[float, float]:
    """Return mean and sample standard deviation of the finite values; nan and 0 of none, sd 0 of one."""
    numbers = finite(values)
    return mean_and_deviation(numbers) if len(numbers) else (float("nan"), 0.0)


def limits(values: Vector, *, least: float) -> tuple[float, float]:
    """Return a range with a margin around the finite values, at least `least` wide; from 0 if there are none."""
    numbers = finite(values)
    if not len(numbers):
        return 0.0, least
    low, high = float(numbers.min()), float(numbers.max())
    room = max(0.07 * (high - low), (least - high + low) / 2)
    return low - room, high + room


def curve(runs: Sequence[RunData], key: str) -> tuple[Vector, Vector, Vector]:  # rounds, mean, sd; [R] each
    """Average a column over runs after each round; a run that stopped early counts up to its last round."""
    by_round: dict[float, list[float]] = {}
    for run in runs:
        for played, value in zip(rounds_played(run), column(run.rounds, key), strict=True):
            by_round.setdefault(played, []).append(value)
    rounds = np.array(sorted(by_round))
    mean, sd = np.array([mean_and_sd(np.array(by_round[played])) for played in rounds]).T
    return rounds, mean, sd


def link_use(run: RunData) -> Vector:  # [N, N]
    """Return the share of rounds in which each link was drawn; row receives."""
    count = np.zeros((run.num_servers, run.num_servers))
    receiver, sender = (np.array([link[end] for link in run.links], dtype=np.intp) for end in ("receiver", "sender"))
    np.add.at(count, (receiver, sender), 1)
    return count / len(run.rounds)


def pareto_front(points: Vector) -> list[int]:  # [M, 2] joules and percent
    """Find the Pareto front, from the cheapest point to the most expensive; equal points are on it together."""
    front: list[int] = []
    for index in np.lexsort((-points[:, 1], points[:, 0])):
        if not front or points[index, 1] > points[front[-1], 1] or (points[index] == points[front[-1]]).all():
            front.append(int(index))
    return front


def read_last_validation(run: RunData) -> float | None:
    """Mean validation accuracy in the last round that has one, percent."""
    known = finite(column(run.rounds, "avg_accuracy"))
    return float(known[-1]) if len(known) else None


def run_data(result: RunResult) -> RunData:
    """Collect what figures need of a run."""
    config, policy = result.config, _policy(result.config)
    return RunData(
        label=config.method,
        title=f"{config.method} on {config.dataset}, {config.servers} servers, seed {config.seed}",
        num_servers=config.servers,
        rounds=result.rounds,
        servers=result.servers,
        links=result.links,
        summary=result.summary,
        link_joules=result.link_joules,
        budget=config_budget(config) if policy is not None and policy.uses_budget else None,
        learning_rate=_learning_rate(config, policy),
        horizon=config.horizon or config.rounds,
        trust=result.trust,
    )


def _policy(config: Config) -> TopologyPolicy[Any] | None:
    """Build the policy; None if this process does not know it, because a script registered it only for itself."""
    try:
        return build_component("policy", config.policy, POLICIES)
    except ConfigError:
        return None


def _learning_rate(config: Config, policy: TopologyPolicy[Any] | None) -> float | None:
    """η of a run that the bound on regret is proved for (docs/theory.md, section 3); None of any other."""
    if type(policy) is not LinkBandit or policy.exploration > 0:
        return None
    if (policy.capping, policy.propensity) != ("redistribute", "before-rounding"):
        return None  # another estimate (D9, D12)
    if (config.utility.gain, config.utility.thrift) != ("receiver", "joules"):
        return None  # A1: the released code values links by whether they were drawn
    supply = config.supply
    may_be_away = config.churn > 0 or supply.battery_joules is not None or supply.availability_trace is not None
    if may_be_away or config.schedule != ScheduleConfig():
        return None  # A3: every round has the same links and draws as many of them
    if considered_links(config) is not None:
        return None  # its rivals change with the candidates
    if policy.learning_rate is not None:
        return policy.learning_rate
    return theorem_learning_rate(config.servers, config.horizon or config.rounds)
