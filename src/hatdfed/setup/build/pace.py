"""How the servers of a simulation wait for each other: for everybody, until a deadline, or not at all. Numpy only."""

from __future__ import annotations

import numpy as np

from hatdfed.core.coordinator import Coordinator
from hatdfed.core.round import Presence
from hatdfed.core.timing.deadline import Deadline
from hatdfed.core.timing.machines import Seconds
from hatdfed.core.timing.own_pace import OwnPace
from hatdfed.core.timing.pace import Pace
from hatdfed.core.timing.round_time import RoundClock
from hatdfed.setup.build.coordinator import make_limits
from hatdfed.setup.config import Config


def make_pace(config: Config, coordinator: Coordinator) -> Pace | None:
    """The pace that `config` describes for the servers of `coordinator`; None where everybody is waited for."""
    clock, seconds = coordinator.clock, config.time.deadline_seconds
    if clock is None or not (config.time.asynchronous or seconds):
        return None
    if config.time.asynchronous:
        return OwnPace(_find_cycles(config, coordinator, clock))
    assert seconds is not None  # noqa: S101 (as the condition above has it)
    message_bits = coordinator.message_share * coordinator.prices.model_bits
    return Deadline(seconds, clock, coordinator.prices, message_bits)


def _find_cycles(config: Config, coordinator: Coordinator, clock: RoundClock) -> Seconds:  # -> [N]
    """How long each server takes for a usual round by itself: with the mean number of samples, devices and links."""
    prices, online, limits = coordinator.prices, config.device_online_probability, make_limits(config, 1.0)
    most = np.array([min(limits.most_samples(i), config.images_per_server) for i in range(prices.num_servers)])
    upload = np.array([prices.upload(0, i, prices.num_devices, samples).bits for i, samples in enumerate(most)])
    sent = _count_links(config, coordinator) * coordinator.message_share * prices.model_bits / prices.num_servers
    exchange = clock.machines.latency_seconds + sent / clock.machines.uplink_bits_per_second
    cycles: Seconds = online * (clock.find_upload(upload) + clock.find_compute(most, None)) + exchange
    return cycles


def _count_links(config: Config, coordinator: Coordinator) -> float:
    """Links of a usual round: the budget, or those of the first draw of a policy that has its own number."""
    links = coordinator.budget
    if not coordinator.policy.uses_budget:
        start = coordinator.start(np.zeros(config.servers))._replace(t=config.schedule.every - 1)
        reachable = np.ones(len(coordinator.context(start).links), dtype=bool)
        plan = coordinator.plan(start, Presence(np.ones(config.servers, dtype=bool), reachable))
        links = plan.draw.topology.num_links
    return links / config.schedule.every
