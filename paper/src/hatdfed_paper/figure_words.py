"""What the figures of the experiments say about themselves: titles that follow from the numbers, and subtitles."""

from __future__ import annotations

import math

import numpy as np

from hatdfed_paper.figure_data import OURS, Data, lines_of
from hatdfed_paper.plans import BASELINES, FULL
from hatdfed_paper.plus_figure_data import AS_IT_IS, RANDOM
from hatdfed_paper.plus_plans import PLUS

SETTING = "λ: the smaller, the more servers’ labels differ; ρ: chance of a device to be online."
_NAMES = {"digits": "Digits", "fashion-mnist": "Fashion-MNIST", "cifar-10": "CIFAR-10"}


def title(data: Data) -> str:
    """What is seen, in a sentence."""
    words = {
        "accuracy": _accuracy,
        "accuracy-vs-energy": _accuracy_vs_energy,
        "sparsity": _sparsity,
        "sensitivity": _sensitivity,
        "regret": _regret,
        "front": _front,
        "regimes": _regimes,
        "links": _links,
    }
    return f"{_NAMES.get(data['dataset'], data['dataset'])}: {words[data['kind']](data)}"


def subtitle(data: Data, *notes: str) -> str:
    """How many seeds at least, whether the figures mean anything, and what else a reader has to know."""
    seeds = min(line["seeds"] for line in lines_of(data))
    counted = "1 seed" if seeds == 1 else f"{seeds} seeds"
    scale = "" if data["scale"] == FULL.name else f", {data['scale']} scale: the figures mean nothing"
    return " ".join([f"{counted}{scale}.", *notes])


def setting_name(setting: list[float]) -> str:
    """λ and ρ of a panel or line."""
    return f"λ = {setting[0]:g}, ρ = {setting[1]:g}"


def span(values: list[float], form: str) -> str:
    """From the least to the greatest, or the one that both are.

    >>> span([2.31, 1.04], ".1f"), span([2.31, 2.32], ".1f")
    ('1.0 to 2.3', '2.3')
    """
    low, high = (f"{end:{form}}".replace("-", "−") for end in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def whole(value: float) -> str:
    """Without decimals; a half goes up."""
    return str(math.floor(value + 0.5))


def _accuracy(data: Data) -> str:
    """Where the baselines end, seen from hat-dfed."""
    ahead = [line["y"][-1] - ours["y"][-1] for ours, line in _contests(data)]
    return f"baselines end {_apart(ahead)} {OURS}" if ahead else "validation accuracy over rounds"


def _accuracy_vs_energy(data: Data) -> str:
    """The same where they have spent as much as hat-dfed at its end."""
    ahead = [float(np.interp(ours["x"][-1], line["x"], line["y"])) - ours["y"][-1] for ours, line in _contests(data)]
    if not ahead:
        return "validation accuracy over energy"
    return f"at {OURS}’s energy, baselines are {_apart(ahead)} it"


def _contests(data: Data) -> list[tuple[Data, Data]]:
    """hat-dfed with every baseline, in every panel."""
    panels = [{line["name"]: line for line in panel["lines"]} for panel in data["panels"]]
    return [(lines[OURS], lines[name]) for lines in panels if OURS in lines for name in BASELINES if name in lines]


def _apart(points: list[float]) -> str:
    """How far above or below, in points."""
    if min(points) >= 0:
        return f"{span(points, '.1f')} points above"
    if max(points) <= 0:
        return f"{span([-each for each in points], '.1f')} points below"
    return f"from {-min(points):.1f} points below to {max(points):.1f} above"


def _sparsity(data: Data) -> str:
    """What more links bring and cost, from the least γ to the greatest."""
    lines = lines_of(data)
    gains = [line["accuracy"][-1] - line["accuracy"][0] for line in lines]
    times = [line["energy"][-1] / line["energy"][0] for line in lines]
    shares = [share for line in lines for share in (line["x"][0], line["x"][-1])]
    return (
        f"γ from {min(shares):g} to {max(shares):g} brings {OURS} {span(gains, '.1f')} points of accuracy "
        f"for {span(times, '.1f')} times the energy"
    )


def _sensitivity(data: Data) -> str:
    """How far apart the extremes are."""
    accuracy, energy = ([value for line in lines_of(data) for value in line[name]] for name in ("accuracy", "energy"))
    return (
        f"α and β move accuracy by up to {max(accuracy) - min(accuracy):.1f} points, "
        f"energy by up to {100 * (max(energy) / min(energy) - 1):.0f} %"
    )


def _regret(data: Data) -> str:
    """What is missed, and how much of what theory allows that is."""
    panels = [panel for panel in data["panels"] if panel["lines"]]
    ends = [panel["lines"][0]["y"][-1] for panel in panels]
    shares = [100 * end / panel["standard"][-1] for end, panel in zip(ends, panels, strict=True)]
    rounds = max(panel["lines"][0]["x"][-1] for panel in panels)
    missed = f"{OURS} misses {span(ends, '.0f')} of utility in {rounds} rounds"
    return f"{missed}, {span(shares, '.0f')} % of the standard bound"


def _front(data: Data) -> str:
    """How far above the baselines as they are, and what share of their energy."""
    ahead, share = [], []
    for panel in data["panels"]:
        ways = {line["name"]: line for line in panel["lines"]}
        if PLUS in ways and AS_IT_IS in ways:
            rivals = ways[AS_IT_IS]
            places = [place for place, name in enumerate(rivals["methods"]) if name in BASELINES]
            ahead += [ways[PLUS]["y"][0] - rivals["y"][place] for place in places]
            share += [100 * ways[PLUS]["x"][0] / rivals["x"][place] for place in places]
    if not ahead:
        return "what accuracy costs"
    return f"{PLUS} ends {_apart(ahead)} the baselines with {span(share, '.0f')} % of their energy"


def _regimes(data: Data) -> str:
    """At the paper's prices, which stand in the middle, and over the whole map."""
    lines = lines_of(data)
    middle = lines[len(lines) // 2]["saved"]
    every = [value for line in lines for value in line["saved"]]
    return (
        f"{PLUS} saves {middle[len(middle) // 2]:.0f} % of the energy at the paper’s prices, "
        f"{span(every, '.0f')} % at others"
    )


def _links(data: Data) -> str:
    """How far above the line of random links, at the link joules of the recipe."""
    ahead = [gap for panel in data["panels"] if (gap := above_random(panel)) is not None]
    return f"{PLUS} ends {_apart(ahead)} the line of random links" if ahead else "which links are drawn"


def above_random(panel: Data) -> float | None:
    """Points between the recipe and the line of random links, where that has the recipe's link joules."""
    lines = {line["name"]: line for line in panel["lines"]}
    if PLUS not in lines or RANDOM not in lines:
        return None
    (x,), (y,), line = lines[PLUS]["x"], lines[PLUS]["y"], lines[RANDOM]
    return float(y - np.interp(x, line["x"], line["y"]))
