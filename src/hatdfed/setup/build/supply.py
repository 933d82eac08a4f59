"""The energy of simulated servers over time: batteries, traces, and what the ledger has besides the paper's causes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.energy.supply import Batteries, Supply
from hatdfed.core.energy.upkeep import Upkeep
from hatdfed.core.traces import Trace
from hatdfed.data.traces.files import read_trace
from hatdfed.setup.config import Config, SupplyConfig

Values = NDArray[np.float64]
_ANY_PRICE = -1e15  # tariffs may be negative


def make_supply(config: Config) -> Supply | None:
    """What `config` says; None where energy comes from the mains and costs no more than in the paper."""
    supply, upkeep = config.supply, _make_upkeep(config)
    if upkeep is None and supply == SupplyConfig(round_seconds=supply.round_seconds):
        return None
    return Supply(
        round_seconds=None if supply.round_seconds == "simulated" else supply.round_seconds,
        batteries=None if supply.battery_joules is None else _make_batteries(supply, config.servers),
        availability=_read(config, "availability_trace"),
        carbon=_read(config, "carbon_trace"),
        tariff=_read(config, "tariff_trace", lowest=_ANY_PRICE),
        upkeep=upkeep,
    )


def _make_batteries(supply: SupplyConfig, num_servers: int) -> Batteries:
    if supply.battery_joules is None:
        raise ValueError("servers on mains have no batteries")
    given = supply.battery_joules if isinstance(supply.battery_joules, tuple) else [supply.battery_joules]
    capacity = _spread([math.inf if each is None else each for each in given], num_servers)
    if supply.harvest_trace is None:
        harvest = Trace(np.zeros(1), _spread(supply.harvest_watts, num_servers)[None])
    else:
        harvest = read_trace("supply.harvest_trace", supply.harvest_trace, num_servers)
    first = np.where(np.isinf(capacity), math.inf, supply.first_charge * np.nan_to_num(capacity))
    return Batteries(capacity, first, _spread(supply.reserve_joules, num_servers), harvest)


def _make_upkeep(config: Config) -> Upkeep | None:
    energy = config.energy
    upkeep = Upkeep(energy.probe_joules, energy.merge_joules, _spread(energy.idle_watts, config.servers))
    return upkeep if upkeep.probe_joules or upkeep.merge_joules or upkeep.idle_watts.any() else None


def _read(config: Config, key: str, *, lowest: float = 0.0) -> Trace | None:
    named = getattr(config.supply, key)
    return None if named is None else read_trace(f"supply.{key}", named, config.servers, lowest=lowest)


def _spread(values: float | Sequence[float], num_servers: int) -> Values:  # -> [N]
    """One number for each server, from one for all or one for each."""
    return np.broadcast_to(np.array(values, dtype=np.float64), num_servers).copy()
