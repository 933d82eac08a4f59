"""The simulated devices of one server, and the training data that they send in a round."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hatdfed.core.effort import ServerEffort
from hatdfed.core.round import is_present
from hatdfed.randomness import stream, torch_seed
from hatdfed.server.work import NOTHING, Batch, Indices, LazyBatches, Work, WorkPlan

_NO_LABELS = torch.zeros(0, dtype=torch.int64)


@dataclass(frozen=True)
class LocalWork:
    """How a server collects and trains on a round's data (D4, D15)."""

    num_devices: int = 30
    samples_per_round: int = 60
    online_probability: float = 0.5  # ρ
    local_passes: int = 2
    batch_size: int = 64
    probe_size: int = 16  # B
    probe_top_up: bool = False  # fill the probe with own images that no device sent
    holds_out_probe: bool = False  # choose the probe from images that are not trained on
    release_at: int | None = None  # round from which on these are trained on, too; None: never
    churn: float = 0.0  # probability that the server is absent; then no device can connect to it
    keeps_uploads: bool = False  # keep what devices sent, so that it need not be sent again
    memory_samples: int | None = None  # that are kept at most; None: all
    train_samples: int | None = None  # that are trained on, some of them from what is held; None: those of the round


class DataChange(NamedTuple):
    """Other images of a server from round `t` on, as many and in the same order, and others that it is measured on."""

    t: int
    shard: Indices
    validation: Batch
    held_out: Indices = NOTHING


@dataclass(frozen=True, eq=False)
class SimulatedDevices:
    """One server's data: a shard of the pool, of which the connected devices send a part in each round."""

    pool: Batch  # the training images of all servers
    shard: Indices  # those that this server owns
    validation: Batch
    num_classes: int  # of the data set: a class may have no sample at all; 0 where samples have no class
    settings: LocalWork
    seed: int
    server: int
    change: DataChange | None = None
    held_out: Indices = field(default_factory=NOTHING.copy)  # that it owns, too, for its probe or validation

    def validation_at(self, t: int) -> Batch:
        """Images that accuracy is measured on in round t; the same tensors while they are."""
        return self.validation if self.change is None or t < self.change.t else self.change.validation

    def label_counts_at(self, t: int) -> Tensor:
        """[C] number of samples of each class that the server trains on in round t; the same tensor while they are."""
        return self._label_counts[self._find_phase(t)]

    @cached_property
    def _label_counts(self) -> tuple[Tensor, ...]:
        if not self.num_classes:
            return (_NO_LABELS,) * 4
        labels = [self.pool.y[torch.from_numpy(images)] for images in self._training_images]
        return tuple(torch.bincount(each, minlength=self.num_classes) for each in labels)

    @cached_property
    def _training_images(self) -> tuple[Indices, ...]:
        """What it trains on before and after its data change, and before and after the change once all is released."""
        owners = (self, self.change or self)
        everything = tuple(np.concatenate([owner.shard, owner.held_out]) for owner in owners)
        return tuple(owner.shard for owner in owners) + everything

    def _find_phase(self, t: int) -> int:
        has_changed = self.change is not None and t >= self.change.t
        is_released = self.settings.release_at is not None and t >= self.settings.release_at
        return has_changed + 2 * is_released

    def _held_out_at(self, t: int) -> Indices:
        return self.held_out if self.change is None or t < self.change.t else self.change.held_out

    @property
    def largest_batch(self) -> int:
        """Size of the largest possible batch, when every device connects."""
        most = len(self.shard) + len(self.held_out)
        return min(self.settings.batch_size, self.settings.samples_per_round, most)

    def work(self, t: int, effort: ServerEffort | None = None, held: Indices = NOTHING) -> Work:
        """Collect the data of round t, in batches."""
        plan = self.plan(t, effort, held)
        return Work(
            batches=LazyBatches(self._take, plan.batches),
            num_samples=plan.num_samples,
            devices_online=plan.devices_online,
            probe=self._take(plan.probe),
            validation=self.validation_at(t),
            seed=plan.seed,
            label_counts=self.label_counts_at(t) if self.num_classes else None,
            spared=plan.spared,
            sent=plan.sent,
            held=plan.held,
        )

    def plan(self, t: int, effort: ServerEffort | None = None, held: Indices = NOTHING) -> WorkPlan:
        """Choose the round's images, as indices into the pool; a function of (seed, server, t) and the arguments."""
        passes, asks = effort or ServerEffort(self.settings.local_passes, asks=True)
        offered, devices_online = self._collect(t)
        usual = self._find_usual_samples(t, len(offered))
        at_hand = self._choose_samples(t, offered if asks else NOTHING, held, usual)
        trained = at_hand if passes else NOTHING
        new = self._find_new(offered, held) if asks else NOTHING
        return WorkPlan(
            batches=tuple(self._batches(t, trained, passes)),
            num_samples=len(trained),
            devices_online=devices_online if asks else 0,
            probe=self._choose_held_out(t) if self.settings.holds_out_probe else self._probe(t, at_hand),
            seed=torch_seed(self.seed, "dropout", t, self.server),
            spared=usual - len(trained),
            sent=len(new) if self.settings.keeps_uploads or not passes else None,
            held=self._keep(held, new),
        )

    def _collect(self, t: int) -> tuple[Indices, int]:
        """Split the round's samples over the devices; those that connect, A^d ~ Bern(ρ), have theirs to send."""
        rng = stream(self.seed, "devices", t, self.server)
        images = self._training_images[self._find_phase(t)]
        samples = images[rng.permutation(len(images))[: self.settings.samples_per_round]]
        online = rng.random(self.settings.num_devices) < self.settings.online_probability
        online &= is_present(self.seed, t, self.server, self.settings.churn)
        return samples[online[_assign_devices(len(samples), self.settings.num_devices)]], int(np.count_nonzero(online))

    def _find_new(self, offered: Indices, held: Indices) -> Indices:
        """What of the samples on offer is not held yet: all of them where nothing is, as in the paper."""
        return offered[~np.isin(offered, held)] if len(held) else offered

    def _find_usual_samples(self, t: int, num_offered: int) -> int:
        """How many samples are trained on in round t if the server trains and holds enough."""
        wanted, most = self.settings.train_samples, self.settings.samples_per_round
        if wanted is None or not is_present(self.seed, t, self.server, self.settings.churn):
            return num_offered
        return min(wanted, most, len(self._training_images[self._find_phase(t)]))

    def _choose_samples(self, t: int, sent: Indices, held: Indices, count: int) -> Indices:
        """Choose so many samples, if there are: those that devices send in this round, then others that are held."""
        if len(sent) == count:
            return sent
        rng = stream(self.seed, "held", t, self.server)
        if len(sent) > count:
            return rng.permutation(sent)[:count]
        others = held[~np.isin(held, sent)] if len(sent) else held
        return np.concatenate([sent, rng.permutation(others)[: count - len(sent)]])

    def _keep(self, held: Indices, new: Indices) -> Indices:
        """What is held after new samples came; the oldest are dropped first."""
        if not self.settings.keeps_uploads or not len(new):
            return held
        together, most = np.concatenate([held, new]), self.settings.memory_samples
        return together if most is None else together[-most:]

    def _batches(self, t: int, collected: Indices, passes: int) -> list[Indices]:
        rng = stream(self.seed, "batches", t, self.server)
        size = self.settings.batch_size
        batches: list[Indices] = []
        for _ in range(passes):
            order = rng.permutation(collected)
            batches += [order[start : start + size] for start in range(0, len(order), size)]
        return batches

    def _probe(self, t: int, collected: Indices) -> Indices:
        """Choose B of the round's samples, or of the server's own images when no device connected (D15)."""
        rng = stream(self.seed, "probe", t, self.server)
        probe = rng.permutation(collected)[: self.settings.probe_size]
        missing = self.settings.probe_size - len(probe)
        if len(collected) and not (self.settings.probe_top_up and missing):
            return probe
        owned = self._training_images[self._find_phase(t)][: len(self.shard)]
        unsent = owned[~np.isin(owned, collected)]
        return np.concatenate([probe, rng.permutation(unsent)[:missing]])

    def _choose_held_out(self, t: int) -> Indices:
        rng = stream(self.seed, "probe", t, self.server)
        return rng.permutation(self._held_out_at(t))[: self.settings.probe_size]

    def _take(self, chosen: Indices) -> Batch:
        index = torch.from_numpy(chosen)
        return Batch(self.pool.x[index], self.pool.y[index])


@lru_cache
def _assign_devices(num_samples: int, num_devices: int) -> Indices:
    """Assign each of the round's samples to a device: consecutive parts, as equal in size as possible."""
    return np.repeat(
        np.arange(num_devices), [len(part) for part in np.array_split(np.arange(num_samples), num_devices)]
    )
