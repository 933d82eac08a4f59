"""The coordinator's side: numpy only."""

from __future__ import annotations

from hatdfed.build.component import build_component
from hatdfed.config import Config
from hatdfed.coordinator import Coordinator
from hatdfed.energy.prices import EnergyPrices, draw_prices
from hatdfed.policies import POLICIES
from hatdfed.resolve import config_budget
from hatdfed.utility import LinkUtility


def make_coordinator(config: Config, prices: EnergyPrices) -> Coordinator:
    """The coordinator that `config` describes."""
    return Coordinator(
        policy=build_component("policy", config.policy, POLICIES),
        utility=LinkUtility(gain_share=config.gain_share, **config.utility.model_dump()),
        prices=prices,
        seed=config.seed,
        horizon=config.horizon or config.rounds,
        budget=config_budget(config),
    )


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
    )
