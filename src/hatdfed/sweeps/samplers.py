"""What proposes the trials of a search: Optuna's estimator or random numbers, a Sobol sequence, or a grid.

Every trial is proposed with a seed of its own from its number and the trials of the groups before it, so that a search
that was killed goes on to the trials that it would have made.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hatdfed.randomness import stream
from hatdfed.sweeps.file import Choice, SearchPlan

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.study import StudyDirection
    from optuna.trial import FrozenTrial

SAMPLER = "sampler"  # the attribute of a trial that says what proposed it
_SOBOL_BITS = 30  # as many as there are in scipy's own default


def propose(
    plan: SearchPlan, number: int, before: Sequence[FrozenTrial], directions: Sequence[StudyDirection]
) -> FrozenTrial:
    """The trial of this number, from the trials before it; it is in no study yet."""
    import optuna

    if plan.sampler in ("tpe", "random"):
        return _ask(plan, number, before, directions)
    params = _combine(plan, number) if plan.sampler == "grid" else _spread(plan, number)
    return optuna.trial.create_trial(
        state=optuna.trial.TrialState.RUNNING,
        params=params,
        distributions=make_distributions(plan.parameters),
        user_attrs={SAMPLER: plan.sampler},
    )


def make_distributions(parameters: Mapping[str, Choice]) -> dict[str, BaseDistribution]:
    """What Optuna calls the choices."""
    return {key: _make_distribution(choice) for key, choice in parameters.items()}


def _make_distribution(choice: Choice) -> BaseDistribution:
    import optuna.distributions as kinds

    if choice.choices is not None:
        return kinds.CategoricalDistribution(choice.choices)
    low, high = choice.low or 0, choice.high or 0
    if choice.is_whole:
        return kinds.IntDistribution(int(low), int(high), step=int(choice.step or 1), log=choice.log)
    return kinds.FloatDistribution(low, high, step=choice.step, log=choice.log)


def _ask(
    plan: SearchPlan, number: int, before: Sequence[FrozenTrial], directions: Sequence[StudyDirection]
) -> FrozenTrial:
    """Ask Optuna, beside the file of the search."""
    import optuna

    seed = int(stream(plan.sampler_seed, "search", number).integers(2**31))
    kinds = optuna.samplers
    sampler = kinds.RandomSampler(seed) if plan.sampler == "random" else kinds.TPESampler(seed=seed)
    draft = optuna.create_study(directions=directions, sampler=sampler)
    draft.add_trials(before)
    draft.ask(make_distributions(plan.parameters)).set_user_attr(SAMPLER, plan.sampler)
    return draft.get_trials()[-1]


def _combine(plan: SearchPlan, number: int) -> dict[str, Any]:
    """One combination of a grid: all in an order drawn by the seed, so that the first few are no corner of it."""
    index = int(stream(plan.sampler_seed, "grid").permutation(plan.num_combinations)[number])
    params = {}
    for key, choice in plan.parameters.items():
        index, place = divmod(index, choice.num_values or 1)
        params[key] = choice.value(place)
    return params


def _spread(plan: SearchPlan, number: int) -> dict[str, Any]:
    """One point of a scrambled Sobol sequence, which fills the space more evenly than random points."""
    from scipy.stats import qmc

    sequence = qmc.Sobol(len(plan.parameters), bits=_SOBOL_BITS, seed=stream(plan.sampler_seed, "sobol"))
    if number:
        sequence.fast_forward(number)  # by nothing is an error
    spot = sequence.random(1)[0]
    return {
        key: _place(choice, float(share)) for (key, choice), share in zip(plan.parameters.items(), spot, strict=True)
    }


def _place(choice: Choice, share: float) -> Any:
    """The value at `share` (0 to 1) of the way through a choice."""
    low, high = choice.low or 0, choice.high or 0
    if choice.log:  # a whole number gets the share of its unit on the logarithmic axis, as in Optuna
        half = 0.5 if choice.is_whole else 0.0
        start, end = math.log(low - half), math.log(high + half)
        value = math.exp(start + share * (end - start))
        return min(max(int(low), round(value)), int(high)) if choice.is_whole else min(max(low, value), high)
    if (count := choice.num_values) is not None:
        return choice.value(min(int(share * count), count - 1))
    return low + share * (high - low)
