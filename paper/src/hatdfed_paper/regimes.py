"""Where the topology matters: the same runs at other prices, without running them again.

A ledger splits joules by cause. The baselines and `hat-dfed-plus` do the same whatever a link costs on average: they
look at prices not at all, or at how the links' prices compare. So their energy at any price of a sent model and of a
trained sample follows from the stored sums: link joules scale with the one, training joules with the other, uploads
stay.
"""

from __future__ import annotations

from typing import Any

from hatdfed.runs.summary import mean_and_deviation
from hatdfed.setup.layers import resolve
from hatdfed_paper.expected_energy import expected_link_joules
from hatdfed_paper.places import HARD
from hatdfed_paper.plans import BASELINES, Scale, point
from hatdfed_paper.plus_plans import PLUS
from hatdfed_paper.results import Results

Row = dict[str, Any]
FACTORS = (1 / 64, 1 / 16, 1 / 4, 1.0, 4.0, 16.0, 64.0)


def regime_map(results: Results, scale: Scale) -> list[Row]:
    """For prices far around the paper's: the links' share of the baselines' energy, and what `hat-dfed-plus` saves."""
    rows = []
    for dataset in scale.datasets:
        config = resolve({"dataset": dataset, **HARD})
        if config.energy.model_bits == "actual":
            continue  # small sets, which have no published prices
        sample = (config.energy.weak_joules_per_sample + config.energy.strong_joules_per_sample) / 2
        for link in FACTORS:
            for training in FACTORS:
                row = {
                    "dataset": dataset,
                    "joules_per_model": round(link * expected_link_joules(config), 4),
                    "joules_per_sample": round(training * sample, 4),
                }
                if found := _at(results, dataset, link, training):
                    rows.append(row | found)
    return rows


def energy_split(results: Results, scale: Scale) -> list[Row]:
    """Joules by cause at the paper's prices, λ 0.3 and ρ 0.5: every baseline and `hat-dfed-plus`."""
    rows = []
    for dataset in scale.datasets:
        for method in (*BASELINES, PLUS):
            settings = point(dataset, method)
            if spent := repriced(results, settings, 1.0, 1.0):
                share = 100 * spent["link_energy_mj"] / sum(spent.values())
                row = {name: round(value, 4) for name, value in spent.items()}
                where = {"dataset": dataset, "method": method}
                rows.append(
                    {**where, **row, "link_share_percent": round(share, 2), "seeds": list(results.at(settings))}
                )
    return rows


def repriced(results: Results, settings: dict[str, Any], link: float, training: float) -> dict[str, float] | None:
    """Mean joules by cause at these prices, in MJ; None where the runs are not there."""
    causes = {"link_energy_mj": link, "training_energy_mj": training, "upload_energy_mj": 1.0}
    seen = {name: list(results.figures(settings, name).values()) for name in causes}
    if not all(seen.values()):
        return None
    return {name: factor * mean_and_deviation(seen[name])[0] for name, factor in causes.items()}


def _at(results: Results, dataset: str, link: float, training: float) -> Row | None:
    spent = [repriced(results, point(dataset, method), link, training) for method in BASELINES]
    known = [each for each in spent if each is not None]
    if len(known) < len(BASELINES):
        return None
    total = sum(sum(each.values()) for each in known) / len(known)
    links = sum(each["link_energy_mj"] for each in known) / len(known)
    plus = repriced(results, point(dataset, PLUS), link, training)
    return {
        "baselines_total_mj": round(total, 4),
        "link_share_percent": round(100 * links / total, 2),
        "plus_saves_percent": None if plus is None else round(100 * (1 - sum(plus.values()) / total), 2),
        "seeds": list(results.at(point(dataset, BASELINES[0]))),
    }
