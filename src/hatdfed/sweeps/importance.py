"""Which settings of a search mattered: functional ANOVA over its trials (Hutter et al., ICML 2014), with Optuna.

A random forest predicts an objective from the settings; the importance of a setting is the share of the forest's
variance over the whole space that it explains by itself. The shares always sum to 1, even where the forest has learned
nothing but noise, so `explained` says how well a forest predicts trials that it has not seen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hatdfed.sweeps.file import Choice
from hatdfed.sweeps.samplers import make_distributions

LEAST_TRIALS = 8  # below these there is nothing to be said
_FEW_TRIALS, _FEW_PER_SETTING = 20, 5  # below these the order is not reliable
_LEAST_EXPLAINED = 0.1
_TREES = 200
_DIGITS = 4

Settings = Mapping[str, Any]


def measure_importance(
    parameters: Mapping[str, Choice], tried: Sequence[Settings], values: Mapping[str, Sequence[float]]
) -> dict[str, Any]:
    """The importance of every setting for every objective, of whose `values` there is one for each of `tried`."""
    found: dict[str, Any] = {"measure": "fANOVA", "trials": len(tried), "objectives": {}, "notes": []}
    if len(tried) < LEAST_TRIALS:
        found["notes"] = [f"Importance needs {LEAST_TRIALS} trials or more, but there are {len(tried)}."]
        return found
    for objective, column in values.items():
        found["objectives"][objective] = _measure(parameters, tried, column)
    found["notes"] = _warn(len(parameters), len(tried), found["objectives"])
    return found


def _measure(parameters: Mapping[str, Choice], tried: Sequence[Settings], values: Sequence[float]) -> dict[str, Any]:
    if len(set(values)) == 1:  # nothing varies, so nothing matters
        return {"shares": dict.fromkeys(parameters, 0.0), "explained": None}
    shares = _find_shares(parameters, tried, values)
    ordered = dict(sorted(shares.items(), key=lambda one: -one[1]))
    return {"shares": ordered, "explained": _find_explained(parameters, tried, values)}


def _find_shares(
    parameters: Mapping[str, Choice], tried: Sequence[Settings], values: Sequence[float]
) -> dict[str, float]:
    import optuna

    distributions = make_distributions(parameters)
    study = optuna.create_study()
    for settings, value in zip(tried, values, strict=True):
        study.add_trial(optuna.trial.create_trial(params=dict(settings), distributions=distributions, value=value))
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    found = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {key: round(float(found.get(key, 0.0)), _DIGITS) for key in parameters}


def _find_explained(
    parameters: Mapping[str, Choice], tried: Sequence[Settings], values: Sequence[float]
) -> float | None:
    """The share of the variance that a forest predicts of trials that it has not seen (out of bag), R²."""
    from sklearn.ensemble import RandomForestRegressor

    columns = [_encode(choice, [settings[key] for settings in tried]) for key, choice in parameters.items()]
    forest = RandomForestRegressor(_TREES, oob_score=True, random_state=0)
    forest.fit(np.concatenate(columns, axis=1), np.asarray(values))
    score = float(forest.oob_score_)
    return round(score, _DIGITS) if math.isfinite(score) else None


def _encode(choice: Choice, values: Sequence[Any]) -> NDArray[np.float64]:  # [n, 1], or [n, choices]
    """Numbers as they are, or their logarithms; names one column each."""
    if choice.choices is not None:
        return np.array([[float(value == name) for name in choice.choices] for value in values])
    column = np.array(values, dtype=np.float64)[:, None]
    return np.log(column) if choice.log else column


def _warn(num_settings: int, num_trials: int, objectives: Mapping[str, Mapping[str, Any]]) -> list[str]:
    notes = []
    enough = max(_FEW_TRIALS, _FEW_PER_SETTING * num_settings)
    if num_trials < enough:
        notes.append(
            f"Only {num_trials} trials of {num_settings} settings: with fewer than {enough}, the order may be chance."
        )
    for objective, found in objectives.items():
        explained = found["explained"]
        if explained is None:
            notes.append(f"All trials have the same {objective}, so no setting mattered for it.")
        elif explained < _LEAST_EXPLAINED:
            notes.append(
                f"The settings hardly predict {objective} of unseen trials (R² {explained:.2f}), so the order may be "
                "chance."
            )
    return notes
