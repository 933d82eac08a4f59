from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from hatdfed.core.policies.link_bandit import theorem_learning_rate
from hatdfed.core.regret import printed_bound, standard_bound
from hatdfed_paper.claims import Claims
from hatdfed_paper.experiments import EXPERIMENTS
from hatdfed_paper.figure_parts import lines_of, subtitle
from hatdfed_paper.figures import DIGESTS, figure_data, figure_digests, figure_title, write_figures
from hatdfed_paper.plan import Scale, Settings
from hatdfed_paper.results import Record, ResultFile, Results, run_name

TINY = Scale("smoke", ("digits",), seeds=2, servers=(5,))
CLAIMS = Claims(
    {
        "sparsity": [{"dataset": "digits", "link_share": 0.2, "total_energy_mj": [1.5, 0.1]}],
        "sensitivity": {"best_alpha": 0.6, "best_beta": 0.4},
    }
)
KINDS = ("accuracy", "accuracy-vs-energy", "regret", "sparsity", "sensitivity")
BOTH = ("table1", "sparsity", "sensitivity")


def record(settings: Settings, index: int) -> Record:
    """A run of three rounds that goes a little better for each next point, and for the second seed."""
    seed, level = settings["seed"], 50.0 + index % 17
    curve = {"round": [1, 2, 3], "accuracy": [20.0 + seed, 40.0, level], "total_mj": [0.5, 1.0, 1.5 + 0.1 * index]}
    figures = {"avg_accuracy": level + seed, "total_energy_mj": 1.0 + 0.1 * index}
    return {"settings": settings, "figures": figures, "curve": {**curve, "regret": [1.0, 1.5 + seed, 2.0 + seed]}}


def made_up(experiments: Iterable[str] = BOTH, scale: Scale = TINY) -> dict[str, Record]:
    """A record for every run, by name."""
    runs = [
        {**found, "seed": seed}
        for name in experiments
        for found in EXPERIMENTS[name].all_points(scale)
        for seed in range(2)
    ]
    return {run_name(settings): record(settings, index) for index, settings in enumerate(runs)}


def of(records: dict[str, Record]) -> Results:
    return Results({"all": ResultFile(Path("all.json"), "smoke", records)})


def digests(records: dict[str, Record]) -> dict[str, str]:
    return figure_digests(of(records), CLAIMS, TINY)


def changed(records: dict[str, Record], method: str, **where: Any) -> tuple[dict[str, Record], Record]:
    """A copy, and the first of its records that fits."""
    other = copy.deepcopy(records)
    wanted = {"method": method, **where}
    fits = (each for each in other.values() if wanted.items() <= each["settings"].items())
    return other, next(fits)


def differing(mine: dict[str, str], other: dict[str, str]) -> set[str]:
    return {name.removesuffix("-digits.png") for name in mine if mine[name] != other[name]}


def test_every_kind_of_figure_has_a_digest() -> None:
    found = digests(made_up())
    assert list(found) == [f"{kind}-digits.png" for kind in KINDS]
    assert all(len(digest) == 16 and int(digest, 16) >= 0 for digest in found.values())
    assert found == digests(made_up())


def test_a_digest_changes_with_a_number_that_is_drawn_and_with_no_other() -> None:
    records = made_up()
    before = digests(records)
    other, of_rnd = changed(records, "rnd")
    of_rnd["curve"]["accuracy"][1] += 1
    assert differing(before, digests(other)) == {"accuracy", "accuracy-vs-energy"}
    other, of_ours = changed(records, "hat-dfed", link_share=0.2)
    of_ours["figures"]["total_energy_mj"] += 1
    assert differing(before, digests(other)) == {"sparsity"}
    other, of_ours = changed(records, "hat-dfed")
    of_ours["curve"]["regret"][-1] += 1
    assert differing(before, digests(other)) == {"regret"}


def test_a_difference_beyond_four_digits_is_none() -> None:
    records = made_up()
    other, of_rnd = changed(records, "rnd")
    of_rnd["curve"]["accuracy"][1] += 1e-7
    assert digests(other) == digests(records)


def test_published_figures_are_part_of_what_is_drawn() -> None:
    results = of(made_up())
    content = {"sparsity": [], "sensitivity": {"best_alpha": 0.5, "best_beta": 0.4}}
    before, after = (figure_digests(results, claims, TINY) for claims in (CLAIMS, Claims(content)))
    assert differing(before, after) == {"sparsity", "sensitivity"}


def test_a_figure_without_a_line_of_two_points_is_left_out() -> None:
    # Table 1 has one point of each line of the others: γ = 0.3, and α = 0.6 with β = 0.4.
    assert set(digests(made_up(["table1"]))) == {
        f"{kind}-digits.png" for kind in ("accuracy", "accuracy-vs-energy", "regret")
    }
    assert "sparsity-digits.png" in digests(made_up(["table1", "sparsity"]))
    assert digests({}) == {}


def test_files_are_those_of_the_digests(tmp_path: Path) -> None:
    results = of(made_up())
    files = write_figures(results, CLAIMS, TINY, tmp_path / "new")
    expected = figure_digests(results, CLAIMS, TINY)
    assert [file.name for file in files] == [*expected, DIGESTS]
    assert {file.name for file in (tmp_path / "new").iterdir()} == {*expected, DIGESTS}
    assert json.loads(files[-1].read_text(encoding="utf-8")) == expected
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files[:-1])


def test_a_panel_without_results_is_drawn_empty(tmp_path: Path) -> None:
    records = {
        name: each
        for name, each in made_up(["table1"]).items()
        if each["settings"]["label_concentration"] == 0.3 and each["settings"]["method"] in ("hat-dfed", "full")
    }
    assert len(write_figures(of(records), CLAIMS, TINY, tmp_path)) == 4
    data = figure_data(of(records), CLAIMS, TINY)["accuracy-digits.png"]
    assert figure_title(data) == "Digits: validation accuracy over rounds"  # there is no baseline to hold against


def test_digests_need_no_matplotlib() -> None:
    script = (
        "import sys\n"
        "from hatdfed_paper.claims import Claims\n"
        "from hatdfed_paper.figures import figure_digests\n"
        "from hatdfed_paper.plan import SMOKE\n"
        "from hatdfed_paper.results import Results\n"
        "claims = Claims({'sparsity': [], 'sensitivity': {'best_alpha': 0.6, 'best_beta': 0.4}})\n"
        "assert figure_digests(Results({}), claims, SMOKE) == {}\n"
        "sys.exit('matplotlib' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_lines_hold_means_over_seeds_and_what_the_fewest_seeds_are() -> None:
    records = made_up(["sparsity"])
    data = figure_data(of(records), CLAIMS, TINY)["sparsity-digits.png"]
    line = lines_of(data)[0]
    assert (line["x"], line["seeds"]) == ([0.1, 0.2, 0.3, 0.4, 0.5], 2)
    assert (line["accuracy"][0], line["accuracy_error"][0]) == (51.0, 1.0)  # 50 and 52
    assert (line["published_x"], line["published_energy"]) == ([0.2], [1.5])
    assert subtitle(data).startswith("2 seeds, smoke scale")
    records.pop(next(iter(records)))
    fewer = figure_data(of(records), CLAIMS, TINY)["sparsity-digits.png"]
    assert lines_of(fewer)[0]["accuracy_error"][0] == 0.0
    assert subtitle(fewer).startswith("1 seed, smoke scale")


def test_regret_stands_beside_both_bounds() -> None:
    panel = figure_data(of(made_up()), CLAIMS, TINY)["regret-digits.png"]["panels"][0]
    (line,) = panel["lines"]
    assert (line["y"], line["least"], line["most"]) == ([1.0, 2.0, 2.5], [1.0, 1.5, 2.0], [1.0, 2.5, 3.0])
    assert panel["printed"] == pytest.approx(printed_bound(5, 3), rel=1e-3)
    assert panel["standard"][-1] == pytest.approx(standard_bound(20, 6, 3, theorem_learning_rate(5, 3)), rel=1e-3)
