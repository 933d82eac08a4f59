"""Whether our world is the paper's: what the baselines reach, and what everything costs. Checks, not claims."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from hatdfed.runs.summary import mean_and_deviation
from hatdfed_paper.claims import Claims
from hatdfed_paper.expected_energy import expected_energy
from hatdfed_paper.headline import settings_of
from hatdfed_paper.plans import BASELINES, Scale, points
from hatdfed_paper.results import Results
from hatdfed_paper.verdict_rules import Verdict, by_share

NEAR_POINTS = 3.0  # of the published average accuracy
NEAR_SHARE = 0.10  # of an energy
GROUP = "check"


class _Row(NamedTuple):
    """A row of Table 1: ours and the published one."""

    place: tuple[Any, ...]
    method: str
    ours: dict[str, float]
    published: dict[str, float]
    seeds: int


def checks(results: Results, claims: Claims, scale: Scale) -> Iterator[Verdict]:
    """Levels of accuracy and energy."""
    rows = list(_rows(results, claims, scale))
    yield from _accuracies(rows, scale)
    yield from _price_list(results, scale)
    near = [_is_near(row.ours["total_energy_mj"], row.published["total_energy_mj"]) for row in rows]
    words = f"Total energy of the five methods, within {NEAR_SHARE:.0%} of the published"
    yield from _counted(words, near, "rows", min((row.seeds for row in rows), default=0))
    yield from _sparsity(results, claims, scale)


def _rows(results: Results, claims: Claims, scale: Scale) -> Iterator[_Row]:
    for each in points("table1", scale):
        published, at = claims.row("table_1", each), results.at(each)
        if published is not None and at:
            names = ("avg_accuracy", "total_energy_mj")
            ours = {name: mean_and_deviation(list(results.figures(each, name).values()))[0] for name in names}
            place = (each["dataset"], each["label_concentration"], each["device_online_probability"])
            yield _Row(place, each["method"], ours, {name: published[name][0] for name in names}, len(at))


def _accuracies(rows: list[_Row], scale: Scale) -> Iterator[Verdict]:
    near = []
    for where in settings_of(scale):
        mine = [row for row in rows if row.place == tuple(where.values()) and row.method in BASELINES]
        if len(mine) == len(BASELINES):
            distance = sum(row.ours["avg_accuracy"] - row.published["avg_accuracy"] for row in mine) / len(mine)
            near.append(abs(distance) <= NEAR_POINTS)
    words = f"The four baselines' mean accuracy, within {NEAR_POINTS:g} points of the published"
    yield from _counted(words, near, "settings", min((row.seeds for row in rows), default=0))


def _price_list(results: Results, scale: Scale) -> Iterator[Verdict]:
    rows = expected_energy(results, scale)
    kinds = ("link_energy_mj_deviation_percent", "total_energy_mj_deviation_percent")
    near = [abs(row[kind]) <= 100 * NEAR_SHARE for row in rows for kind in kinds]
    words = f"Our energies, within {NEAR_SHARE:.0%} of what the price list should come to"
    yield from _counted(words, near, "energies", min((len(row["seeds"]) for row in rows), default=0))


def _sparsity(results: Results, claims: Claims, scale: Scale) -> Iterator[Verdict]:
    near, seeds = [], []
    for each in points("sparsity", scale):
        published, seen = claims.row("sparsity", each), results.figures(each, "total_energy_mj")
        if published is not None and seen:
            ours, _ = mean_and_deviation(list(seen.values()))
            near.append(_is_near(ours, published["total_energy_mj"][0]))
            seeds.append(len(seen))
    words = f"Total energy at every γ, within {NEAR_SHARE:.0%} of the published"
    yield from _counted(words, near, "cells", min(seeds, default=0))


def _is_near(ours: float, wanted: float) -> bool:
    return abs(ours / wanted - 1) <= NEAR_SHARE


def _counted(words: str, near: list[bool], unit: str, seeds: int) -> Iterator[Verdict]:
    if near:
        verdict = by_share(sum(near), len(near))
        yield Verdict(GROUP, words, f"{len(near)} {unit}", f"{sum(near)} of {len(near)}", verdict, seeds)
