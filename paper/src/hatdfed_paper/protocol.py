"""The plan of an experiment, written down before it is run: what is compared, what is expected, and what decides.

An experiment with a `Protocol` is *confirmatory*: its plan is a committed file, `paper/plans/NAME.toml`, and its runs
are played only while that file says what the code would play. Everything else is *exploratory*. The file is generated
(`hatdfed paper plan NAME --write`), so it cannot say anything else than the code.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hatdfed.runs.statistics import PairedDifference
from hatdfed_paper.plan import Scale, Settings
from hatdfed_paper.results import run_name
from hatdfed_paper.verdict_rules import judge_difference

CONFIRMATORY, EXPLORATORY = "confirmatory", "exploratory"
UNTIL_COMPLETE = (
    "Runs that decide are played before all others, seed by seed. Nothing is decided before all planned seeds have "
    "been played; until then tables say how many there are, and differences leave out seeds that one side lacks."
)
ROUNDS = 200  # of every planned run, unless its settings or the scale say otherwise
# Server-rounds per second on one H200, six processes with MPS, measured over the sessions in results/sessions.json.
RATES = {"fashion-mnist": 6_100, "cifar-10": 1_300}


@dataclass(frozen=True)
class Protocol:
    """What makes an experiment confirmatory: one comparison, the hypothesis about it, and the rule that decides."""

    comparison: str
    null: str  # the hypothesis that the runs may reject
    rule: str  # when the claim is confirmed, partly or not


def decide(difference: PairedDifference | None, seeds: Sequence[int], planned: Sequence[int], size: float = 0.0) -> str:
    """The verdict on a comparison by the one rule of all claims, once all its planned seeds have been played.

    >>> decide(PairedDifference(1.0, 0.5, 1.5, 2), [200, 201], [200, 201, 202])
    'open: 2 of 3 seeds'
    """
    if difference is None or not set(planned) <= set(seeds):
        return f"open: {len(set(planned) & set(seeds))} of {len(planned)} seeds"
    return judge_difference(difference, size)


def server_rounds(runs: Sequence[Settings], scale: Scale) -> dict[str, int]:
    """Rounds times servers of these runs, by data set."""
    found = dict.fromkeys(scale.datasets, 0)
    for run in runs:
        found[run["dataset"]] += run["servers"] * run.get("rounds", scale.common.get("rounds", ROUNDS))
    return found


def estimated_minutes(amount: Mapping[str, int]) -> float:
    """Minutes on one H200 at the measured rates; a data set without a rate counts as the slowest."""
    slowest = min(RATES.values())
    return sum(count / RATES.get(dataset, slowest) for dataset, count in amount.items()) / 60


def runs_digest(runs: Sequence[Settings]) -> str:
    """A short name for exactly these runs, in whatever order."""
    return hashlib.sha256("\n".join(sorted(run_name(run) for run in runs)).encode()).hexdigest()[:16]


def varied_settings(points: Sequence[Settings]) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Settings that all points share, and the values of those that differ, in their order; "default" where absent."""
    names = dict.fromkeys(name for each in points for name in each)
    values: dict[str, dict[str, Any]] = {name: {} for name in names}
    for each in points:
        for name in names:
            value = each.get(name, "default")
            values[name].setdefault(json.dumps(value, sort_keys=True), value)
    shared = {name: next(iter(found.values())) for name, found in values.items() if len(found) == 1}
    return shared, {name: list(found.values()) for name, found in values.items() if len(found) > 1}


def toml_value(value: Any) -> str:
    """A setting as TOML writes it; one that TOML has no word for, as JSON in a string.

    >>> toml_value([1, 2.5, "a"]), toml_value({"every": 2}), toml_value(None)
    ('[1, 2.5, "a"]', '{every = 2}', '"null"')
    """
    if value is None:
        return '"null"'
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name} = {toml_value(each)}" for name, each in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(toml_value(each) for each in value) + "]"
    return json.dumps(value, ensure_ascii=False)


def spans(seeds: Sequence[int]) -> str:
    """Seeds for the eye.

    >>> spans([200, 201, 202, 230])
    '200–202, 230'
    """
    parts: list[list[int]] = []
    for seed in sorted(set(seeds)):
        if parts and seed == parts[-1][1] + 1:
            parts[-1][1] = seed
        else:
            parts.append([seed, seed])
    return ", ".join(f"{first}–{last}" if last > first else str(first) for first, last in parts)
