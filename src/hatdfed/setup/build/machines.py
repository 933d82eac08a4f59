"""The machines of a world: those that profiles describe, or the weak and strong ones of the paper. Numpy only."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hatdfed.core.energy.energy_model import EnergyPrices, Source
from hatdfed.core.timing.machines import Machines, RateTraces, draw_is_weak
from hatdfed.core.traces import Trace
from hatdfed.data.traces.files import read_trace
from hatdfed.errors import ConfigError
from hatdfed.randomness import stream
from hatdfed.setup.config import Config
from hatdfed.setup.machine_profiles import MachineProfile, shipped_profiles

_BITS = 1e6  # of a megabit
_LOWEST_RATE = 1e-9  # Mbit/s, as of the settings without a trace: nothing takes for ever


def find_profiles(config: Config, num_servers: int) -> list[MachineProfile]:
    """Each server's profile; an empty list where the machines are those of the paper."""
    given, shipped = config.machines.profiles, shipped_profiles()
    known = [each if isinstance(each, MachineProfile) else shipped[each] for each in given]
    if not known:
        return []
    if config.machines.assignment == "in-turn":
        return [known[server % len(known)] for server in range(num_servers)]
    chosen = [stream(config.seed, "machine-profile", server).integers(len(known)) for server in range(num_servers)]
    return [known[place] for place in chosen]


def make_machines(config: Config, num_servers: int, forward_flops: float | None) -> Machines:
    """The speeds of `num_servers` machines; `forward_flops` of the network are needed where they have profiles."""
    if profiles := find_profiles(config, num_servers):
        flops = _need(forward_flops)
        return Machines(
            sample_seconds=np.array([each.find_sample_seconds(flops) for each in profiles]),
            upload_bits_per_second=_BITS * np.array([each.upload_mbit_per_second.value for each in profiles]),
            uplink_bits_per_second=_BITS * np.array([each.uplink_mbit_per_second.value for each in profiles]),
            latency_seconds=np.array([each.latency_seconds.value for each in profiles]),
        )
    time, is_weak = config.time, draw_is_weak(config.seed, num_servers, min(config.servers, num_servers))
    return Machines(
        sample_seconds=np.where(is_weak, time.weak_seconds_per_sample, time.strong_seconds_per_sample),
        upload_bits_per_second=np.full(num_servers, _BITS * time.upload_mbit_per_second),
        uplink_bits_per_second=np.full(num_servers, _BITS * time.uplink_mbit_per_second),
        latency_seconds=np.full(num_servers, time.latency_seconds),
    )


def read_rates(config: Config) -> RateTraces | None:
    """The rates over time that `config` names; None where they do not change."""
    if config.time.upload_trace is None and config.time.uplink_trace is None:
        return None
    return RateTraces(_read_rate(config, "upload_trace"), _read_rate(config, "uplink_trace"))


def _read_rate(config: Config, key: str) -> Trace | None:
    if (named := getattr(config.time, key)) is None:
        return None
    rate = read_trace(f"time.{key}", named, config.servers, lowest=_LOWEST_RATE)
    return replace(rate, values=_BITS * rate.values)


def price_profiles(config: Config, prices: EnergyPrices, forward_flops: float | None) -> EnergyPrices:
    """The price list with the training joules of the servers' profiles, if they have some.

    Where the list charges a sample once, however many passes are made over it (D6), its price is that of all passes.
    """
    profiles = find_profiles(config, prices.num_servers)
    if not profiles:
        return prices
    flops, passes = _need(forward_flops), config.local_passes if prices.local_passes is None else 1
    joules = [passes * each.find_sample_joules(flops) for each in profiles]
    source = Source.CALIBRATED if config.energy.source == "calibrated" else Source.MODELLED
    return replace(prices, compute_joules=np.array(joules), training_source=source)


def _need(forward_flops: float | None) -> float:
    if forward_flops is None:
        raise ConfigError("machines.profiles is set, but nobody has counted the FLOPs of the network.")
    return forward_flops
