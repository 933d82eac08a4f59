"""What a run brought: its records and figures, its models, and how it is shown.

Figures are above this package and models need torch, which a coordinator does without: both are imported when they are
asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.fleet import Snapshot
from hatdfed.runs.display import describe_run, format_table
from hatdfed.runs.records.database import Records
from hatdfed.runs.trust_history import TrustHistory
from hatdfed.setup.config import Config


@dataclass(frozen=True)
class RunResult:
    """The results of a run, as lists of plain records that a data frame takes as they are."""

    config: Config
    summary: dict[str, Any]
    rounds: Records
    servers: Sequence[dict[str, Any]]
    links: Sequence[dict[str, Any]]
    ledger: Sequence[dict[str, Any]]
    link_joules: (
        NDArray[np.float64] | None
    )  # [N, N] price of a whole model on every link; None where few are considered
    propensity: NDArray[np.float64] | None  # [N, N] probability of every link in the last round; None of large fleets
    folder: Path | None
    trust: TrustHistory | None = None  # None where the policy does not learn whom to hear
    last_models: Snapshot | None = field(default=None, compare=False)  # of a run without a folder

    def models(self, *, dataset: Any = None, data_dir: Path | str | None = None) -> list[Any]:
        """The model of each server after the last round, as modules (`torch.nn.Module`) in evaluation mode.

        They are read from the folder's checkpoint or, of a run without a folder, from memory. The data set says how
        samples look; data that were given as Python objects to another process are given again as `dataset`.
        """
        found: list[Any] = self._trained(dataset, data_dir).modules()
        return found

    def predict(
        self, x: Any, *, server: int = 0, dataset: Any = None, data_dir: Path | str | None = None
    ) -> NDArray[Any]:
        """What one server's model says about raw samples `x` [n, …], which are standardised as in training.

        Classes [n]; for regression values in the units of the data, for multi-label 0 and 1 [n, K], for sequences the
        next token at each position.
        """
        answers: NDArray[Any] = self._trained(dataset, data_dir).predict(x, server)
        return answers

    def _trained(self, dataset: Any, data_dir: Path | str | None) -> Any:
        where = None if data_dir is None else Path(data_dir)
        return import_module("hatdfed.runs.trained_models").load_trained(self, dataset, where)

    @property
    def plot(self) -> Any:
        """Plots of this run on any axes of matplotlib: a `hatdfed.report.plots.RunPlots`."""
        return import_module("hatdfed.report.plots").RunPlots(self)

    def __repr__(self) -> str:
        """One line."""
        return f"<RunResult: {describe_run(self.config, self.summary)}>"

    def _repr_html_(self) -> str:
        """A small table, for notebooks."""
        return format_table([self.summary], describe_run(self.config, self.summary))
