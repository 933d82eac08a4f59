"""The experiments, one module each: RQ1 to RQ5 of the paper, what stands behind them, and what goes beyond.

A module has its plan, its tables, its figures and its verdicts. A new experiment is a module here and a line below.
"""

from __future__ import annotations

from hatdfed.errors import ConfigError, did_you_mean
from hatdfed_paper.experiment import PAPER, Experiment
from hatdfed_paper.experiments import (
    ablation,
    attribution,
    calibration,
    equal_footing,
    fresh_seeds,
    frontier,
    plus,
    plus_ablation,
    plus_regimes,
    plus_search,
    readings,
    released,
    scalability,
    sensitivity,
    skip_train,
    sparsity,
    table1,
    training_effort,
    trust,
    tuned_rivals,
)

_ALL = (
    table1.EXPERIMENT,
    sparsity.EXPERIMENT,
    scalability.EXPERIMENT,
    sensitivity.EXPERIMENT,
    ablation.EXPERIMENT,
    calibration.EXPERIMENT,
    readings.EXPERIMENT,
    released.EXPERIMENT,
    *plus_search.EXPERIMENTS,
    *plus.EXPERIMENTS,
    *equal_footing.EXPERIMENTS,
    plus_regimes.EXPERIMENT,
    plus_ablation.EXPERIMENT,
    frontier.EXPERIMENT,
    fresh_seeds.EXPERIMENT,
    *tuned_rivals.EXPERIMENTS,
    attribution.EXPERIMENT,
    training_effort.EXPERIMENT,
    skip_train.EXPERIMENT,
    trust.EXPERIMENT,
)
EXPERIMENTS: dict[str, Experiment] = {experiment.name: experiment for experiment in _ALL}
THE_PAPER = tuple(experiment.name for experiment in _ALL if experiment.group == PAPER)


def experiment_named(name: str) -> Experiment:
    """The experiment called `name`."""
    if name not in EXPERIMENTS:
        raise ConfigError(f"There is no experiment called {name!r}. {did_you_mean(name, EXPERIMENTS)}")
    return EXPERIMENTS[name]
