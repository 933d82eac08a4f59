"""What `hat-dfed-plus` saves by keeping uploads, and what by deciding who trains how much: on fresh seeds.

All methods are charged alike, once by the sample and pass and once by the sample (D6). Recipes were chosen on digits
and on Fashion-MNIST with seeds 30 to 34, on validation data (docs/training.md). A seed's figure is the mean over
Table 1's four settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from hatdfed.runs.statistics import PairedDifference
from hatdfed_paper.claims import Claims
from hatdfed_paper.differences import Contest, percent_saved, points_gained, shared_seeds
from hatdfed_paper.experiment import BEYOND, Experiment, Figure, Table
from hatdfed_paper.figure_parts import ACCURACY, COLOURS, ENERGY, SETTING_NOTE, WIDTH, Data, energy_line, subtitle
from hatdfed_paper.markdown import NOTHING, format_difference, format_figure, table
from hatdfed_paper.plan import BASELINES, PLUS, Scale, Settings, point, settings_of_table_1
from hatdfed_paper.protocol import Protocol
from hatdfed_paper.results import Results
from hatdfed_paper.rows import Row, interval_or_none, pair

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

ACCOUNTINGS = ("pass", "sample")
KEEP = "keep"
_KEPT: Mapping[str, Any] = {"uploads": {"keep": "samples"}}
DECISIONS: Mapping[str, Mapping[str, Any]] = {
    "taper 0.6 to 2": {"name": "taper", "first": 0.6, "last": 2.0},
    "skip-train 2/1": {"name": "skip-train", "train_rounds": 2, "sync_rounds": 1},
    "marginal-gain 0.3": {"name": "marginal-gain", "saved": 0.3},
}
CLAIMED = "taper 0.6 to 2"
LOSS = 0.5  # points of accuracy that are too many


def recipes() -> dict[str, tuple[str, Mapping[str, Any]]]:
    """Every line of the table: its method, and what is changed in it."""
    rivals: dict[str, tuple[str, Mapping[str, Any]]] = {name: (name, {}) for name in (*BASELINES, "hat-dfed", PLUS)}
    decided = {f"{KEEP}, {name}": (PLUS, {**_KEPT, "training": chosen}) for name, chosen in DECISIONS.items()}
    return {**rivals, KEEP: (PLUS, _KEPT), **decided}


def _place(dataset: str, recipe: str, per: str, setting: Mapping[str, float]) -> Settings:
    method, changed = recipes()[recipe]
    return point(dataset, method, **setting, **changed, energy={"training_per": per})


def _points(dataset: str, scale: Scale) -> Iterator[Settings]:
    for setting, per, recipe in product(settings_of_table_1(), ACCOUNTINGS, recipes()):
        yield _place(dataset, recipe, per, setting)


def _decisive(dataset: str, scale: Scale) -> Iterator[Settings]:
    for setting, recipe in product(settings_of_table_1(), (PLUS, KEEP, f"{KEEP}, {CLAIMED}")):
        yield _place(dataset, recipe, ACCOUNTINGS[0], setting)


def saving_rows(results: Results, claims: Claims, scale: Scale) -> list[Row]:
    """A row for each data set, accounting and recipe: its figures, and how it stands to its reference.

    That of decisions is keeping alone, so that what both save is told apart; that of all others is hat-dfed-plus.
    """
    rows = []
    for dataset, per, recipe in product(scale.datasets, ACCOUNTINGS, recipes()):
        places = [_place(dataset, recipe, per, setting) for setting in settings_of_table_1()]
        if not all(results.at(each) for each in places):
            continue
        against = KEEP if recipe.startswith(f"{KEEP}, ") else PLUS
        rivals = [_place(dataset, against, per, setting) for setting in settings_of_table_1()]
        contests = [Contest(mine, {against: rival}) for mine, rival in zip(places, rivals, strict=True)]
        gained = points_gained(results, contests, "avg_accuracy")
        saved = percent_saved(results, contests, "total_energy_mj")
        seeds = shared_seeds(results, contests)
        figures = {
            name: pair(value for each in places for value in results.figures(each, name).values())
            for name in ("avg_accuracy", "total_energy_mj", "link_energy_mj")
        }
        rows.append(
            {
                "dataset": dataset, "charged_per": per, "recipe": recipe, **figures, "against": against,
                "accuracy_points": interval_or_none(gained), "saved_percent": interval_or_none(saved),
                "holds": None if gained is None or saved is None or not EXPERIMENT.is_complete(seeds, scale)
                else judge(recipe, per, gained, saved),
                "seeds": seeds,
            }
        )  # fmt: skip
    return rows


def judge(recipe: str, per: str, gained: PairedDifference, saved: PairedDifference) -> bool | None:
    """Whether what was to be shown is shown on one data set; None where no claim is made."""
    if per != ACCOUNTINGS[0] or recipe not in (KEEP, f"{KEEP}, {CLAIMED}"):
        return None
    if saved.low is None or gained.low is None or gained.high is None:
        return None  # too few seeds for an interval
    return saved.low > 0 and gained.low > -LOSS and gained.high >= 0


def saving_markdown(rows: Sequence[Row]) -> str:
    """Recipes one below another, with differences to their reference."""
    headings = ["data set", "charged by the", "recipe", "accuracy %", "total MJ", "against", "points", "saved %"]
    words = {True: "yes", False: "no", None: NOTHING}
    cells = [
        [
            row["dataset"],
            row["charged_per"],
            row["recipe"],
            format_figure(row["avg_accuracy"], None),
            format_figure(row["total_energy_mj"], None, is_energy=True),
            row["against"],
            *(
                NOTHING if row[key] is None or row["recipe"] == row["against"] else format_difference(row[key], digits)
                for key, digits in (("accuracy_points", 2), ("saved_percent", 1))
            ),
            words[row["holds"]],
            str(len(row["seeds"])),
        ]
        for row in rows
    ]
    return table([*headings, "shown", "seeds"], cells)


def front_panels(results: Results, claims: Claims, dataset: str, scale: Scale) -> list[Data]:
    """Test accuracy over total energy, charged by the pass: a panel for each setting, a line for each recipe."""
    panels = []
    for setting in settings_of_table_1():
        drawn = [
            energy_line(results, recipe, {recipe: _place(dataset, recipe, ACCOUNTINGS[0], setting)}, "total_energy_mj")
            for recipe in recipes()
        ]
        panels.append({"setting": list(setting.values()), "lines": [line for line in drawn if line["x"]]})
    return panels


def _title(data: Data) -> str:
    return "What accuracy costs, charged by the sample and pass"


def _draw(data: Data, title: str) -> Picture:
    """Four panels, a mark for each recipe."""
    import hatdfed.report.style as st
    from hatdfed_paper.drawing import four_panels, legend_below

    figure = st.page(WIDTH, 7.0, title, subtitle(data, "Means over servers and seeds.", SETTING_NOTE))
    handles: dict[str, Any] = {}
    marks = dict(zip(recipes(), "ooooo*sD^v", strict=True))
    for axes, panel in four_panels(figure, data, ENERGY, ACCURACY):
        for line in panel["lines"]:
            name = line["name"]
            colour = COLOURS.get(name, COLOURS[PLUS])
            (drawn,) = axes.plot(line["x"], line["y"], linestyle="", marker=marks[name], color=colour, markersize=7)
            handles.setdefault(name, drawn)
    legend_below(figure, list(handles.values()), list(handles), columns=5)
    return figure


EXPERIMENT = Experiment(
    "training_effort",
    "What kept uploads and decisions about training save",
    _points,
    BEYOND,
    fleet_seeds={5: range(400, 410)},
    protocol=Protocol(
        comparison=f"charged by the sample and pass, on each data set: {KEEP} against {PLUS}, and {CLAIMED} with kept "
        f"uploads against {KEEP} alone; total joules saved and test accuracy, mean over four settings, seed by seed",
        null=f"the saving is 0 % or less, or {LOSS:g} points of accuracy or more are lost",
        rule="each of the two saves without a loss if the 95 % interval of its saving lies above 0 and that of its "
        f"accuracy above -{LOSS:g} points and not wholly below 0, on both data sets. Keeping changes nothing that is "
        "trained on, but on a GPU runs in other batches round otherwise, so accuracies need not be the very same. "
        "Other recipes are reported without a claim.",
    ),
    known="table1, plus and plus_equal, on seeds 0-9; none of these recipes with either way to charge",
    decisive=_decisive,
    tables=(Table("training_effort", saving_rows, saving_markdown),),
    figures=(Figure("training_effort", front_panels, _title, _draw),),
)
