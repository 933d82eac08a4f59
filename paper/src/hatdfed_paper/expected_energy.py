"""What the price list says a run should cost, with every draw at its mean; a check on the ledgers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from hatdfed.runs.summary import JOULES_PER_MJ, mean_and_deviation
from hatdfed.setup.config import Config
from hatdfed.setup.layers import resolve
from hatdfed_paper.markdown import table
from hatdfed_paper.plan import SETTING, Scale, Settings
from hatdfed_paper.results import Results
from hatdfed_paper.rows import Row

BITS_PER_SAMPLE = {"fashion-mnist": 28 * 28 * 8, "cifar-10": 32 * 32 * 3 * 8}


def expected_link_joules(config: Config) -> float:
    """The mean of Eq. (6) with EE uniform in its range [a, b]: BPM · ln(b/a) / (b − a)."""
    low, high = (1000 * end for end in config.energy.link_kbit_per_joule)
    bits = config.energy.model_bits
    if not isinstance(bits, (int, float)):
        raise ValueError("a model priced by what it really weighs has no price without its network")
    return bits * math.log(high / low) / (high - low)


def expected_data_mj(config: Config) -> float:
    """Eqs. (4) and (5) over all servers and rounds: uploads of connected devices, training on what they sent."""
    samples = config.device_online_probability * config.samples_per_round * config.servers * config.rounds
    upload = BITS_PER_SAMPLE[config.dataset] / (1000 * config.energy.device_kbit_per_joule)
    training = (config.energy.weak_joules_per_sample + config.energy.strong_joules_per_sample) / 2
    return samples * (upload + training) / JOULES_PER_MJ


def expected_energy(results: Results, points: Iterable[Settings], scale: Scale) -> list[Row]:
    """What these runs on the two real data sets cost, beside what they should."""
    rows = []
    for each in points:
        at = results.at(each)
        if not at or each["dataset"] not in BITS_PER_SAMPLE:
            continue
        config = resolve({**scale.common, **each})
        links, _ = mean_and_deviation([record["figures"]["links_per_round"] for record in at.values()])
        link = links * config.rounds * expected_link_joules(config) / JOULES_PER_MJ
        total = link + expected_data_mj(config)
        row = {key: each[key] for key in ("dataset", *SETTING, "method")}
        for name, wanted in (("total_energy_mj", total), ("link_energy_mj", link)):
            measured, _ = mean_and_deviation([record["figures"][name] for record in at.values()])
            row |= {name: round(measured, 4), f"expected_{name}": round(wanted, 4)}
            row[f"{name}_deviation_percent"] = round(100 * (measured / wanted - 1), 2) if wanted else 0.0
        rows.append({**row, "links_per_round": round(links, 3), "seeds": list(at)})
    return rows


def expected_energy_markdown(rows: Sequence[Row]) -> str:
    """One line for each method, worst setting first; λ and ρ change nothing but the data's share."""
    headings = ["data set", "method", "links per round", "link MJ", "expected", "largest deviation, link", "total"]
    cells = []
    for dataset, method in dict.fromkeys((row["dataset"], row["method"]) for row in rows):
        alike = [row for row in rows if (row["dataset"], row["method"]) == (dataset, method)]
        worst = [
            max((row[f"{kind}_energy_mj_deviation_percent"] for row in alike), key=abs) for kind in ("link", "total")
        ]
        first = alike[0]
        figures = [f"{first[name]:.2f}" for name in ("links_per_round", "link_energy_mj", "expected_link_energy_mj")]
        cells.append([dataset, method, *figures, *(f"{value:+.1f} %" for value in worst)])
    return table(headings, cells)
