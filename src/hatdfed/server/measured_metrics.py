"""The metrics that a run's settings ask for, measured from a network's outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hatdfed.core.metrics import METRICS, compute_metric
from hatdfed.core.task import REGRESSION, TaskKind
from hatdfed.errors import OWN_THING, ConfigError, HatdfedError, require_one_of
from hatdfed.server.tasks import Classification, Task

Figures = Mapping[str, float | None]  # by the name of the metric; None: not defined


@dataclass(frozen=True)
class MetricSet:
    """Metrics of one run, registered ones and those of its task, by name."""

    names: tuple[str, ...] = ()
    task: Task = field(default_factory=Classification)
    on_failure: Callable[[str], None] | None = None  # is told of a metric that fails; None: it raises

    def __post_init__(self) -> None:
        for name in self.names:
            _refuse_unknown(name, self.task)

    def measure(self, outputs: Tensor, targets: Tensor) -> Figures:  # [n, …], [n, …]
        """Measure one server's model."""
        found: dict[str, float | None] = {}
        if not self.names:
            return found
        if any(name in self.task.metrics for name in self.names):
            found |= self.task.summarise(self.task.measure(outputs, targets).double().mean(dim=0).tolist())
        given, true = _to_arrays(self.task.kind, outputs, targets)
        # Copies: a function that changes its arguments must change nothing else.
        own = {name: self._compute(name, given.copy(), true.copy()) for name in self.names if name not in found}
        return {name: (found | own)[name] for name in self.names}

    def _compute(self, name: str, outputs: NDArray[np.float64], targets: NDArray[Any]) -> float | None:
        try:
            return compute_metric(name, outputs, targets)
        except HatdfedError as error:
            if self.on_failure is None:
                raise
            self.on_failure(str(error))
            return None


NO_METRICS = MetricSet()


class Evaluation(NamedTuple):
    """How good one server's model is."""

    accuracy: float  # mean score
    loss: float  # mean over samples
    metrics: Figures


def join_figures(by_server: Sequence[Figures]) -> dict[str, NDArray[np.float64]]:  # [N] each
    """The figures of N servers as arrays by metric, nan where they are not defined."""
    names = by_server[0] if by_server else ()
    return {name: np.array([each[name] for each in by_server], dtype=np.float64) for name in names}


def _refuse_unknown(name: str, task: Task) -> None:
    if name in task.metrics:
        if name in METRICS:
            raise ConfigError(
                f"Metric {name!r} is one that task {task.kind.name} has itself. Register yours under another name."
            )
        return
    require_one_of("metrics", name, [*METRICS, *task.metrics], OWN_THING)
    if name in METRICS.built_in and not task.kind.has_classes:
        raise ConfigError(
            f"Metric {name!r} is about class labels, and samples of {task.kind.name} have none. Take it off the "
            "setting `metrics`, or register one of your own."
        )


def _to_arrays(kind: TaskKind, outputs: Tensor, targets: Tensor) -> tuple[NDArray[np.float64], NDArray[Any]]:
    """Outputs and targets as metrics take them: on the host, and values of a regression in the units of the data."""
    given, true = outputs.double().cpu().numpy(), targets.cpu().numpy()
    if kind.name != REGRESSION:
        return given, true
    mean, std = np.array(kind.target_mean or (0.0,)), np.array(kind.target_std or (1.0,))
    return given * std + mean, true.reshape(given.shape) * std + mean
