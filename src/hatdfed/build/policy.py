"""The coordinator's side: numpy only."""

from __future__ import annotations

from typing import cast

from hatdfed.build.component import build_component
from hatdfed.candidates import CandidateRule
from hatdfed.config import Config, ScheduleConfig
from hatdfed.coordinator import Coordinator
from hatdfed.energy.prices import EnergyPrices, draw_prices
from hatdfed.errors import ConfigError
from hatdfed.policies import POLICIES
from hatdfed.policies.base import AnyPolicy
from hatdfed.policies.scheduled import Scheduled
from hatdfed.resolve import config_budget, considered_links, finish_rounds
from hatdfed.utility import LinkUtility


def make_coordinator(
    config: Config, prices: EnergyPrices, *, message_share: float = 1.0, attempts: int = 1
) -> Coordinator:
    """The coordinator that `config` describes.

    A message takes `message_share` of a float32 model, and may be sent `attempts` times along a link in a round.
    """
    policy = _policy(config, message_share, attempts)
    return Coordinator(
        policy=policy,
        utility=LinkUtility(gain_share=config.gain_share, **config.utility.model_dump()),
        prices=prices,
        seed=config.seed,
        horizon=config.horizon or config.rounds,
        budget=config_budget(config),
        churn=config.churn,
        candidates=_candidates(config, policy),
    )


def _candidates(config: Config, policy: AnyPolicy) -> CandidateRule | None:
    considered = considered_links(config)
    if considered is None:
        return None
    if not getattr(policy, "takes_candidates", False):
        able = ", ".join(name for name, kind in POLICIES.built_in.items() if getattr(kind, "takes_candidates", False))
        raise ConfigError(
            f"candidates is {config.candidates}, but policy {config.policy.name!r} always looks at all links. "
            f"Use one of {able}, or leave candidates out."
        )
    return CandidateRule(considered, config.refresh_every)


def _policy(config: Config, message_share: float, attempts: int) -> AnyPolicy:
    policy: AnyPolicy = build_component("policy", config.policy, POLICIES)
    if config.schedule == ScheduleConfig():
        return policy
    schedule = config.schedule.model_dump() | {"finish_rounds": finish_rounds(config)}
    # Class variables of other policies are properties of this one, which is all the same to whoever reads them.
    return cast("AnyPolicy", Scheduled(policy, **schedule, message_share=message_share, attempts=attempts))


def make_prices(config: Config, *, bits_per_sample: int, num_params: int) -> EnergyPrices:
    """The prices of the world `config.seed`."""
    energy = config.energy
    return draw_prices(
        config.seed,
        config.servers,
        num_devices=config.devices,
        samples_per_device=min(config.samples_per_round, config.images_per_server) / config.devices,
        bits_per_sample=bits_per_sample,
        model_bits=32.0 * num_params if energy.model_bits == "actual" else energy.model_bits,
        weak_joules_per_sample=energy.weak_joules_per_sample,
        strong_joules_per_sample=energy.strong_joules_per_sample,
        device_kbit_per_joule=energy.device_kbit_per_joule,
        link_kbit_per_joule=energy.link_kbit_per_joule,
        with_table=considered_links(config) is None,
    )
