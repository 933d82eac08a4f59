"""Tables for papers."""

from __future__ import annotations

import re
from typing import Any

import pytest

from hatdfed.report.latex import escape, make_comparison_table, make_difference_table, make_sweep_table, make_table


def row_of(method: str, seeds: int = 3, **changes: Any) -> dict[str, Any]:
    figures = {"avg_accuracy": 81.25, "worst_accuracy": 70.0, "links_per_round": 9.0}
    figures |= {"total_energy_megajoules": 0.0034, "link_energy_megajoules": 0.0014}
    row: dict[str, Any] = {"method": method, "seeds": list(range(seeds)), "leaks_test": False, **figures}
    row |= {f"{name}_sd": 0.0002 if "energy" in name else 1.5 for name in figures}
    row |= {"joules_to_target": 2100.0, "simulated_seconds_to_target": 31.6}
    row |= {"avg_accuracy_difference": -1.234, "avg_accuracy_difference_low": -3.0, "avg_accuracy_difference_high": 0.5}
    row |= {f"total_energy_percent_difference{end}": 12.0 for end in ("", "_low", "_high")}
    return row | changes


def point_of(label: str, seeds: int = 3, **changes: Any) -> dict[str, Any]:
    row: dict[str, Any] = {"point": label, "seeds": list(range(seeds)), "leaks_test": False, "is_on_front": False}
    for name in ("validation_accuracy", "avg_accuracy", "worst_accuracy", "total_joules", "link_joules"):
        row |= {name: 50.0, f"{name}_sd": 1.25 if seeds > 1 else None, f"{name}_high": 52.0 if seeds > 1 else None}
    return row | {"links_per_round": 9.0, "links_per_round_sd": 0.0} | changes


def cells_of(table: str) -> list[list[str]]:
    body = table.partition(r"\midrule")[2].partition(r"\bottomrule")[0]
    return [line.strip().removesuffix(r" \\").split(" & ") for line in body.strip().splitlines()]


def test_a_table_has_rules_of_booktabs_and_as_many_cells_as_columns() -> None:
    table = make_table(["a", "b", "c"], [["x", "1", "2"], ["y", "3", "4"]], "Both.", "both")
    rules = [r"\toprule", r"\midrule", r"\bottomrule"]
    assert [line.strip() for line in table.splitlines() if "rule" in line] == rules
    assert r"\begin{tabular}{lrr}" in table
    assert r"\label{tab:both}" in table
    assert cells_of(table) == [["x", "1", "2"], ["y", "3", "4"]]
    assert table.count("{") == table.count("}")


def test_names_are_escaped() -> None:
    assert escape(r"a_b & 5% #1 $x$ {y} ~ ^ \z") == (
        r"a\_b \& 5\% \#1 \$x\$ \{y\} \textasciitilde{} \textasciicircum{} \textbackslash{}z"
    )
    table = make_comparison_table([row_of(r"my_own\input{x} & 5%")])
    assert cells_of(table)[0][0].startswith(r"my\_own\textbackslash{}input\{x\} \&")
    assert "&" not in re.sub(r"\\&| & ", "", table)


def test_what_follows_plus_minus_is_said_in_the_caption() -> None:
    table = make_comparison_table([row_of("rnd"), row_of("full", avg_accuracy=90.0)])
    assert r"mean $\pm$ standard deviation over 3 seeds" in table
    assert cells_of(table)[0][1:4] == [r"81.2 $\pm$ 1.5", r"70.0 $\pm$ 1.5", r"3.40 $\pm$ 0.20"]
    assert "energy (kJ)" in table
    assert r"mean $\pm$ standard deviation over seeds" in make_sweep_table([point_of("a")])
    assert cells_of(make_sweep_table([point_of("a")]))[0][1] == r"50.00 $\pm$ 1.25"


@pytest.mark.parametrize("table", [make_comparison_table([row_of("rnd", 1)]), make_sweep_table([point_of("a", 1)])])
def test_one_seed_has_no_spread(table: str) -> None:
    assert r"\pm" not in table.replace(r"9.00 $\pm$ 0.00", "")
    assert "one seed each" in table


def test_differences_have_their_interval_and_the_reference_has_none() -> None:
    table = make_difference_table([row_of("rnd"), row_of("full"), row_of("far", avg_accuracy_difference=None)], "rnd")
    reference, full, far = cells_of(table)
    assert reference[1:3] == ["reference", "reference"]
    assert full[1] == r"$-$1.23 [$-$3.00, +0.50]"
    assert full[3:] == ["2.10", "31.6"]
    assert far[1] == "--"
    assert "Differences to rnd, paired by seed" in table


def test_a_price_says_how_many_seeds_reached_the_target() -> None:
    some, none = row_of("full", seeds_reached=2), row_of("far", seeds_reached=0, joules_to_target=None)
    table = make_difference_table([some, none], "rnd")
    assert [cells[3] for cells in cells_of(table)] == ["2.10 (2 of 3)", "-- (0 of 3)"]
    assert "the seeds that reached it, whose number is in parentheses" in table


def test_what_saw_the_test_set_is_marked_and_said() -> None:
    for table in (
        make_comparison_table([row_of("rnd"), row_of("leaky", leaks_test=True)]),
        make_sweep_table([point_of("rnd"), point_of("leaky", leaks_test=True)]),
    ):
        assert cells_of(table)[1][0] == r"leaky $\dagger$"
        assert r"$\dagger$: sees the test set" in table


def test_points_on_the_front_have_a_star_and_a_search_shows_no_test_figures() -> None:
    hidden = {"avg_accuracy": None, "worst_accuracy": None}
    table = make_sweep_table([point_of("link_share=0.4", is_on_front=True, **hidden)])
    assert cells_of(table)[0][0] == r"link\_share=0.4 *"
    assert "test (" not in table
