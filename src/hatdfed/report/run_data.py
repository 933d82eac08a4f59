"""From a run's result to what the figures draw."""

from __future__ import annotations

from typing import Any

from hatdfed.build.component import build_component
from hatdfed.config import Config, ScheduleConfig
from hatdfed.errors import ConfigError
from hatdfed.policies import POLICIES
from hatdfed.policies.base import TopologyPolicy
from hatdfed.policies.link_bandit import LinkBandit, theorem_learning_rate
from hatdfed.report import RunData
from hatdfed.resolve import config_budget, considered_links
from hatdfed.session import RunResult


def run_data(result: RunResult) -> RunData:
    """One run, ready to be drawn."""
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
    )


def _policy(config: Config) -> TopologyPolicy[Any] | None:
    """The policy, or None where this process does not know it: a script may have added it for itself alone."""
    try:
        return build_component("policy", config.policy, POLICIES)
    except ConfigError:
        return None


def _learning_rate(config: Config, policy: TopologyPolicy[Any] | None) -> float | None:
    """η, if the policy is the bandit with the capping and the estimate that its bound is proved for (D9, D12)."""
    if not isinstance(policy, LinkBandit) or (policy.capping, policy.propensity) != ("redistribute", "before-rounding"):
        return None
    if config.schedule != ScheduleConfig():
        return None  # the bound is about rounds that are all alike
    if considered_links(config) is not None:
        return None  # its rivals change with the candidates
    if policy.learning_rate is not None:
        return policy.learning_rate
    return theorem_learning_rate(config.servers, config.horizon or config.rounds)
