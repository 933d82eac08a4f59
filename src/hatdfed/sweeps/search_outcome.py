"""What a search came to: its trials as rows of the table, what pruning saved, and which settings mattered."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from hatdfed.sweeps.file import SearchPlan
from hatdfed.sweeps.importance import measure_importance
from hatdfed.sweeps.points import all_runs
from hatdfed.sweeps.search import Trial
from hatdfed.sweeps.table import Row


def choose_distinct(trials: Sequence[Trial]) -> list[Trial]:
    """Trials that came to the same runs once: the first, or the first that was not pruned."""
    chosen: dict[tuple[str, ...], Trial] = {}
    for trial in trials:
        key = tuple(run.name for run in trial.point.runs)
        if key not in chosen or (chosen[key].state == "pruned" and trial.state != "pruned"):
            chosen[key] = trial
    return list(chosen.values())


def add_trials(plan: SearchPlan, rows: Sequence[Row], trials: Sequence[Trial]) -> list[Row]:
    """The rows with what is known of their trials; a pruned one misses no seed, and has no figures but its last."""
    return [{**row, **_describe_trial(plan, trial)} for row, trial in zip(rows, trials, strict=True)]


def _describe_trial(plan: SearchPlan, trial: Trial) -> Row:
    found: Row = {"trial": trial.number, "sampler": trial.sampler}
    if plan.pruner is None:
        return found
    found |= {"pruned_after": trial.pruned_after, "accuracy_when_pruned": None}
    if trial.pruned_after is not None and plan.judged is not None:
        last = trial.measured[trial.pruned_after]
        found |= {"accuracy_when_pruned": last[plan.objectives.index(plan.judged)], "missing_seeds": []}
    return found


def describe_search(plan: SearchPlan, trials: Sequence[Trial], unfinished: Collection[str]) -> dict[str, Any]:
    """How it searched, what pruning saved (`unfinished` are the runs that it ended), and which settings mattered."""
    return {
        "sampler": plan.sampler,
        "sampler_seed": plan.sampler_seed,
        "objectives": list(plan.objectives),
        "trials": len(trials),
        "pruning": _describe_pruning(plan, trials, unfinished),
        "importance": _describe_importance(plan, trials),
    }


def _describe_pruning(plan: SearchPlan, trials: Sequence[Trial], unfinished: Collection[str]) -> dict[str, Any] | None:
    if plan.pruner is None:
        return None
    runs = all_runs([trial.point for trial in trials])
    ended = {run.name: trial.pruned_after or 0 for trial in trials for run in trial.point.runs if trial.pruned_after}
    return {
        "pruner": plan.pruner.name,
        "pruned_trials": sum(trial.state == "pruned" for trial in trials),
        "rounds": sum(run.config.rounds for run in runs),
        "rounds_saved": sum(run.config.rounds - ended[run.name] for run in runs if run.name in unfinished),
    }


def _describe_importance(plan: SearchPlan, trials: Sequence[Trial]) -> dict[str, Any]:
    """Of the figures after the last round; with a pruner after the first round at which trials were judged.

    Only the better trials come to their end then, and among those a setting that decided it seems to matter little.
    """
    first = None if plan.pruner is None else min((t for trial in trials for t in trial.measured), default=None)
    values = {trial.number: trial.values if first is None else trial.measured.get(first) for trial in trials}
    known = [(trial, found) for trial in trials if (found := values[trial.number]) is not None]
    columns: dict[str, list[float]] = {
        name: [found[place] for _, found in known] for place, name in enumerate(plan.objectives)
    }
    tried = [trial.point.settings for trial, _ in known]
    return {"after_round": first, **measure_importance(plan.parameters, tried, columns)}
