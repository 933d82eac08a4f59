"""Titles of figures: sentences that state what a figure shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hatdfed.report.formatting import format_joules, format_number, format_percent
from hatdfed.report.run_data import CAUSES, LastLinks, Vector, finite
from hatdfed.runs.duration import format_seconds


def accuracy_finding(mean: Vector, rounds: int | None = None) -> str:
    """State how mean accuracy developed; `rounds` is given if there are more rounds than values."""
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
    """State how much was spent and on what most of it, from cumulative joules."""
    total = sum(joules[-1] for joules in spent.values())
    most = max(spent, key=lambda cause: spent[cause][-1])
    if total <= 0:
        return "No energy was spent"
    return f"{format_joules(total)} spent, {100 * spent[most][-1] / total:.0f} % of it on {CAUSES[most]}"


def half_way_finding(joules: Vector, mean: Vector) -> str:  # [R] so far, [R]
    """State the accuracy reached with all of the energy and with half of it."""
    if not len(finite(mean[-1:])):
        return f"No accuracy was reported at the end, after {format_joules(joules[-1])}"
    half = mean[joules <= joules[-1] / 2][-1:]
    if joules[-1] <= 0:
        return f"{format_percent(mean[-1])} mean accuracy without any energy"
    all_of_it = f"{format_joules(joules[-1])} bring {format_percent(mean[-1])} mean accuracy"
    return f"{all_of_it}; half of the energy brings {format_percent(half[0])}" if len(finite(half)) else all_of_it


def time_finding(seconds: Vector, mean: Vector) -> str:  # [R] so far, [R]
    """State the accuracy reached by the end, and when."""
    last = format_percent(mean[-1]) if len(finite(mean[-1:])) else "No"
    return f"{last} mean accuracy after {format_seconds(float(seconds[-1]))} of simulated time"


def confusion_finding(shares: Vector) -> str:  # [C, C] percent of the true class
    """State which class is recognised worst, and what it is most often taken for."""
    right = np.diag(shares)
    worst = int(np.nanargmin(right))
    others = np.where(np.arange(len(shares)) == worst, -1.0, shares[worst])
    taken = int(others.argmax())
    said = f"Class {worst} is recognised worst: {format_percent(right[worst])} of its samples"
    return f"{said}, {format_percent(others[taken])} are taken for {taken}" if others[taken] > 0 else said


def groups_finding(found: Mapping[str, Any]) -> str:
    """State how many groups were found and since when; `found` is that of `summarise_groups`."""
    groups, alone, waiting = (len(found[name]) for name in ("groups", "alone", "waiting"))
    parts = [f"{groups} group{'' if groups == 1 else 's'} of servers" if groups else "No group of servers"]
    parts += [f"{count} {word}" for count, word in ((alone, "alone"), (waiting, "not introduced")) if count]
    listed = f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else parts[0]
    return f"{listed}, unchanged since round {found['groups_since'] + 1}"


def verdicts_finding(inside: Vector, outside: Vector) -> str:
    """State the mean verdicts on servers of one group and of different groups."""
    means = ((finite(inside), "inside groups"), (finite(outside), "between them"))
    known = [f"{values.mean():+.2f} {where}" for values, where in means if len(values)]
    return f"Mean verdict {', '.join(known)}".replace("-", "−") if known else "No verdict is known yet"


def describe_verdicts(round_number: float) -> str:
    """Explain to somebody who knows no verdicts what their picture shows."""
    return (
        f"How each receiver (row) judges the models of each sender (column) after round {round_number:.0f}: "
        "1\u00a0is harmless, −1\u00a0harmful. Grey: unknown."
    )


GROUPS_EXPLAINED = (
    "Servers of one colour exchange models. Waiting: groups are not decided yet. Alone: it fits no group. "
    "Introduced again: its group was decided once more."
)


def links_finding(links: LastLinks, num_servers: int, round_number: float) -> str:
    """State how many of the possible links were drawn."""
    possible, lost = num_servers * (num_servers - 1), int((~links.delivered).sum())
    if not len(links.sender):
        return f"No link was drawn in round {round_number:.0f}"
    drawn = f"{len(links.sender):,} of {possible:,} possible links were drawn in round {round_number:.0f}"
    return f"{drawn}, {lost} not delivered" if lost else drawn


def best_finding(name: str, accuracy: float, num_methods: int) -> str:
    """State which of the drawn methods has the highest mean at the end; that is no test of whether it is better."""
    if not np.isfinite(accuracy):
        return "No accuracy was reported"
    if num_methods == 1:
        return f"{name} ends at {format_percent(accuracy)} validation accuracy"
    return f"Highest mean validation accuracy of those shown: {format_percent(accuracy)} ({name})"


def front_finding(names: Sequence[str], num_methods: int) -> str:
    """State which methods are on the Pareto front."""
    if not names:
        return "No validation accuracy was reported"
    if len(names) > 4:
        return f"{len(names)} of {num_methods} methods are on the Pareto front of validation accuracy and energy"
    listed = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
    return f"On the Pareto front of validation accuracy and energy: {listed}"


def cost_finding(joules: Mapping[str, float]) -> str:
    """State which method spends least and which one most."""
    least, most = min(joules, key=lambda name: joules[name]), max(joules, key=lambda name: joules[name])
    low, high = joules[least], joules[most]
    if format_joules(low) == format_joules(high):
        return f"{'Every method' if len(joules) > 1 else least} spends {format_joules(low)}"
    return f"{least} spends least, {format_joules(low)}; {most} spends {_compare_joules(high, low)}"


def _compare_joules(high: float, low: float) -> str:
    """State how much more the higher energy is: in percent where it is less than half as much again."""
    if low <= 0:
        return format_joules(high)
    ratio = high / low
    if ratio >= 1.5:
        return f"{ratio:,.{0 if ratio > 10 else 1}f} times as much"
    more = f"{100 * (ratio - 1):.0f}"
    return "as much" if more == "0" else f"{more} % more"


def regret_finding(name: str, regret: float, played: float, bound: float | None) -> str:
    """State the regret of a method and its share of the theoretical bound."""
    if not np.isfinite(regret):
        return "No regret was reported"
    said = f"The regret of {name} is {format_number(regret)} after {played:.0f} round{'s' if played > 1 else ''}"
    if not bound:
        return said
    share = 100 * regret / bound
    return f"{said}, {'less than 1' if share < 1 else f'{share:.0f}'} % of the standard bound"


def link_use_finding(use: Mapping[str, Sequence[Vector]]) -> str:  # name -> [N, N] percent of rounds, of each seed
    """State how unevenly links are drawn by the first method that does not always draw the same ones.

    Every seed is another world with another most frequent link: the shares are averaged over seeds, not the matrices.
    """
    for name, seeds in use.items():
        links = [share[~np.eye(len(share), dtype=bool)] for share in seeds]
        if any(((shares > 0) & (shares < 100)).any() for shares in links):
            most, least = (np.mean([end(shares) for shares in links]) for end in (np.max, np.min))
            return f"{name} draws its most frequent link in {most:.0f} % of the rounds, its rarest in {least:.0f} %"
    return "Every method keeps to the same links in all rounds"


def format_seeds(counts: Sequence[int], spread: str) -> str:
    """State the number of seeds and what shows their standard deviation."""
    fewest, most = min(counts), max(counts)
    if most == 1:
        return "One seed each." if len(counts) > 1 else "One seed."
    return f"{most if fewest == most else f'{fewest} to {most}'} seeds each, {spread} ± 1 standard deviation over them."
