"""The data of one server in one round, and where they come from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hatdfed.core.effort import ServerEffort
from hatdfed.core.fleet import FinalAccuracy, measure_accuracy
from hatdfed.server.measured_metrics import Figures, join_figures
from hatdfed.server.tasks import Classification, Task

Indices = NDArray[np.int64]
NOTHING: Indices = np.zeros(0, dtype=np.int64)


class Batch(NamedTuple):
    """Samples and their targets, as networks and tasks take them."""

    x: Tensor  # [n, …]
    y: Tensor  # [n, …]


class Measured(NamedTuple):
    """What a model makes of each sample."""

    scores: Tensor  # [n] of the task, from 0 to 1
    measures: Tensor  # [n, measures] of the task
    confusion: Tensor | None = None  # [C, C] samples by class and by the class they are taken for; None: no classes
    metrics: Sequence[Figures] = ()  # of each server, those that the settings ask for


class Answers(NamedTuple):
    """What the models of N servers make of the test data."""

    scores: NDArray[Any]  # [N, n] of each sample of the data in common
    measures: NDArray[np.float64]  # [N, measures] of the task, means over these samples
    own: NDArray[Any] | None = None  # [N, n] scores on the data as each server sees them; None: all see the same
    confusion: NDArray[np.int64] | None = None  # [C, C] of all servers together; None: there are no classes
    metrics: Sequence[Figures] = ()  # [N] those that the settings ask for


def sum_confusion(counted: Sequence[Tensor]) -> NDArray[np.int64] | None:  # [C, C] each
    """The counts of several models together; None where there are none."""
    return torch.stack(list(counted)).sum(dim=0).cpu().numpy() if counted else None


class HeldOut(NamedTuple):
    """Test data, for after the last round, and what the data of each server consist of."""

    data: Batch  # that all servers have in common
    label_shares: NDArray[np.float64]  # [N, classes] of each server's own samples; [N, 0] where there are no classes
    kinds: tuple[Batch, ...] = ()  # the same samples as groups of servers see them, where they see them otherwise
    kind_of: NDArray[np.int64] | None = None  # [N] which of them is the server's own; −1: `data`; None: of all
    task: Task = Classification()

    def of_servers(self, first: int, last: int) -> HeldOut:
        """The test data of servers `first` to `last` − 1."""
        kind_of = None if self.kind_of is None else self.kind_of[first:last]
        return self._replace(label_shares=self.label_shares[first:last], kind_of=kind_of)

    def accuracy(self, answers: Answers) -> FinalAccuracy:
        """Accuracies of the answers: on the data in common, on those of each server's kind, and on its own labels.

        The personal accuracy is about the labels that a server has, so it is that of its own kind.
        """
        overall = answers.scores.mean(axis=1)
        metrics = {**self._summarise(answers.measures), **join_figures(answers.metrics)}
        if not self.label_shares.shape[1]:
            own = overall if answers.own is None else answers.own.mean(axis=1)
            return FinalAccuracy(overall, np.full(len(overall), np.nan), own, metrics=metrics)
        if answers.own is None or self.kind_of is None:
            found = measure_accuracy(answers.scores, self.data.y.numpy(), self.label_shares)
            return found._replace(metrics=metrics, confusion=answers.confusion)
        servers = range(len(overall))
        parts = [
            measure_accuracy(answers.own[i : i + 1], self.own_data(i).y.numpy(), self.label_shares[i : i + 1])
            for i in servers
        ]
        personal, own = (np.concatenate(list(each)) for each in zip(*((p.personal, p.own) for p in parts), strict=True))
        return FinalAccuracy(overall, personal, own, metrics=metrics, confusion=answers.confusion)

    def _summarise(self, measures: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:  # [N, measures]
        by_server = [self.task.summarise(means) for means in measures.tolist()]
        return {name: np.array([each[name] for each in by_server]) for name in self.task.metrics}

    def own_data(self, server: int) -> Batch:
        """The test data as a server sees them."""
        kind = -1 if self.kind_of is None else int(self.kind_of[server])
        return self.data if kind < 0 else self.kinds[kind]


class Work(NamedTuple):
    """The data of one server in one round. The test set is not part of it."""

    batches: Sequence[Batch]  # all passes over the round's data, in order
    num_samples: int  # |D_k|, trained on
    devices_online: int  # that sent data
    probe: Batch  # a few of the server's own samples, to evaluate received models on
    validation: Batch
    seed: int  # for dropout
    label_counts: Tensor | None = None  # [C] number of the server's samples of each class; None: unknown, or no classes
    spared: int = 0  # samples that it would have trained on as well, had it not been told to rest or to ask nobody
    sent: int | None = None  # samples that devices sent; None: those that it trains on
    held: Indices = NOTHING  # samples that it keeps for later rounds, the oldest first, where uploads are kept

    @property
    def volume(self) -> int:
        """Samples that count for the server's model in a merge: a model is worth no less after a round of rest."""
        return self.num_samples + self.spared

    @property
    def num_sent(self) -> int:
        """Samples that devices sent."""
        return self.num_samples if self.sent is None else self.sent


class LazyBatches(Sequence[Batch]):
    """Batches that are gathered on access, because all passes at once would need too much memory."""

    def __init__(self, take: Callable[[Indices], Batch], chosen: Sequence[Indices]) -> None:
        self._take = take
        self._chosen = chosen

    def __len__(self) -> int:
        return len(self._chosen)

    @overload
    def __getitem__(self, place: int) -> Batch: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Batch]: ...
    def __getitem__(self, place: int | slice) -> Batch | Sequence[Batch]:
        if isinstance(place, slice):
            return LazyBatches(self._take, self._chosen[place])
        return self._take(self._chosen[place])


class WorkPlan(NamedTuple):
    """The work of a round as indices into the pool of samples that many servers share."""

    batches: tuple[Indices, ...]
    num_samples: int
    devices_online: int
    probe: Indices
    seed: int
    spared: int = 0
    sent: int | None = None
    held: Indices = NOTHING

    @property
    def volume(self) -> int:
        """As of `Work`."""
        return self.num_samples + self.spared

    @property
    def num_sent(self) -> int:
        """As of `Work`."""
        return self.num_samples if self.sent is None else self.sent


class DataSource(Protocol):
    """Provides one server's work."""

    @property
    def validation(self) -> Batch:
        """Samples that accuracy is measured on before the first round."""

    def work(self, t: int, effort: ServerEffort | None = None, held: Indices = NOTHING) -> Work:
        """Return the server's work of round t: as much as `effort` says, or as the settings say.

        `held` is what the work of the round before says that the server holds.
        """


class PooledSource(DataSource, Protocol):
    """A source whose samples are in a shared pool, so that many servers' work can be gathered at once."""

    @property
    def pool(self) -> Batch:
        """All training samples, of all servers."""

    def validation_at(self, t: int) -> Batch:
        """Samples that accuracy is measured on in round t; the same tensors while they are."""

    def label_counts_at(self, t: int) -> Tensor:
        """[C] number of samples of each class that the server owns in round t; the same tensor while they are.

        C is 0 where the task has no classes.
        """

    @property
    def largest_batch(self) -> int:
        """Upper bound on the number of samples in a batch."""

    def plan(self, t: int, effort: ServerEffort | None = None, held: Indices = NOTHING) -> WorkPlan:
        """Return the server's work of round t, as indices into the pool."""
