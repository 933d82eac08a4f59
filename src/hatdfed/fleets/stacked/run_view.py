"""One run of a stacked fleet, seen as a fleet of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hatdfed.core.fleet import Snapshot
from hatdfed.core.round import RoundPlan, RoundReport
from hatdfed.errors import RunFolderError
from hatdfed.fleets.stacked.fleet import StackedFleet
from hatdfed.fleets.stacked.learner import Images
from hatdfed.server.work import Batch

IMAGES_AT_ONCE = 1000


class RunView:
    """Run number `run`; what a mailbox fleet remembers, it remembers under the same names."""

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
    def kernels(self) -> str:
        """Who computes."""
        return self.fleet.rows.learner.network.kernels.name

    @property
    def num_params(self) -> int:
        """P."""
        return self.fleet.rows.learner.num_params

    @property
    def models(self) -> Tensor:
        """[N, P] as they are now."""
        return self.fleet.rows.params[self._rows].cpu().clone()

    def validation_accuracy(self) -> NDArray[np.float64]:
        """[N] on the run's validation data."""
        images = self.fleet.rows.validation[self.run]
        parts = self.fleet.rows.parts([self.run])
        correct = torch.cat(
            [self.fleet.rows.correct(part, images.x[None], images.y[None]).sum(dim=1) for part in parts]
        )
        return correct.cpu().numpy() / len(images.y)

    def correct(self, data: Batch) -> NDArray[np.bool_]:
        """[N, n] which samples each server answers rightly: of the test set, once, after the last round."""
        rows, images = self.fleet.rows, self.fleet.rows.images(data)
        pieces = [
            torch.cat([rows.correct(part, x[None], y[None]) for x, y in _pieces(images)], dim=1)
            for part in rows.parts([self.run])
        ]
        return torch.cat(pieces).cpu().numpy()

    def run_round(self, plan: RoundPlan) -> RoundReport:
        """Train, exchange, merge, measure; the same plan once more gives what it gave."""
        if self._last is None or self._last[0] is not plan:
            self._last = (plan, self.fleet.run_rounds({self.run: plan})[self.run])
        return self._last[1]

    def snapshot(self) -> Snapshot:
        """Models, optimisers, codec memories and masses of the run's servers."""
        rows, here = self.fleet.rows, self._rows
        models = rows.models(here)
        tensors = {"params": models.params, "first": models.first, "second": models.second}
        arrays: dict[str, NDArray[Any]] = {}
        on_host = {name: tensor.cpu().numpy() for name, tensor in tensors.items()}
        for i, (memory, mass) in enumerate(zip(rows.memories[here], rows.mass[here], strict=True)):
            arrays |= {f"{i}.{name}": np.array(tensor[i]) for name, tensor in on_host.items()}  # copies: rows change
            arrays[f"{i}.codec_memory"] = np.array(memory.cpu().numpy())
            arrays[f"{i}.scalars"] = np.array([models.steps[i], mass])
        return arrays

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to what `snapshot` remembers."""
        rows, first = self.fleet.rows, self._rows.start
        models = rows.models(self._rows)
        self._last = None
        for i in range(self.num_servers):
            for name, tensor in (("params", models.params), ("first", models.first), ("second", models.second)):
                tensor[i] = _remembered(snapshot, f"{i}.{name}", [tuple(tensor[i].shape)], tensor.device)
            shapes = (tuple(rows.memories[first + i].shape), (self.num_params,))  # a codec may begin with an empty one
            rows.memories[first + i] = _remembered(snapshot, f"{i}.codec_memory", shapes, rows.how.device)
            rows.steps[first + i], rows.mass[first + i] = _remembered(snapshot, f"{i}.scalars", [(2,)]).tolist()

    @property
    def _rows(self) -> slice:
        return self.fleet.rows.of_run(self.run)


def _pieces(images: Images) -> Iterator[tuple[Tensor, Tensor]]:
    """A large set in parts that take no more memory than validation does."""
    yield from zip(torch.split(images.x, IMAGES_AT_ONCE), torch.split(images.y, IMAGES_AT_ONCE), strict=True)


def _remembered(
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
