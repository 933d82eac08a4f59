"""The servers of many runs as rows of tensors: what a stacked fleet remembers from round to round."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hatdfed.core.delivery import SURE, Delivery
from hatdfed.core.energy.energy_model import EnergyPrices
from hatdfed.core.refusals import NOTHING_FINITE, OWN_NOT_FINITE
from hatdfed.fleets.stacked.model import ModelRows, Samples, StackedModel
from hatdfed.fleets.stacked.precision import torch_products
from hatdfed.fleets.stacked.step_timer import Load
from hatdfed.server.attacks import Liars
from hatdfed.server.codecs.base import Memory
from hatdfed.server.guard import compute_norms, is_usable
from hatdfed.server.harm import share_labels
from hatdfed.server.measured_metrics import Figures
from hatdfed.server.program import EdgeProgram
from hatdfed.server.tasks import count_confusion
from hatdfed.server.work import NOTHING, Batch, HeldOut, Indices, Measured, PooledSource, WorkPlan

_FULL_ENOUGH = 0.75  # of the rows of a table: copying them out and back costs more than what the others waste
ROW_ALIGNMENT = 64  # numbers; rows that start on a boundary are read faster


class RunServers(NamedTuple):
    """One run's servers."""

    program: EdgeProgram
    sources: Sequence[PooledSource]
    prices: EnergyPrices | None  # None of a shard, whose ledger is kept elsewhere
    initial_seeds: Sequence[int]
    test: HeldOut
    liars: Liars | None = None  # None: everybody is honest
    delivery: Delivery = SURE  # what may keep messages from arriving


def load_of(members: Sequence[RunServers]) -> Load:
    """What a step of all these runs has to do at most."""
    sources = [source for member in members for source in member.sources]
    return Load(len(sources), max(source.largest_batch for source in sources))


@dataclass(frozen=True)
class Execution:
    """How the work is done; nothing here changes what is computed, but for round-off."""

    device: torch.device
    rows_at_once: int  # servers in one tensor program while training
    judged_at_once: int = 512  # and while models are judged, which takes less memory
    exact: bool = True  # float32 everywhere; else a GPU uses TF32, and measures accuracies in half precision


@contextmanager
def matrix_products(how: Execution) -> Iterator[None]:
    """Torch's own products and convolutions on a GPU in TF32, unless all must be exact."""
    with torch_products(exact=how.exact or how.device.type != "cuda"):
        yield


class Rows:
    """Models, optimisers, push-sum masses and codec memories, numbered through all runs."""

    def __init__(self, members: Sequence[RunServers], execution: Execution, model: StackedModel) -> None:
        self.members = tuple(members)
        self.how = execution
        self.first: list[int] = np.cumsum([0, *(len(member.sources) for member in members)]).tolist()
        pool, learner = members[0].sources[0].pool, members[0].program.learner
        if any(source.pool is not pool for member in members for source in member.sources):
            raise ValueError("all runs of a stacked fleet must share one pool of samples")
        self.model = model
        self.task = members[0].program.task  # the same of all, like the data set
        self.pool = model.samples(pool)
        self.validation = ValidationSets(model.samples)
        self.sent_part = learner.sent
        blank = learner.optimiser.init(learner.num_trainable)
        self.params = self._initial_models()  # [S, M]
        self.first_moment, self.second_moment = self._blank(*blank.first.shape), self._blank(*blank.second.shape)
        self.steps = np.zeros(self.count, dtype=np.int64)
        self.training_loss = torch.full((self.count,), torch.nan, device=execution.device)  # [S] of the last training
        self._counted: list[Tensor] = []  # [S] label counts that the offsets were made from
        self._offsets = torch.zeros(0)
        self.mass = np.ones(self.count)
        self.memories: list[Memory] = [
            m.program.codec.init(learner.num_params).to(execution.device) for m in members for _ in m.sources
        ]
        self.held: list[Indices] = [NOTHING] * self.count  # [S] samples that each server keeps
        self.refused: list[Counter[str]] = [Counter() for _ in members]
        self.largest_norm = torch.tensor(
            [member.program.learner.largest_norm for member in members for _ in member.sources],
            device=execution.device,
        )  # [S] of a usable model, as it is sent
        self.largest_personal_norm = 0.0 if learner.sent.is_whole else learner.largest_personal_norm
        self.norms = compute_norms(self.shared).double()  # [S] of the models as they are
        self.diverged = ~self.usable  # [S] whether the last training led to a model that is not usable
        self._spare = self._blank(learner.num_kept)  # where merges go; it and `params` change places every round

    @property
    def count(self) -> int:
        """S, of all runs together."""
        return self.first[-1]

    @property
    def usable(self) -> Tensor:
        """[S] whose model is finite and bounded."""
        return is_usable(self.norms, self.largest_norm)

    @property
    def shared(self) -> Tensor:
        """[S, P] what is sent of the models, a view."""
        return self.sent_part.take(self.params)

    @property
    def merged(self) -> Tensor:
        """[S, M] to be filled with the next models."""
        return self._spare

    @property
    def merged_shared(self) -> Tensor:
        """[S, P] what is merged of them, a view."""
        return self.sent_part.take(self._spare)

    def complete(self, servers: Tensor, sent: Tensor) -> Tensor:  # [n], [n, P] -> [n, M]
        """Received models as these servers use them: with their own personal parts."""
        return sent if self.sent_part.is_whole else self.sent_part.put(self.params[servers], sent)

    def are_personal_parts_usable(self) -> Tensor:  # -> [S]
        """Whose personal part is finite and bounded."""
        return is_usable(self.sent_part.compute_personal_norms(self.params), self.largest_personal_norm)

    def offsets(self, times: Mapping[int, int]) -> Tensor:
        """[S, C] what each server's loss adds to its logits; made again where a server's data have changed."""
        counted = [
            source.label_counts_at(times.get(run, 0))
            for run, member in enumerate(self.members)
            for source in member.sources
        ]
        if [*map(id, counted)] != [*map(id, self._counted)]:
            losses = [member.program.loss for member in self.members for _ in member.sources]
            made = [loss.offset(counts) for loss, counts in zip(losses, counted, strict=True)]
            self._counted, self._offsets = counted, torch.stack(made).to(self.how.device)
        return self._offsets

    def label_shares(self, times: Mapping[int, int]) -> Tensor:
        """[S, C] of the data of each server, as they travel with its model."""
        self.offsets(times)  # counts the labels again where data have changed
        return share_labels(torch.stack(self._counted)).to(self.how.device)

    def validation_at(self, times: Mapping[int, int], servers: slice) -> list[Batch]:
        """What each of these servers is measured on."""
        runs = self.runs_of(servers)
        places = [
            server - self.first[run] for server, run in zip(range(servers.start, servers.stop), runs, strict=True)
        ]
        return [
            self.members[run].sources[place].validation_at(times[run]) for run, place in zip(runs, places, strict=True)
        ]

    def of_run(self, run: int) -> slice:
        """The rows of one run."""
        return slice(self.first[run], self.first[run + 1])

    def numbers_of(self, runs: Sequence[int]) -> NDArray[np.int64]:
        """The rows of several runs."""
        return np.concatenate([np.arange(self.first[run], self.first[run + 1]) for run in runs])

    def place_of(self, runs: Sequence[int]) -> slice | Tensor:
        """The rows of several runs, ascending, as an index: a range where no others lie between them."""
        if runs[-1] - runs[0] == len(runs) - 1:
            return slice(self.first[runs[0]], self.first[runs[-1] + 1])
        return self.tensor(self.numbers_of(runs))

    def runs_of(self, servers: slice) -> list[int]:
        """Which run each of these rows belongs to."""
        places = np.arange(servers.start, servers.stop)
        return [int(run) for run in np.searchsorted(self.first, places, side="right") - 1]

    def models(self, servers: slice) -> ModelRows:
        """Rows as they are now; views, not copies."""
        moments = (self.first_moment[servers], self.second_moment[servers])
        return ModelRows(self.params[servers], *moments, self.steps[servers])

    def fit(self, servers: slice, plans: Sequence[WorkPlan], scale: NDArray[np.float64], offsets: Tensor) -> None:
        """Train these servers; where many of them rest, the others are trained in a table of their own."""
        models = self.models(servers)
        busy = np.flatnonzero([len(plan.batches) > 0 for plan in plans])
        if len(busy) > _FULL_ENOUGH * len(plans):
            with torch.enable_grad():
                self.training_loss[servers] = self.model.fit(models, self.pool, plans, scale, offsets)
            return
        self.training_loss[servers] = torch.nan
        if not len(busy):
            return
        chosen = self.tensor(busy)
        params, first, second = (tensor[chosen] for tensor in models[:3])
        some = ModelRows(params, first, second, models.steps[busy])
        with torch.enable_grad():
            todo = [plans[place] for place in busy.tolist()]
            losses = self.model.fit(some, self.pool, todo, scale[busy], offsets[chosen])
        self.training_loss[servers.start + chosen] = losses
        for tensor, trained in zip(models[:3], some[:3], strict=True):
            tensor[chosen] = trained
        models.steps[busy] = some.steps

    def settle(self, run: int, setbacks: NDArray[np.bool_]) -> None:
        """Count the models of this run's servers that were not usable, and start optimisers anew where training did it.

        [4, N]: whose training diverged, who of them had a usable model to go back to, whose merge failed, and who of
        those has no usable model at all.
        """
        diverged, recovered, failed, nothing = setbacks
        if not (diverged.any() or failed.any()):
            return
        for row in self.first[run] + np.flatnonzero(diverged):
            self.first_moment[row], self.second_moment[row], self.steps[row] = 0.0, 0.0, 0
        own = int(np.count_nonzero(recovered) + np.count_nonzero(failed & ~nothing))
        self.refused[run] += Counter({OWN_NOT_FINITE: own, NOTHING_FINITE: int(np.count_nonzero(nothing))})

    def turn_over(self, runs: Iterable[int]) -> None:
        """What was merged becomes the models of these runs; the others keep theirs."""
        for run in set(range(len(self.members))) - set(runs):
            self._spare[self.of_run(run)] = self.params[self.of_run(run)]
        if not self.sent_part.is_whole:
            for personal in (slice(0, self.sent_part.start), slice(self.sent_part.stop, None)):
                self._spare[:, personal] = self.params[:, personal]
        self.params, self._spare = self._spare, self.params

    def parts(self, runs: Iterable[int], at_once: int | None = None) -> Iterator[slice]:
        """The servers of these runs, in ranges that are computed at once: as many as are judged, if not said."""
        at_once = at_once or self.how.judged_at_once
        joined: list[slice] = []
        for run in sorted(runs):
            servers = self.of_run(run)
            if joined and joined[-1].stop == servers.start:
                servers = slice(joined.pop().start, servers.stop)
            joined.append(servers)
        for servers in joined:
            for start in range(servers.start, servers.stop, at_once):
                yield slice(start, min(start + at_once, servers.stop))

    def neighbours(self, runs: Iterable[int]) -> Iterator[slice]:
        """These runs in ranges in which all have the same number of servers, so that their rows are one table."""
        numbered = enumerate(sorted(runs))
        for _, alike in groupby(numbered, lambda pair: (pair[1] - pair[0], len(self.members[pair[1]].sources))):
            those = [run for _, run in alike]
            yield slice(those[0], those[-1] + 1)

    def guests(self, count: int) -> Iterator[slice]:
        """The same for rows behind all servers, up to `count`."""
        for start in range(self.count, count, self.how.judged_at_once):
            yield slice(start, min(start + self.how.judged_at_once, count))

    def join(self, size: int, places: Sequence[slice], parts: Sequence[Tensor], fill: float) -> Tensor:  # -> [size]
        """A column in float64 from what is known of some places; `fill` elsewhere."""
        if list(places) == [slice(0, size)]:
            return parts[0].double()
        column = torch.full((size,), fill, dtype=torch.float64, device=self.how.device)
        for place, part in zip(places, parts, strict=True):
            column[place] = part
        return column

    def tensor(self, array: NDArray[Any]) -> Tensor:
        """On the device, without waiting for it."""
        return torch.from_numpy(array).to(self.how.device, non_blocking=True)

    @torch.no_grad()
    def evaluate(
        self, servers: slice, x: Tensor, y: Tensor, *, exact: bool = True
    ) -> tuple[Tensor, Tensor, list[Figures]]:
        """The score and the loss of each sample by each of these servers, and the metrics of each server.

        Every server has its own samples, or all have the same.
        [n or 1, samples, …], [n or 1, samples, …] -> [n, samples], [n, samples], [n]
        """
        logits = self.model.ready(self.params[servers]).logits(x, exact=exact)
        targets = _targets_of(logits, y)
        scores = _score(self.task.scores, logits, targets)
        return scores, _score(self.task.losses, logits.float(), targets), self.measure_metrics(servers, logits, y)

    def measure_metrics(self, servers: slice, outputs: Tensor, y: Tensor) -> list[Figures]:  # -> [n]
        """Those that the settings of each server's run ask for; every server has its own samples, or all the same."""
        wanted = [self.members[run].program.metrics for run in self.runs_of(servers)]
        if not any(each.names for each in wanted):
            return [{}] * len(wanted)
        targets = y.expand(len(wanted), *y.shape[1:])
        return [each.measure(*pair) for each, *pair in zip(wanted, outputs, targets, strict=True)]

    @torch.no_grad()
    def compute_outputs(self, servers: slice, x: Tensor) -> Tensor:  # -> [n, samples, …]
        """What the models of these servers give out."""
        return self.model.ready(self.params[servers]).logits(x)

    @torch.no_grad()
    def measure(self, logits: Tensor, y: Tensor) -> Measured:
        """Scores with the task's measures, [n, samples, measures], and confusions of all these servers together."""
        targets = _targets_of(logits, y)
        confusion = count_confusion(self.task.kind, logits.flatten(0, 1), targets)
        scores, measures = (_score(each, logits, targets) for each in (self.task.scores, self.task.measure))
        return Measured(scores, measures, confusion)

    def _initial_models(self) -> Tensor:
        """Each drawn once, however many runs start from it."""
        learner = self.members[0].program.learner
        seeds = [seed for member in self.members for seed in member.initial_seeds]
        params = self._blank(learner.num_kept)
        place: dict[int, int] = {}
        for row, seed in enumerate(seeds):
            params[row] = params[place[seed]] if seed in place else learner.init(seed).to(params.device)
            place.setdefault(seed, row)
        return params

    def _blank(self, *shape: int) -> Tensor:  # -> [S, *shape]
        width = math.prod(shape)
        aligned = -(-width // ROW_ALIGNMENT) * ROW_ALIGNMENT
        return torch.unflatten(torch.zeros(self.count, aligned, device=self.how.device)[:, :width], 1, shape)


def _targets_of(logits: Tensor, y: Tensor) -> Tensor:  # [n, samples, …], [n or 1, samples, …] -> [n · samples, …]
    """The targets of all servers, one server after another."""
    return y.expand(*logits.shape[:2], *y.shape[2:]).flatten(0, 1)


def _score(function: Callable[[Tensor, Tensor], Tensor], logits: Tensor, targets: Tensor) -> Tensor:
    """Apply a function of samples to [n, samples, …]."""
    found = function(logits.flatten(0, 1), targets)
    return found.view(*logits.shape[:2], *found.shape[1:])


class ValidationSets:
    """Images that servers are measured on, on the device; servers that share a set have one copy."""

    def __init__(self, make: Callable[[Batch], Samples]) -> None:
        self._make = make
        self._made: dict[int, tuple[Batch, Samples]] = {}  # with the batch itself: its address is the key
        self._stacks: dict[tuple[int, ...], Samples] = {}  # the same few parts come again in every round

    @property
    def most_images(self) -> int:
        """In the largest set so far."""
        return max((len(batch.y) for batch, _ in self._made.values()), default=1)

    def samples(self, batch: Batch) -> Samples:
        """One set."""
        key = id(batch.x)
        if key not in self._made:
            self._made[key] = (batch, self._make(batch))
        return self._made[key][1]

    def stacked(self, batches: Sequence[Batch]) -> Samples:
        """[sets or 1, images, …] of equally many images: one set where all of them share it."""
        distinct = batches[:1] if all(batch.x is batches[0].x for batch in batches) else batches
        key = tuple(id(batch.x) for batch in distinct)
        if key not in self._stacks:
            sets = [self.samples(batch) for batch in distinct]
            self._stacks[key] = Samples(*(torch.stack(parts) for parts in zip(*sets, strict=True)))
        return self._stacks[key]
