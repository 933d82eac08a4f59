"""The page about hat-dfed-plus: its generated parts cope with runs that are missing, and all of them are used."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def blocks(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import plus_blocks

    yield plus_blocks
    for name in ("plus_blocks", "paper_blocks"):
        sys.modules.pop(name, None)


@pytest.fixture
def nothing_played():
    names = ("plus_summary", "plus", "plus_equal_footing", "plus_regimes", "plus_ablation", "plus_search")
    return SimpleNamespace(tables={name: [] for name in names}, markdown={}, files={})


def difference(mean, half=None, pairs=5):
    ends = {"low": None, "high": None} if half is None else {"low": mean - half, "high": mean + half}
    return {"mean": mean, **ends, "pairs": pairs}


def test_without_results_every_part_says_so(blocks, nothing_played):
    assert blocks.short(nothing_played) == "Not run yet."
    assert blocks.which_links(nothing_played) == "Not run yet."
    assert "`plus_search`, `plus_search_again`, `plus_search_many`" in blocks.search(nothing_played)


def test_a_method_that_is_more_accurate_is_named_with_its_price(blocks, nothing_played):
    ahead = {"avg_accuracy_points": difference(-4.0, 1.0), "total_energy_percent": difference(95.0, 1.0)}
    row = {"dataset": "digits", "servers": 50, "method": "rnd", "link_energy_mj": (1.0, 0.1), "plus_is_ahead_by": ahead}
    nothing_played.tables["plus"] = [row]
    assert "`rnd` on digits, 50 servers, -4.0 (-5.0 to -3.0) points for 20 × its energy" in blocks.short(nothing_played)


def test_regimes_of_one_seed_are_not_judged(blocks, nothing_played):
    found = [
        {"avg_accuracy_points": each, "link_energy_percent": difference(2.0)}
        for each in (difference(0.5, pairs=1), difference(-0.2, 0.1), difference(0.0, 0.3))
    ]
    nothing_played.tables["plus_regimes"] = [
        {"links": "random links, as many", "plus_is_ahead_by": each} for each in found
    ]
    text = blocks.which_links(nothing_played)
    assert text.startswith("- 3 regimes with larger fleets, against as many links drawn at random: -0.2 to +0.5 points")
    assert text.endswith("distinguishably more accurate in 0 of 2, less in 1.")


def rival(method, accuracy, link_mj, ahead, servers=50):
    differences = {
        "avg_accuracy_points": difference(ahead, 0.5),
        "total_energy_percent": difference(80.0 + ahead, 1.0),
        "link_energy_percent": difference(-25.0, 1.0),
    }
    place = {"dataset": "digits", "servers": servers, "label_concentration": 0.3, "device_online_probability": 0.5}
    return {
        **place, "method": method, "avg_accuracy": (accuracy, 1.0), "link_energy_mj": (link_mj, 0.1),
        "plus_is_ahead_by": differences,
    }  # fmt: skip


def test_rivals_are_shown_one_by_one_beside_their_mean(blocks):
    rows = [rival("rnd", 80.0, 60.0, 2.0), rival("d-psgd", 50.0, 20.0, 32.0), rival("hat-dfed", 81.9, 1.0, 0.1)]
    assert blocks.saved_span(rows, rows[0]) == "82.0 to 112.0"
    assert blocks.lead_over_best(rows, rows[0]) == "+2.0 (+1.5 to +2.5)"


def test_what_a_rival_spends_less_is_of_the_recipes_joules(blocks):
    assert blocks.spent_less([rival("sgp", 80.0, 4.0, 1.0)]) == "- 50 servers: `sgp` 20 %."


def test_the_lead_at_the_same_joules_is_said_beside_the_lead_at_fewer(blocks, nothing_played, monkeypatch):
    ahead = {"avg_accuracy_points": difference(2.0, 0.5), "link_energy_percent": difference(-10.0, 1.0)}
    nothing_played.tables["plus_regimes"] = [{"links": "random links, as dear", "plus_is_ahead_by": ahead}]
    monkeypatch.setattr(blocks, "_at_its_joules", lambda paper: [0.4, 1.5])
    text = blocks.which_links(nothing_played)
    assert "for 10.0 % more link energy" in text
    assert "+0.4 to +1.5 points; above the line in 2 of 2 regimes." in text
    assert "by rounds without links only" in text, "what this rival does not show is said beside it"


def test_every_generated_part_has_its_place(blocks, monkeypatch):
    from paper_blocks import Reproduction

    monkeypatch.setattr(Reproduction, "missing", lambda *_, **__: "")  # takes seconds, and only its name is asked for
    pages = ("docs/hat-dfed-plus.md", "docs/evaluation.md")
    page, brief = ((ROOT / name).read_text(encoding="utf-8") for name in pages)
    made = set(blocks.plus_blocks(Reproduction()))
    assert set(re.findall(r"<!-- ([\w-]+) -->", page)) == made - {"plus-brief"}
    assert "<!-- plus-brief -->" in brief
