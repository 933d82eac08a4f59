"""What the figures say in words: numbers with their units, and a title that states what is seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from hatdfed.report.run_data import CAUSES, LastLinks, Vector, finite


class EnergyUnit(NamedTuple):
    """A unit and how many joules it is."""

    symbol: str
    joules: float


def energy_unit(largest: float) -> EnergyUnit:
    """J, kJ or MJ, so that `largest` is written with few digits.

    >>> energy_unit(3420).symbol
    'kJ'
    """
    rounded = float(f"{abs(largest):.3g}")  # 999.9 J is written 1 kJ
    if rounded >= 1e6:
        return EnergyUnit("MJ", 1e6)
    return EnergyUnit("kJ", 1e3) if rounded >= 1e3 else EnergyUnit("J", 1.0)


def format_joules(joules: float, sd: float = 0.0) -> str:
    """Three digits and a unit, and the spread where there is one.

    >>> format_joules(3421.7), format_joules(0), format_joules(3421.7, 98)
    ('3.42 kJ', '0 J', '3.42 ± 0.10 kJ')
    """
    unit = energy_unit(joules)
    value, around = joules / unit.joules, sd / unit.joules
    decimals = 2 - int(np.floor(np.log10(value))) if 0 < value < 100 else 0
    if round(around, decimals) > 0:
        return f"{value:,.{decimals}f} ± {around:,.{decimals}f} {unit.symbol}"
    return f"{value:,.0f} {unit.symbol}" if value >= 999.5 else f"{value:.3g} {unit.symbol}"


def format_percent(percent: float, sd: float = 0.0) -> str:
    """One decimal, and the spread where there is one.

    >>> format_percent(91.234), format_percent(91.234, 0.42)
    ('91.2 %', '91.2 ± 0.4 %')
    """
    if not np.isfinite(percent):
        return "not reported"
    return f"{percent:.1f} ± {sd:.1f} %" if sd > 0 else f"{percent:.1f} %"


def format_number(value: float, sd: float = 0.0) -> str:
    """Three digits, and the spread where there is one.

    >>> format_number(16.54), format_number(1234.5), format_number(16.54, 3.21)
    ('16.5', '1,234', '16.5 ± 3.2')
    """
    if not np.isfinite(value):
        return "not reported"
    decimals = int(np.clip(2 - np.floor(np.log10(abs(value))), 0, 3)) if value else 1
    return f"{value:,.{decimals}f} ± {sd:,.{decimals}f}" if sd > 0 else f"{value:,.{decimals}f}"


def accuracy_finding(mean: Vector, rounds: int | None = None) -> str:
    """How mean accuracy went, in a sentence; `rounds` where there are more than values."""
    numbers, rounds = finite(mean), rounds or len(mean)
    if not len(numbers):
        return "No accuracy was reported"
    first, last = format_percent(numbers[0]), format_percent(numbers[-1])
    if rounds == 1:
        return f"Mean accuracy is {last} after one round"
    if first == last:
        return f"Mean accuracy begins and ends at {last} over {rounds} rounds"
    went = "rises" if numbers[-1] > numbers[0] else "falls"
    return f"Mean accuracy {went} from {first} to {last} over {rounds} rounds"


def energy_finding(spent: Mapping[str, Vector]) -> str:
    """What was spent and mostly on what, in a sentence; from cumulative joules."""
    total = sum(joules[-1] for joules in spent.values())
    most = max(spent, key=lambda cause: spent[cause][-1])
    if total <= 0:
        return "No energy was spent"
    return f"{format_joules(total)} spent, {100 * spent[most][-1] / total:.0f} % of it on {CAUSES[most]}"


def half_way_finding(joules: Vector, mean: Vector) -> str:  # [R] so far, [R]
    """What all of the energy brought, and what half of it did, in a sentence."""
    if not len(finite(mean[-1:])):
        return f"No accuracy was reported at the end, after {format_joules(joules[-1])}"
    half = mean[joules <= joules[-1] / 2][-1:]
    if joules[-1] <= 0:
        return f"{format_percent(mean[-1])} mean accuracy without any energy"
    all_of_it = f"{format_joules(joules[-1])} bring {format_percent(mean[-1])} mean accuracy"
    return f"{all_of_it}; half of that brings {format_percent(half[0])}" if len(finite(half)) else all_of_it


def links_finding(links: LastLinks, num_servers: int, round_number: float) -> str:
    """How many of the possible links there were, in a sentence."""
    possible, lost = num_servers * (num_servers - 1), int((~links.delivered).sum())
    if not len(links.sender):
        return f"No link was drawn in round {round_number:.0f}"
    drawn = f"{len(links.sender):,} of {possible:,} possible links were drawn in round {round_number:.0f}"
    return f"{drawn}, {lost} not delivered" if lost else drawn


def best_finding(name: str, accuracy: float, num_methods: int) -> str:
    """Which method ends highest, in a sentence."""
    if not np.isfinite(accuracy):
        return "No accuracy was reported"
    return f"{name} ends {'highest, ' if num_methods > 1 else ''}at {format_percent(accuracy)} validation accuracy"


def front_finding(names: Sequence[str], num_methods: int) -> str:
    """Which methods are on the front, in a sentence."""
    if not names:
        return "No test accuracy was reported"
    if len(names) > 4:
        return f"{len(names)} of {num_methods} methods are on the Pareto front of energy and test accuracy"
    listed = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
    return f"On the Pareto front of energy and test accuracy: {listed}"


def cost_finding(joules: Mapping[str, float]) -> str:
    """Which method spends least and which one most, in a sentence."""
    least, most = min(joules, key=lambda name: joules[name]), max(joules, key=lambda name: joules[name])
    low, high = joules[least], joules[most]
    if format_joules(low) == format_joules(high):
        return f"{'Every method' if len(joules) > 1 else least} spends {format_joules(low)}"
    times = f"{high / low:,.{0 if high > 10 * low else 1}f} times as much" if low > 0 else format_joules(high)
    return f"{least} spends least, {format_joules(low)}; {most} spends {times}"


def regret_finding(name: str, regret: float, played: float, bound: float | None) -> str:
    """What a method missed, and how much of what theory allows that is, in a sentence."""
    if not np.isfinite(regret):
        return "No regret was reported"
    missed = f"{name} misses {format_number(regret)} of utility in {played:.0f} round{'s' if played > 1 else ''}"
    if not bound:
        return missed
    share = 100 * regret / bound
    return f"{missed}, {'less than 1' if share < 1 else f'{share:.0f}'} % of its standard bound"


def favourite_finding(use: Mapping[str, Sequence[Vector]]) -> str:  # name -> [N, N] percent of rounds, of each seed
    """How unevenly the first method draws that does not keep to the same links, in a sentence.

    Every seed is another world with another favourite, so links are not averaged over seeds, only what is found.
    """
    for name, seeds in use.items():
        links = [share[~np.eye(len(share), dtype=bool)] for share in seeds]
        if any(((shares > 0) & (shares < 100)).any() for shares in links):
            most, least = (np.mean([end(shares) for shares in links]) for end in (np.max, np.min))
            return f"{name} draws its favourite link in {most:.0f} % of the rounds, its rarest in {least:.0f} %"
    return "Every method keeps to the same links in all rounds"


def seeds_note(counts: Sequence[int], spread: str) -> str:
    """How many seeds stand behind a picture, and what shows their spread."""
    fewest, most = min(counts), max(counts)
    if most == 1:
        return "One seed each."
    return f"{most if fewest == most else f'{fewest} to {most}'} seeds each, {spread} ± 1 standard deviation over them."
