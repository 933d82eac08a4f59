"""Which trials of a search are stopped early: by the median rule, or by successive halving.

Trials are measured after given rounds, by validation figures, and compared with all trials that have been measured
after the same round. Two rules say who is clearly worse:

- median: below the median accuracy of all (Optuna's `MedianPruner`; Golovin et al., "Google Vizier", KDD 2017),
- halving: not among the best 1 / factor of all (Li et al., "A system for massively parallel hyperparameter tuning",
  MLSys 2020, without its asynchronous promotions).

Where more than accuracy is sought, a trial is stopped only if another one is as good at everything and better at
something: what may belong to the Pareto front goes on.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from statistics import median
from typing import NamedTuple

from hatdfed.errors import ConfigError
from hatdfed.sweeps.file import Pruner

_FACTOR = 2.0  # of halving, unless it is given
_LEAST_ROUNDS = 4  # for a quarter and a half of them


class Measured(NamedTuple):
    """What a trial had come to after a round, as means over its seeds."""

    trial: int
    world: str  # only trials of one world are compared
    accuracy: float  # in percent, of validation data
    values: tuple[float, ...]  # of every objective, of which more is better


def find_rounds(pruner: Pruner, rounds: int) -> list[int]:
    """The rounds after which trials are judged: those given, or a quarter and a half of all.

    >>> find_rounds(Pruner(name="median"), 40)
    [10, 20]
    """
    if pruner.rounds is None:
        if rounds < _LEAST_ROUNDS:
            raise ConfigError(
                f"search.pruner judges trials after a quarter of their rounds, but runs have only {rounds}. Use "
                f"{_LEAST_ROUNDS} rounds or more, give search.pruner.rounds, or leave the pruner out."
            )
        return [rounds // 4, rounds // 2]
    late = [t for t in pruner.rounds if t >= rounds]
    if late:
        raise ConfigError(
            f"search.pruner.rounds has {late[0]}, but runs have {rounds} rounds, and a trial can only be stopped "
            "before its last. Use smaller numbers."
        )
    return sorted(set(pruner.rounds))


def find_losers(pruner: Pruner, measured: Collection[Measured]) -> set[int]:
    """The trials that are clearly worse than others, of all that were measured after the same round."""
    losers: set[int] = set()
    for world in {each.world for each in measured}:
        rivals = [each for each in measured if each.world == world]
        if len(rivals) >= pruner.min_trials:
            losers |= {each.trial for each in rivals if _is_behind(pruner, each, rivals) and _is_beaten(each, rivals)}
    return losers


def _is_behind(pruner: Pruner, one: Measured, rivals: Sequence[Measured]) -> bool:
    if pruner.name == "median":
        return one.accuracy < median(each.accuracy for each in rivals)
    better = sum(each.accuracy > one.accuracy for each in rivals)
    return better >= max(1, int(len(rivals) / (pruner.factor or _FACTOR)))


def _is_beaten(one: Measured, rivals: Sequence[Measured]) -> bool:
    """Whether another trial is as good at everything and better at something."""
    return any(
        other.values != one.values and all(a >= b for a, b in zip(other.values, one.values, strict=True))
        for other in rivals
    )
