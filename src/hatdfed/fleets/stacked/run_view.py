"""One run of a stacked fleet, as a fleet of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hatdfed.core.fleet import FinalAccuracy, Snapshot
from hatdfed.core.round import RoundPlan, RoundReport
from hatdfed.core.task import NEXT_TOKEN
from hatdfed.errors import RunFolderError
from hatdfed.fleets.kernels.vectors import compute_norms
from hatdfed.fleets.stacked.model import Samples
from hatdfed.fleets.stacked.rows import Rows
from hatdfed.server.learner import Learner
from hatdfed.server.measured_metrics import NO_METRICS, Figures, MetricSet
from hatdfed.server.program import check_frozen, frozen_arrays
from hatdfed.server.work import NOTHING, Answers, Batch, Indices, Measured

if TYPE_CHECKING:  # the fleet makes these views
    from hatdfed.fleets.stacked.fleet import StackedFleet

_OUTPUTS_AT_ONCE = 1 << 26  # numbers of a test set that are kept for metrics
SAMPLES_AT_ONCE = 1000  # of a test set: large sets are measured in parts that take no more memory than validation does


class RunView:
    """One run of a stacked fleet, as a fleet of its own; its snapshots have the names that mailboxes use."""

    def __init__(self, fleet: StackedFleet, run: int) -> None:
        self.fleet = fleet
        self.run = run
        self._last: tuple[RoundPlan, RoundReport] | None = None

    @property
    def num_servers(self) -> int:
        """N."""
        return len(self.fleet.rows.members[self.run].sources)

    @property
    def refused(self) -> Counter[str]:
        """Why models were refused, and how often."""
        return self.fleet.rows.refused[self.run]

    @property
    def num_params(self) -> int:
        """P: numbers of a model that are sent."""
        return self.fleet.rows.model.num_params

    @property
    def computed_by(self) -> dict[str, str]:
        """The device, and whose kernels."""
        rows = self.fleet.rows
        how = {"fleet": "stacked", "device": rows.how.device.type, "kernels": rows.model.kernels}
        return how if rows.model.reason is None else {**how, "because": rows.model.reason}

    @property
    def models(self) -> Tensor:
        """[N, M] as they are now."""
        return self.fleet.rows.params[self._rows].cpu().clone()

    def validation_accuracy(self) -> NDArray[np.float64]:
        """[N] on the run's validation data, before the first round."""
        accuracy, *_ = self.fleet.measure({self.run: 0}, exact=True)
        return accuracy[self._rows].cpu().numpy()

    def final_accuracy(self) -> FinalAccuracy:
        """On the test data, once, after the last round."""
        return self.fleet.rows.members[self.run].test.accuracy(self.answers())

    def answers(self) -> Answers:
        """What the servers make of the test data: those in common, and those of their own kind."""
        test = self.fleet.rows.members[self.run].test
        common = self._measure(test.data, self.fleet.rows.members[self.run].program.metrics)
        scores, measures = common.scores.cpu().numpy(), common.measures.cpu().numpy()
        confusion = None if common.confusion is None else common.confusion.cpu().numpy()
        if test.kind_of is None:
            return Answers(scores, measures, confusion=confusion, metrics=common.metrics)
        own = scores.copy()
        for kind, data in enumerate(test.kinds):
            of_kind = test.kind_of == kind
            own[of_kind] = self._measure(data).scores.cpu().numpy()[of_kind]
        return Answers(scores, measures, own, confusion, common.metrics)

    def _measure(self, data: Batch, metrics: MetricSet = NO_METRICS) -> Measured:
        """[N, n] scores of the samples, [N, measures] of the task on average, and [C, C] confusions of all servers.

        With `metrics`, the outputs of a server for all samples are kept until these are measured.
        """
        rows = self.fleet.rows
        samples = rows.model.samples(data)
        scores, measures, figures = [], [], list[Figures]()
        confusion: Tensor | None = None
        for part in rows.parts([self.run], _count_servers_at_once(rows, samples) if metrics.names else None):
            kept, found = [], []
            for x, y in _split_samples(samples):
                outputs = rows.compute_outputs(part, x[None])
                found.append(rows.measure(outputs, y[None]))
                kept += [outputs] if metrics.names else []
            if metrics.names:
                figures += rows.measure_metrics(part, torch.cat(kept, dim=1), samples.y[None])
            scores.append(torch.cat([each.scores for each in found], dim=1))
            measures.append(torch.cat([each.measures for each in found], dim=1).double().mean(dim=1))
            for each in found:
                if each.confusion is not None:
                    confusion = each.confusion if confusion is None else confusion + each.confusion
        return Measured(torch.cat(scores), torch.cat(measures), confusion, figures)

    def run_round(self, plan: RoundPlan) -> RoundReport:
        """Train, exchange, merge, measure; the same plan once more gives what it gave."""
        if self._last is None or self._last[0] is not plan:
            self._last = (plan, self.fleet.run_rounds({self.run: plan})[self.run])
        return self._last[1]

    def snapshot(self) -> Snapshot:
        """Models, optimisers, codec memories, masses and samples held of the run's servers."""
        rows, here = self.fleet.rows, self._rows
        models = rows.models(here)
        tensors = {"params": models.params, "first": models.first, "second": models.second}
        arrays: dict[str, NDArray[Any]] = {}
        on_host = {name: tensor.cpu().numpy() for name, tensor in tensors.items()}
        for i, (memory, mass) in enumerate(zip(rows.memories[here], rows.mass[here], strict=True)):
            arrays |= {f"{i}.{name}": np.array(tensor[i]) for name, tensor in on_host.items()}  # copies: rows change
            arrays[f"{i}.codec_memory"] = np.array(memory.cpu().numpy())
            arrays[f"{i}.scalars"] = np.array([models.steps[i], mass])
            if len(rows.held[here.start + i]):
                arrays[f"{i}.held"] = rows.held[here.start + i]
            arrays |= {f"{i}.{name}": array for name, array in frozen_arrays(self._learner).items()}
        return arrays

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to what `snapshot` remembers."""
        rows, first = self.fleet.rows, self._rows.start
        models = rows.models(self._rows)
        self._last = None
        for i in range(self.num_servers):
            check_frozen(snapshot.get(f"{i}.frozen"), self._learner)
            for name, tensor in (("params", models.params), ("first", models.first), ("second", models.second)):
                tensor[i] = _read_tensor(snapshot, f"{i}.{name}", [tuple(tensor[i].shape)], tensor.device)
            shapes = (tuple(rows.memories[first + i].shape), (self.num_params,))  # a codec may begin with an empty one
            rows.memories[first + i] = _read_tensor(snapshot, f"{i}.codec_memory", shapes, rows.how.device)
            rows.steps[first + i], rows.mass[first + i] = _read_tensor(snapshot, f"{i}.scalars", [(2,)]).tolist()
            rows.held[first + i] = _read_held(snapshot, f"{i}.held", len(rows.pool.y))
        rows.norms[self._rows] = compute_norms(rows.shared[self._rows]).double()

    def close(self) -> None:
        """Nothing to give back: the rows belong to all runs of the fleet."""

    @property
    def _learner(self) -> Learner:
        return self.fleet.rows.members[self.run].program.learner

    @property
    def _rows(self) -> slice:
        return self.fleet.rows.of_run(self.run)


def _count_servers_at_once(rows: Rows, samples: Samples) -> int:
    """Servers whose outputs for all samples are kept at once."""
    kind = rows.task.kind
    positions = samples.y[0].numel() if kind.name == NEXT_TOKEN else 1
    return max(1, min(rows.how.judged_at_once, _OUTPUTS_AT_ONCE // (len(samples.y) * positions * kind.num_outputs)))


def _split_samples(samples: Samples) -> Iterator[tuple[Tensor, Tensor]]:
    yield from zip(torch.split(samples.x, SAMPLES_AT_ONCE), torch.split(samples.y, SAMPLES_AT_ONCE), strict=True)


def _read_held(snapshot: Snapshot, name: str, num_samples: int) -> Indices:
    """The samples that a server holds; none in a snapshot of a server that keeps nothing."""
    held = snapshot.get(name, NOTHING)
    if held.dtype != np.int64 or held.ndim != 1 or not ((held >= 0) & (held < num_samples)).all():
        raise RunFolderError(
            f"The checkpoint does not fit this run ({name} names samples that it does not have). Start it again."
        )
    return np.array(held)


def _read_tensor(
    snapshot: Snapshot, name: str, shapes: Sequence[tuple[int, ...]], device: torch.device | str = "cpu"
) -> Tensor:
    """One array of a snapshot; a shape that only could be stretched to fit would be another model."""
    array = snapshot.get(name)
    if array is None or array.dtype.kind not in "fiu" or array.shape not in shapes:
        found = "not there" if array is None else f"{array.dtype} {list(array.shape)}"
        raise RunFolderError(
            f"The checkpoint does not fit this run ({name} is {found}, wanted {list(shapes[0])}). Start it again."
        )
    return torch.tensor(array, device=device)
