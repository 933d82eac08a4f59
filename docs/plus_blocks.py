"""What there is to say about `hat-dfed-plus`, as Markdown, from `paper/results`; `generate.py` puts it in its place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paper_blocks import PAPER, Reproduction

from hatdfed.setup.methods import method_named
from hatdfed_paper.claims import Claims
from hatdfed_paper.experiments import EXPERIMENTS
from hatdfed_paper.experiments.plus_regimes import AS_DEAR, AS_MANY, LEARNED, link_panels, points_above_random
from hatdfed_paper.experiments.plus_search import LINKS_AT_MOST, SWEEPS, TOLERATED, markdown_by_sweep
from hatdfed_paper.figure_parts import span
from hatdfed_paper.markdown import format_difference, table
from hatdfed_paper.plan import BASELINES, EXPLORE, FULL, PLUS, SETTING
from hatdfed_paper.results import Results, read_all
from hatdfed_paper.rows import Row
from hatdfed_paper.tables import all_tables

# Ways to draw links that are compared with the recipe's.
_WAYS = {
    AS_MANY: "as many links drawn at random",
    AS_DEAR: "links drawn at random, in so few rounds that they cost no more",
    LEARNED: "links that a bandit learns",
}
# Tables that fill a screen, and how they are called where they are folded away.
_FOLDED = {
    "plus": "Every method as it is",
    "plus_equal_footing": "Every method on equal footing",
    "plus_dense": "The baselines with its loss, pace and finish, whole models in every round",
    "plus_ablation": "Without each part",
    "plus_regimes": "Recipe, random links and learned links in each regime",
    "regimes": "What is saved at each pair of prices, in brackets the links' share of the baselines' energy",
}


def plus_blocks(paper: Reproduction) -> dict[str, str]:
    """For docs/hat-dfed-plus.md and, in a few lines, docs/evaluation.md."""
    folded = {f"table-{name}": _folded(words, paper.markdown.get(name, "")) for name, words in _FOLDED.items()}
    return folded | {
        "plus-brief": brief(paper),
        "plus-short": short(paper),
        "plus-recipe": recipe_table(method_named(PLUS).settings),
        "plus-search": search(paper),
        "plus-summary": paper.markdown.get("plus_summary", "Not run yet."),
        "plus-energy-split": paper.markdown.get("plus_energy_split", "Not run yet."),
        "plus-spent": spent_less(paper.tables["plus_equal_footing"]),
        "plus-which": which_links(paper),
        "plus-missing": paper.missing(plus=True),
    }


def brief(paper: Reproduction) -> str:
    """In short: with five servers, against the baselines as they are and against the best with equal parts."""
    as_they_are, equal = paper.tables["plus"], paper.tables["plus_equal_footing"]
    lines = [
        f"- {_place(row)}: {_with(row['avg_accuracy_points'])} points against the mean of `rnd`, `d-psgd`, `dac` and "
        f"`sgp` as their authors describe them, {row['total_energy_percent']['mean']:.0f} % less energy on average "
        f"({saved_span(as_they_are, row)} % less than each). With the same loss, learning-rate decay, last rounds and "
        f"codec for all: {lead_over_best(equal, row)} points against the best of them."
        for row in paper.tables["plus_summary"]
        if row["avg_accuracy_points"] and row["servers"] == 5
    ]
    return "\n".join(lines) or "Not run yet."


def explored_lead() -> str:
    """The recipe's lead over sgp at equal link joules, on embedded data: exploratory."""
    folder = PAPER / "explored"
    rows = all_tables(Results(read_all(folder, EXPERIMENTS, EXPLORE.name)), Claims.read(), EXPLORE)["frontier"]
    few, many = (
        _with(row["plus_is_ahead_by"])
        for row in rows
        if (row["energy"], row["rival"]) == ("link", "sgp") and row["servers"]
    )
    return (
        f"At equal link energy on digits, seeds 20 to 24, its lead over `sgp` with the same parts is {few} points with "
        f"five servers and {many} with 20"
    )


def short(paper: Reproduction) -> str:
    """The result in a few lines, what speaks against it included."""
    rows, as_they_are = paper.tables["plus_summary"], paper.tables["plus"]
    lines = [
        f"- {_place(row)}: {_with(row['avg_accuracy_points'])} points against the mean of the four, "
        f"{row['total_energy_percent']['mean']:.1f} % less energy on average ({saved_span(as_they_are, row)} % "
        f"less than each; {row['link_energy_percent']['mean']:.1f} % less on links); at least as accurate as the best "
        f"in {row['as_accurate_as_the_best']} of {row['settings']} settings, its worst server at least as good as the "
        f"best server of each in {row['worst_over_best']} of {row['settings']}."
        for row in rows
        if row["avg_accuracy_points"]
    ]
    lines += _equal_footing(rows, paper.tables["plus_equal_footing"])
    return "\n".join([*lines, *_dense(rows), *_behind(as_they_are)]) or "Not run yet."


def _equal_footing(rows: Sequence[Row], rivals: Sequence[Row]) -> list[str]:
    known = [row for row in rows if row["equal_footing"]]
    if not known:
        return []
    good, every = (sum(row["equal_footing"][name] for row in known) for name in ("not_below", "settings"))
    points = "; ".join(
        f"{_with(row['equal_footing']['against_mean'])} points on {_place(row)} "
        f"({lead_over_best(rivals, row)} against the best of them)"
        for row in known
        if row["equal_footing"]["against_mean"]
    )
    return [
        "- On equal footing (its loss, cool-down, finish and codec for all, and links in so few rounds that they cost "
        f"no more) it is not distinguishably below the best of the four in {good} of {every} settings. "
        f"Against their mean: {points}. The others spend less on links than it does, with 50 servers up to a quarter "
        "less, so these leads over the best of them are not leads at equal energy."
    ]


def _dense(rows: Sequence[Row]) -> list[str]:
    parts = []
    for row in (row for row in rows if row["dense"] and row["dense"]["mean"]):
        gap = row["dense"]["largest_gap"]
        parts.append(
            f"{_with(row['dense']['mean'])} points on {_place(row)}, at worst {_with(gap)} "
            f"(`{gap['method']}`, {gap['setting']})"
        )
    if not parts:
        return []
    return [f"- Against the best of the four with its loss and finish and float32 in every round: {'; '.join(parts)}."]


def _behind(rows: Sequence[Row]) -> list[str]:
    """Methods as they are that are distinguishably more accurate, and how much more they spend."""
    found = []
    for row in rows:
        points, saved = (row["plus_is_ahead_by"][name] for name in ("avg_accuracy_points", "total_energy_percent"))
        if points and points["high"] is not None and points["high"] < 0:
            times = 1 / (1 - saved["mean"] / 100)
            found.append(f"`{row['method']}` on {_place(row)}, {_with(points)} points for {times:.0f} × its energy")
    if not rows:
        return []
    words = "; ".join(found) or "none"
    rivals = ", ".join(f"`{name}`" for name in dict.fromkeys(row["method"] for row in rows) if name != PLUS)
    return [f"- Of the methods that were run here ({rivals}), distinguishably more accurate as they are: {words}."]


# The four baselines one by one, beside their mean


def saved_span(rows: Sequence[Row], place: Row) -> str:
    """Percent of the energy saved against each of the four in each setting of a place, from least to most."""
    saved = [row["plus_is_ahead_by"]["total_energy_percent"]["mean"] for row in _four(rows, place)]
    return span(saved, ".1f") if saved else "–"


def lead_over_best(rows: Sequence[Row], place: Row) -> str:
    """Points ahead of the most accurate of the four; over several settings from least to most."""
    settings: dict[tuple[float, ...], list[Row]] = {}
    for row in _four(rows, place):
        settings.setdefault(tuple(row[name] for name in SETTING), []).append(row)
    best = [max(rivals, key=lambda row: float(row["avg_accuracy"][0])) for rivals in settings.values()]
    leads = [row["plus_is_ahead_by"]["avg_accuracy_points"] for row in best]
    if len(leads) == 1:
        return format_difference(leads[0], 1)
    return span([lead["mean"] for lead in leads], "+.1f").replace("−", "-") if leads else "–"


def spent_less(rows: Sequence[Row]) -> str:
    """How many percent less than the recipe each rival spends on links on equal footing, by size of the fleet."""
    parts = []
    for servers in sorted({row["servers"] for row in rows}):
        less: dict[str, list[float]] = {}
        for row in rows:
            ahead = row["plus_is_ahead_by"]["link_energy_percent"]
            if row["servers"] == servers and row["method"] != PLUS and ahead:
                # Of the rival's joules the recipe spends 100 - ahead percent.
                less.setdefault(row["method"], []).append(100 - 1e4 / (100 - ahead["mean"]))
        each = ", ".join(f"`{name}` {span(values, '.0f')} %" for name, values in less.items())
        parts.append(f"- {servers} servers: {each}.")
    return "\n".join(parts) or "Not run yet."


def _four(rows: Sequence[Row], place: Row) -> list[Row]:
    """Rows of the four in one place that can be compared with the recipe."""
    here = (place["dataset"], place["servers"])
    return [row for row in rows if row["method"] in BASELINES and (row["dataset"], row["servers"]) == here]


def which_links(paper: Reproduction) -> str:
    """What it brings to choose links by price, or to learn them, at the same number of links."""
    rows: Sequence[Row] = paper.tables["plus_regimes"]
    lines = []
    for row in paper.tables["plus_ablation"]:
        if row["part"] == "thrift":
            ahead = row["plus_is_ahead_by"]
            lines.append(
                f"- {row['dataset']}, 5 servers, against links drawn at random: "
                f"{_with(ahead['avg_accuracy_points'])} points, {_with(ahead['total_energy_percent'])} % of the energy "
                "saved."
            )
    for name, words in _WAYS.items():
        known = [row["plus_is_ahead_by"] for row in rows if row["links"] == name and row["plus_is_ahead_by"]]
        points = [each["avg_accuracy_points"] for each in known if each["avg_accuracy_points"]]
        if not points:
            continue
        saved = [each["link_energy_percent"]["mean"] for each in known if each["link_energy_percent"]]
        sure = [each for each in points if each["low"] is not None]
        above, below = sum(each["low"] > 0 for each in sure), sum(each["high"] < 0 for each in sure)
        lines.append(
            f"- {len(points)} regimes with larger fleets, against {words}: {_span([e['mean'] for e in points])} "
            f"points, {_saved(saved)}, {span([each['pairs'] for each in points], '.0f')} "
            f"seeds; distinguishably more accurate in {above} of {len(sure)}, less in {below}."
        )
        if name == AS_DEAR and (gaps := _at_its_joules(paper)):
            lines.append(
                "- At the same link energy, interpolated linearly between those two ways to draw at random: "
                f"{_span(gaps)} points; above the line in {sum(gap > 0 for gap in gaps)} of {len(gaps)} regimes. "
                "This competitor saves energy by rounds without links only, never by degree; `sgp` with the "
                "same parts, which sends fewer models more often, is not in this comparison."
            )
    return "\n".join(lines) or "Not run yet."


def _saved(percent: Sequence[float]) -> str:
    if max(percent) < 0:
        return f"for {span([-each for each in percent], '.1f')} % more link energy"
    return f"{_span(percent)} % of the link energy saved"


def _at_its_joules(paper: Reproduction) -> list[float]:
    panels = [panel for dataset in FULL.datasets for panel in link_panels(paper.results, paper.claims, dataset, FULL)]
    return [gap for panel in panels if (gap := points_above_random(panel)) is not None]


def search(paper: Reproduction) -> str:
    """Every sweep that has been played, what its rule chose, and which ones are still to come."""
    rows: Sequence[Row] = paper.tables["plus_search"]
    played = markdown_by_sweep(rows)
    parts = [
        f"A part that saves energy may cost {TOLERATED:g} points. Links may cost {100 * LINKS_AT_MOST:g} % of those of "
        "the four baselines on average."
    ]
    for name, text in played.items():
        chosen = [row["words"] for row in rows if row["sweep"] == name and row["is_chosen"]]
        what = f"Chosen: {'; '.join(chosen)}." if chosen else "The rule changes nothing."
        parts += [_folded(f"{name}: {EXPERIMENTS[name].question}", text), f"`{name}`. {what}"]
    absent = [f"`{name}`" for name in SWEEPS if name not in played]
    return "\n\n".join([*parts, *([f"Not run yet: {', '.join(absent)}."] if absent else [])])


def recipe_table(recipe: Any) -> str:
    """The parts with their settings of today."""
    policy, schedule, learner = recipe["policy"], recipe["schedule"], recipe.get("learner", {})
    lines = [
        ("label-prior loss", f"loss: {{name: {recipe['loss']['name']}}}", "accounts for the server's label shares",
         "label shares must be known"),
        ("cool-down", f"learner: {{cool_down: {learner.get('cool_down', 0):g}}}", "the learning rate decays over "
         "this last share of the run", "nothing"),
        ("rounds without links", f"schedule: {{every: {schedule['every']}}}",
         "links in every m-th round only; servers train in every round", "accuracy"),
        ("finish", f"schedule: {{finish_rounds: {schedule['finish_rounds']}}}",
         "all links in this number of last rounds", "joules"),
        ("codec", f"codec: {recipe['codec']}", "fewer bits per parameter, with error feedback", "almost nothing"),
        ("balanced links", f"policy: {{name: {policy['name']}, degree: {_yaml(policy['degree'])}}}",
         "every server receives and sends this number of models; null grows with the fleet",
         "work of the coordinator"),
        ("known prices", f"policy: {{thrift: {policy['thrift']:g}}}", "how strongly cheap links are preferred; prices "
         "need not be learned", "almost nothing"),
        ("merge", f"aggregator: {{name: {recipe['aggregator']['name']}}}", "received models are averaged", "nothing"),
    ]  # fmt: skip
    cells = [[part, f"`{setting}`", does, costs] for part, setting, does, costs in lines]
    return table(("part", "setting", "what it does", "what it costs"), cells)


def _yaml(value: int | None) -> str:
    return "null" if value is None else str(value)


def _folded(words: str, text: str) -> str:
    return f"<details><summary>{words}</summary>\n\n{text or 'Not run yet.'}\n\n</details>"


def _place(row: Row) -> str:
    return f"{row['dataset']}, {row['servers']} servers"


def _with(difference: Row) -> str:
    return format_difference(difference, 1)


def _span(values: Sequence[float]) -> str:
    """From the least to the greatest, with signs."""
    return " to ".join(dict.fromkeys(f"{end:+.1f}" for end in (min(values), max(values))))
