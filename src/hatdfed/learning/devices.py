"""The simulated devices of one server: what they bring in a round, and what the server makes of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from hatdfed.learning.partition import Indices
from hatdfed.learning.work import Batch, Work
from hatdfed.randomness import stream, torch_seed


@dataclass(frozen=True)
class LocalWork:
    """How a server works on a round's data (D4, D15)."""

    num_devices: int = 30
    samples_per_round: int = 60
    online_probability: float = 0.5  # ρ
    local_passes: int = 2
    batch_size: int = 64
    probe_size: int = 16  # B
    probe_top_up: bool = False  # fill the probe with own images that no device sent


@dataclass(frozen=True, eq=False)
class SimulatedDevices:
    """One server's data: a shard, of which the connected devices bring a part each round."""

    shard: Batch  # all images the server owns
    validation: Batch
    settings: LocalWork
    seed: int
    server: int

    def work(self, t: int) -> Work:
        """The round's data, in batches; every part a function of (seed, server, t) alone."""
        collected, unsent, devices_online = self._collect(t)
        probe = self._probe(t, collected, unsent)
        return Work(
            batches=tuple(self._take(chosen) for chosen in self._batches(t, collected)),
            num_samples=len(collected),
            devices_online=devices_online,
            probe=self._take(probe),
            validation=self.validation,
            seed=torch_seed(self.seed, "dropout", t, self.server),
        )

    def _collect(self, t: int) -> tuple[Indices, Indices, int]:
        """Cut the round's samples into one part a device; the devices that connect, A^d ~ Bern(ρ), send theirs."""
        rng = stream(self.seed, "devices", t, self.server)
        samples = rng.permutation(len(self.shard.y))[: self.settings.samples_per_round]
        parts = np.array_split(samples, self.settings.num_devices)
        online = rng.random(self.settings.num_devices) < self.settings.online_probability
        sent = [part for part, is_online in zip(parts, online, strict=True) if is_online]
        collected = np.concatenate(sent) if sent else samples[:0]
        return collected, np.setdiff1d(np.arange(len(self.shard.y)), collected), int(online.sum())

    def _batches(self, t: int, collected: Indices) -> list[Indices]:
        rng = stream(self.seed, "batches", t, self.server)
        size = self.settings.batch_size
        batches: list[Indices] = []
        for _ in range(self.settings.local_passes):
            order = rng.permutation(collected)
            batches += [order[start : start + size] for start in range(0, len(order), size)]
        return batches

    def _probe(self, t: int, collected: Indices, unsent: Indices) -> Indices:
        """B of the round's samples; of the server's own images when no device came (D15)."""
        rng = stream(self.seed, "probe", t, self.server)
        probe = rng.permutation(collected)[: self.settings.probe_size]
        missing = self.settings.probe_size - len(probe)
        if len(collected) and not (self.settings.probe_top_up and missing):
            return probe
        return np.concatenate([probe, rng.permutation(unsent)[:missing]])

    def _take(self, chosen: Indices) -> Batch:
        index = torch.from_numpy(chosen)
        return Batch(self.shard.x[index], self.shard.y[index])
