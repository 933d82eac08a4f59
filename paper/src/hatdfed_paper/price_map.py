"""At which prices the topology matters: the same runs at other prices, without running them again.

A ledger splits joules by cause. The baselines and `hat-dfed-plus` do the same whatever a link costs on average: they
look at prices not at all, or at how the links' prices compare. So their energy at any price of a sent model and of a
trained sample follows from the stored sums: link joules scale with the one, training joules with the other, uploads
stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from hatdfed.setup.layers import resolve
from hatdfed_paper.claims import Claims
from hatdfed_paper.differences import energy_saving
from hatdfed_paper.expected_energy import expected_link_joules
from hatdfed_paper.experiment import Figure, Table
from hatdfed_paper.figure_parts import COLOURS, WIDTH, Data, lines_of, span, subtitle
from hatdfed_paper.markdown import NOTHING, format_price, table
from hatdfed_paper.plan import BASELINES, HARD, PLUS, Scale, Settings, point
from hatdfed_paper.results import Results
from hatdfed_paper.rows import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture

Repriced = Mapping[int, Mapping[str, float]]  # by seed and cause
FACTORS = (1 / 64, 1 / 16, 1 / 4, 1.0, 4.0, 16.0, 64.0)


def price_rows(results: Results, claims: Claims, scale: Scale) -> list[Row]:
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


def _at(results: Results, dataset: str, link: float, training: float) -> Row | None:
    rivals = [reprice(results, point(dataset, method), link, training) for method in BASELINES]
    if not all(rivals):
        return None
    means = [_mean_by_cause(each) for each in rivals]
    total = sum(sum(each.values()) for each in means) / len(means)
    links = sum(each["link_energy_mj"] for each in means) / len(means)
    saved = _saving(reprice(results, point(dataset, PLUS), link, training), rivals)
    return {
        "baselines_total_mj": round(total, 4),
        "link_share_percent": round(100 * links / total, 2),
        "plus_saves_percent": None if saved is None else round(saved, 2),
        "seeds": list(rivals[0]),
    }


def _saving(plus: Repriced, rivals: Sequence[Repriced]) -> float | None:
    """Percent of total energy saved, mean over the seeds that all have."""
    savings = []
    for seed in set(plus).intersection(*rivals):
        saved = energy_saving(sum(plus[seed].values()), [sum(rival[seed].values()) for rival in rivals])
        savings += [] if saved is None else [saved]
    return sum(savings) / len(savings) if savings else None


def split_rows(results: Results, claims: Claims, scale: Scale) -> list[Row]:
    """Joules by cause at the paper's prices, λ 0.3 and ρ 0.5: every baseline and `hat-dfed-plus`."""
    rows = []
    for dataset in scale.datasets:
        for method in (*BASELINES, PLUS):
            if runs := reprice(results, point(dataset, method), 1.0, 1.0):
                spent = _mean_by_cause(runs)
                share = 100 * spent["link_energy_mj"] / sum(spent.values())
                row = {"dataset": dataset, "method": method, **{name: round(mj, 4) for name, mj in spent.items()}}
                rows.append({**row, "link_share_percent": round(share, 2), "seeds": list(runs)})
    return rows


def reprice(results: Results, settings: Settings, link: float, training: float) -> Repriced:
    """Energy of every run by cause, in MJ, with links and training so many times as dear."""
    causes = {"link_energy_mj": link, "training_energy_mj": training, "upload_energy_mj": 1.0}
    seen = {name: results.figures(settings, name) for name in causes}
    seeds = set.intersection(*(set(each) for each in seen.values()))
    return {seed: {name: factor * seen[name][seed] for name, factor in causes.items()} for seed in sorted(seeds)}


def _mean_by_cause(runs: Repriced) -> dict[str, float]:
    return {name: fmean(each[name] for each in runs.values()) for name in next(iter(runs.values()))}


def _split_markdown(rows: Sequence[Row]) -> str:
    """Joules by cause, in MJ, and the links' share."""
    headings = ["data set", "method", "upload MJ", "training MJ", "links MJ", "links' share"]
    causes = ("upload_energy_mj", "training_energy_mj", "link_energy_mj")
    cells = [
        [row["dataset"], row["method"], *(f"{row[name]:.2f}" for name in causes), f"{row['link_share_percent']:.0f} %"]
        for row in rows
    ]
    return table(headings, cells)


def _price_markdown(rows: Sequence[Row]) -> str:
    """For each data set a table: joules a sample downwards, joules a sent model to the right."""
    parts = []
    for dataset in dict.fromkeys(row["dataset"] for row in rows):
        here = [row for row in rows if row["dataset"] == dataset]
        across, down = (sorted({row[name] for row in here}) for name in ("joules_per_model", "joules_per_sample"))
        found = {(row["joules_per_sample"], row["joules_per_model"]): row for row in here}
        lines = [[format_price(sample), *(_saved(found.get((sample, model))) for model in across)] for sample in down]
        parts.append(table([f"{dataset}: J a sample \\ J a model", *(format_price(model) for model in across)], lines))
    return "\n\n".join(parts)


def _saved(row: Row | None) -> str:
    """What hat-dfed-plus saves, and in brackets the links' share of the baselines' energy."""
    if row is None or row["plus_saves_percent"] is None:
        return NOTHING
    return f"{row['plus_saves_percent']:.0f} % ({row['link_share_percent']:.0f})"


def price_panels(results: Results, claims: Claims, dataset: str, scale: Scale) -> list[Data]:
    """A line of the map for each price of a trained sample: what is saved at every price of a sent model."""
    rows = [row for row in price_rows(results, claims, scale) if row["dataset"] == dataset]
    known = [row for row in rows if row["plus_saves_percent"] is not None]
    lines = []
    for sample in sorted({row["joules_per_sample"] for row in known}):
        alike = sorted(
            (row for row in known if row["joules_per_sample"] == sample),
            key=lambda row: float(row["joules_per_model"]),
        )
        line: Data = {"joules_per_sample": sample, "x": [row["joules_per_model"] for row in alike]}
        line["saved"] = [row["plus_saves_percent"] for row in alike]
        line["share"] = [row["link_share_percent"] for row in alike]
        lines.append({**line, "seeds": min(len(row["seeds"]) for row in alike)})
    return [{"lines": lines}]


def _title(data: Data) -> str:
    """At the paper's prices, which stand in the middle, and over the whole map."""
    lines = lines_of(data)
    middle = lines[len(lines) // 2]["saved"]
    every = [value for line in lines for value in line["saved"]]
    return (
        f"{PLUS} saves {middle[len(middle) // 2]:.0f} % of the energy at the paper’s prices, "
        f"{span(every, '.0f')} % at others"
    )


def _draw(data: Data, title: str) -> Picture:
    """A field for every pair of prices: what is saved of the baselines' energy, and what their links take of it."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.patches import Rectangle

    import hatdfed.report.style as st

    lines = lines_of(data)
    saved = np.array([line["saved"] for line in lines])  # [prices of a sample, prices of a model]
    notes = (
        "Large number: percent of the baselines’ total energy that hat-dfed-plus saves; small: the links’ share of "
        "that energy. λ = 0.3, ρ = 0.5; the same runs, priced anew. Frame: the paper’s own prices."
    )
    figure = st.page(WIDTH, 6.6, title, subtitle(data, notes))
    axes = figure.add_subplot(facecolor=st.PAPER)
    st.frame(axes)
    axes.grid(visible=False)
    axes.spines["bottom"].set_visible(False)
    scale = ScalarMappable(Normalize(0, 100), colormaps["YlGnBu"])
    axes.imshow(scale.to_rgba(saved), interpolation="nearest", origin="lower", aspect="auto")
    for row, line in enumerate(lines):
        for column, (percent, share) in enumerate(zip(line["saved"], line["share"], strict=True)):
            _draw_field(axes, (column, row), percent, share)
    axes.set_xticks(range(saved.shape[1]), [format_price(x) for x in lines[0]["x"]])
    axes.set_yticks(range(len(lines)), [format_price(line["joules_per_sample"]) for line in lines])
    st.name_axes(axes, "Joules per sent model (float32, mean link)", "Joules per trained sample (mean server)")
    middle = ((saved.shape[1] - 1) / 2, (len(lines) - 1) / 2)  # prices are the paper's times the same factors both ways
    axes.add_patch(
        Rectangle((middle[0] - 0.5, middle[1] - 0.5), 1, 1, fill=False, edgecolor=COLOURS["hat-dfed"], linewidth=2.4)
    )
    st.colour_bar(figure, axes, scale, f"Total energy saved by {PLUS} (%)")
    return figure


def _draw_field(axes: Axes, at: tuple[float, float], saved: float, share: float) -> None:
    import hatdfed.report.style as st

    colour = st.PAPER if saved > 55 else st.INK
    axes.text(
        at[0], at[1] + 0.1, f"{saved:.0f}", ha="center", va="center", size=st.BODY + 1, color=colour, family=st.FONT
    )
    small = axes.text(at[0], at[1] - 0.26, f"links {share:.0f}", ha="center", va="center", color=colour)
    small.set(size=st.SMALL - 1, family=st.FONT)


SPLIT_TABLE = Table("plus_energy_split", split_rows, _split_markdown)
PRICE_TABLE = Table("regimes", price_rows, _price_markdown)
PRICE_FIGURE = Figure("regimes", price_panels, _title, _draw)
