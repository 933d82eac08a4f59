"""The numbers behind the figures about `hat-dfed-plus`: what accuracy costs, and at which prices topology matters."""

from __future__ import annotations

from typing import Any

import numpy as np

from hatdfed.report.run_data import pareto_front
from hatdfed.runs.summary import mean_and_deviation
from hatdfed_paper.equal_footing import equal_footing, without_thrift
from hatdfed_paper.link_regimes import AS_DEAR, AS_MANY, REGIMES, ways_to_draw
from hatdfed_paper.plans import BASELINES, Scale, Settings, point, points, settings_of_table_1
from hatdfed_paper.plus_plans import PLUS
from hatdfed_paper.regimes import regime_map
from hatdfed_paper.results import Results

Data = dict[str, Any]
AS_IT_IS, EQUAL, DENSE = "as it is", "equal footing", "dense"
RANDOM = "random links"


def front_panels(results: Results, dataset: str) -> list[Data]:
    """Test accuracy over total energy: a panel for each setting, a line for each way to play the methods.

    `front` names the points, by line and place in it, that no other beats at both. No panel where hat-dfed-plus has
    not been played.
    """
    panels = []
    for setting in settings_of_table_1():
        plus = point(dataset, PLUS, **setting)
        ways = _ways(dataset, setting) | {PLUS: {PLUS: plus}} if results.at(plus) else {}
        lines = [line for name, played in ways.items() if (line := _line(results, name, played))["x"]]
        panels.append({"setting": list(setting.values()), "lines": lines, "front": _front(lines)})
    return panels


def regime_panels(results: Results, dataset: str, scale: Scale) -> list[Data]:
    """A line of the map for each price of a trained sample: what is saved at every price of a sent model."""
    rows = [row for row in regime_map(results, scale) if row["dataset"] == dataset]
    known = [row for row in rows if row["plus_saves_percent"] is not None]
    lines = []
    for price in sorted({row["joules_per_sample"] for row in known}):
        alike = sorted(
            (r for r in known if r["joules_per_sample"] == price), key=lambda r: float(r["joules_per_model"])
        )
        line: Data = {"joules_per_sample": price, "x": [row["joules_per_model"] for row in alike]}
        line["saved"] = [row["plus_saves_percent"] for row in alike]
        line["share"] = [row["link_share_percent"] for row in alike]
        lines.append({**line, "seeds": min(len(row["seeds"]) for row in alike)})
    return [{"lines": lines}]


def link_panels(results: Results, dataset: str, scale: Scale) -> list[Data]:
    """Accuracy over link energy: a panel for each size and regime, the two ways to draw at random joined by a line."""
    panels = []
    for servers in dict.fromkeys(each["servers"] for each in points("plus_regimes", scale)):
        ways = list(ways_to_draw(dataset, servers))
        for regime in REGIMES:
            played = {way: point(dataset, PLUS, **changed) for name, way, changed in ways if name == regime}
            both = {way: played.pop(way) for way in (AS_DEAR, AS_MANY)}
            lines = [_line(results, RANDOM, both, "link_energy_mj")]
            lines += [_line(results, way, {way: settings}, "link_energy_mj") for way, settings in played.items()]
            known = [line for line in lines if line["x"]] if results.at(played[PLUS]) and lines[0]["x"] else []
            panels.append({"servers": servers, "regime": regime, "lines": known})
    return panels


def _ways(dataset: str, setting: dict[str, float]) -> dict[str, dict[str, Settings]]:
    """Every way to play the methods in one setting, and there every method."""
    named = (*BASELINES, "hat-dfed")
    equal = {name: equal_footing(name, dataset, 5) for name in named}
    return {
        AS_IT_IS: {name: point(dataset, name, **setting) for name in named},
        EQUAL: {name: point(dataset, name, **setting, **equal[name]) for name in named},
        DENSE: {name: point(dataset, name, **setting, **without_thrift(dataset)) for name in BASELINES},
    }


def _line(results: Results, name: str, played: dict[str, Settings], energy: str = "total_energy_mj") -> Data:
    known = {method: settings for method, settings in played.items() if results.at(settings)}
    mean = {
        figure: [mean_and_deviation(list(results.figures(each, figure).values()))[0] for each in known.values()]
        for figure in (energy, "avg_accuracy")
    }
    seeds = min((len(results.at(each)) for each in known.values()), default=0)
    x, y = mean.values()
    return {"name": name, "methods": list(known), "x": x, "y": y, "seeds": seeds}


def _front(lines: list[Data]) -> list[list[int]]:
    places = [[index, place] for index, line in enumerate(lines) for place in range(len(line["x"]))]
    spots = np.array([[lines[index]["x"][place], lines[index]["y"][place]] for index, place in places])
    return [places[each] for each in pareto_front(spots)] if places else []
