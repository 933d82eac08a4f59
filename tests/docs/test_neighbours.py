"""The neighbours of each part of hat-dfed-plus are cited where the part is described."""

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).resolve().parents[2] / "docs/hat-dfed-plus.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("part", "cited"),
    [
        ("The loss", ["logit adjustment"]),
        ("The finish", ["2507.06542"]),
        ("Rounds without links, and fewer bits", ["Seide", "Error feedback fixes SignSGD", "2407.01283", "2602.04352"]),
        ("Balance", ["Teleportation"]),
    ],
)
def test_a_part_names_its_neighbours(part, cited):
    (words,) = re.findall(rf"^\*\*{part}\.\*\*.*?(?=^\*\*|^## )", PAGE, re.DOTALL | re.MULTILINE)
    assert [name for name in cited if name not in words] == []


def test_who_finds_that_training_dominates_is_cited_where_energy_is_split():
    (words,) = re.findall(r"^## Where the energy goes\n(.*?)^## ", PAGE, re.DOTALL | re.MULTILINE)
    assert "2502.20242" in words
