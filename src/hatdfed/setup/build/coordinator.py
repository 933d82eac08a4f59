"""The coordinator's side: numpy only."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar, cast

import numpy as np
from pydantic import TypeAdapter, ValidationError

from hatdfed.core.candidates import CandidateRule
from hatdfed.core.coordinator import Coordinator
from hatdfed.core.energy.energy_model import EnergyPrices, draw_prices
from hatdfed.core.energy.price_drift import PriceDrift
from hatdfed.core.own_policy import OwnPolicy, OwnTopologyPolicy
from hatdfed.core.policies import POLICIES
from hatdfed.core.policies.base import AnyPolicy
from hatdfed.core.policies.scheduled import Scheduled
from hatdfed.core.report_check import ReportLimits
from hatdfed.core.round import WorkDone
from hatdfed.core.run_budget import RunBudget
from hatdfed.core.timing.machines import Machines
from hatdfed.core.timing.round_time import RoundClock
from hatdfed.core.training import TRAINING
from hatdfed.core.training.base import AnyTraining
from hatdfed.core.utility import LinkUtility
from hatdfed.data.members import draw_amounts, share_work
from hatdfed.errors import OWN_THING, ConfigError, require_one_of
from hatdfed.setup.build.machines import price_profiles, read_rates
from hatdfed.setup.build.supply import make_supply
from hatdfed.setup.component_names import refuse_own_setting
from hatdfed.setup.config import Component, Config, ScheduleConfig
from hatdfed.setup.layers import config_budget, config_members, considered_links, finish_rounds

_LARGEST_INTEGER = 10**15  # of a component's setting: far from what numpy and torch count in


def make_coordinator(
    config: Config,
    prices: EnergyPrices,
    *,
    machines: Machines | None = None,
    message_share: float = 1.0,
    attempts: int = 1,
) -> Coordinator:
    """The coordinator that `config` describes.

    A message takes `message_share` of a float32 model, and may be sent `attempts` times along a link in a round.
    Without `machines` nobody knows how long a round takes.
    """
    sent_share = prices.with_overhead(message_share)
    policy = _policy(config, sent_share, attempts)
    return Coordinator(
        policy=policy,
        utility=LinkUtility(gain_share=config.gain_share, **config.utility.model_dump()),
        prices=prices,
        seed=config.seed,
        horizon=config.horizon or config.rounds,
        budget=config_budget(config),
        churn=config.churn,
        candidates=_candidates(config, policy),
        message_share=sent_share,
        limits=make_limits(config, attempts * message_share),
        training=_make_training(config),
        passes=config.local_passes,
        usual_work=_find_usual_work(config),
        run_budget=_make_run_budget(config, sent_share, attempts),
        supply=make_supply(config),
        clock=None if machines is None else RoundClock(machines, config.local_passes, read_rates(config)),
    )


def _make_training(config: Config) -> AnyTraining | None:
    """None where everybody trains in every round, so that a fleet can prepare the next one."""
    if config.training == Config().training and config.budget_joules is None:
        return None
    training: AnyTraining = build_component("training", config.training, TRAINING)
    if config.training.name not in TRAINING.built_in:
        training = cast("AnyTraining", OwnPolicy(training, f"training {config.training.name!r}"))
    if config.uploads.keep == "none" and getattr(training, "ask_every", 1) > 1:
        raise ConfigError(
            f"training.ask_every is {getattr(training, 'ask_every', 1)}, but servers keep nothing that they could "
            "train on. Set uploads.keep to samples."
        )
    if getattr(training, "needs_battery", False) and config.supply.battery_joules is None:
        raise ConfigError(
            f"training.name is {config.training.name}, but servers have no battery. Set supply.battery_joules."
        )
    if config.privacy.clip is not None and getattr(training, "looks_at_data", False):
        raise ConfigError(
            f"training {config.training.name!r} decides by accuracies, so that data have a say in who trains, and ε "
            "does not cover that. Use another training policy, or leave privacy.clip out."
        )
    most = training.find_most_passes(config.local_passes)
    if config.privacy.clip is not None and most > config.local_passes:
        raise ConfigError(
            f"training {config.training.name!r} makes up to {most} passes, but ε is computed for local_passes, which "
            f"is {config.local_passes}. Set local_passes to {most}."
        )
    return training


def _find_usual_work(config: Config) -> WorkDone:
    """What a server does in a round on average."""
    sent = round(config.device_online_probability * min(config.samples_per_round, config.images_per_server))
    trained = sent if config.uploads.train_samples is None else config.uploads.train_samples
    return WorkDone(trained, round(config.device_online_probability * config.devices), sent)


def _make_run_budget(config: Config, message_share: float, attempts: int) -> RunBudget | None:
    if config.budget_joules is None:
        return None
    return RunBudget(config.budget_joules, finish_rounds(config), message_share, attempts)


def make_limits(config: Config, sent_share: float) -> ReportLimits:
    """What a report may say; `sent_share` is the most that is sent along a link, of a float32 model."""
    most = config.samples_per_round
    amounts: list[int] = []
    if config.world.amount_ratio > 1:
        amounts = draw_amounts(config.seed, config.servers, config.images_per_server, config.world.amount_ratio)
    return ReportLimits(
        samples=most,
        samples_of=tuple(share_work(most, owned, config.images_per_server) for owned in amounts),
        devices=config.devices,
        probe=config.probe_size,
        sent_share=1.001 * sent_share,  # shares are sums of many parts
        keeps_uploads=config.uploads.keep != "none",
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
    policy: AnyPolicy = build_component("policy", config.policy, POLICIES, **_true_groups(config))
    if config.policy.name not in POLICIES.built_in:
        policy = cast("AnyPolicy", OwnTopologyPolicy(policy, f"policy {config.policy.name!r}"))
    if config.schedule == ScheduleConfig() and config.budget_joules is None:
        return policy
    schedule = config.schedule.model_dump() | {"finish_rounds": finish_rounds(config)}
    # Class variables of other policies are properties of this one, which is all the same to whoever reads them.
    return cast("AnyPolicy", Scheduled(policy, **schedule, message_share=message_share, attempts=attempts))


def _true_groups(config: Config) -> dict[str, Any]:
    """Who belongs together in the simulated world; those who lie or have bad data are alone. For an upper bound."""
    members = config_members(config)
    alone = config.world.groups + np.arange(config.servers)
    before, after = (np.where(members.is_sound, group, alone) for group in (members.group, members.last_group))
    return {"group": tuple(before.tolist()), "last_group": tuple(after.tolist()), "change_at": config.world.change_at}


def make_prices(
    config: Config, *, bits_per_sample: int, num_params: int, forward_flops: float | None = None
) -> EnergyPrices:
    """The prices of the world `config.seed`; `forward_flops` are those of a sample, for machines with profiles."""
    energy = config.energy
    prices = draw_prices(
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
        charge_samples=config.split != "labels" or config.world.amount_ratio > 1 or config.uploads.keep != "none",
        drift=_make_drift(config),
        overhead_bits=energy.overhead_bits,
        local_passes=config.local_passes if energy.training_per == "pass" else None,
        with_table=considered_links(config) is None,
    )
    priced = _with_own_prices(config, price_profiles(config, prices, forward_flops))
    return dataclasses.replace(priced, counts_measured=energy.source == "measured")


def _with_own_prices(config: Config, prices: EnergyPrices) -> EnergyPrices:
    """The price list with what the user knows about links and training."""
    links, training = config.energy.link_joules, config.energy.training_joules
    if links is not None:
        joules = np.array(links, dtype=np.float64)
        np.fill_diagonal(joules, 0.0)
        per_bit = joules / (prices.model_bits + prices.overhead_bits)
        prices = dataclasses.replace(prices, link_joules_per_bit=per_bit)
    if training is not None:
        prices = dataclasses.replace(prices, compute_joules=np.array(training, dtype=np.float64))
    return prices


def _make_drift(config: Config) -> PriceDrift | None:
    most = config.world.price_drift
    return PriceDrift(config.seed, most, config.horizon or config.rounds) if most > 1 else None


T = TypeVar("T")


def build_component(
    key: str, component: Component, known: Mapping[str, type[T]], *, settings_key: str | None = None, **given: Any
) -> T:
    """The component called for, with the user's settings and those of `given` that it has a field for.

    `settings_key` is where its settings are, if not beside its name.
    """
    require_one_of(key if settings_key else f"{key}.name", component.name, known, OWN_THING)
    maker = known[component.name]
    fields = {field.name for field in dataclasses.fields(maker)}  # type: ignore[arg-type]
    refuse_own_setting(key, component.name, component.settings, fields - set(given))
    for name in component.settings:
        if (number := component.settings[name]) and isinstance(number, int) and abs(number) > _LARGEST_INTEGER:
            raise ConfigError(f"{settings_key or key}.{name} is {number}, but must lie within ±{_LARGEST_INTEGER}.")
    settings = {**{name: value for name, value in given.items() if name in fields}, **component.settings}
    try:
        built: T = TypeAdapter(maker).validate_python(settings)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join([settings_key or key, *(str(part) for part in first["loc"][:1])])
        raise ConfigError(f"{place} is {first['input']!r}: {first['msg'].lower()}.") from None
    return built
