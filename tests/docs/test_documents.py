"""Documents that fail the build when they are no longer true."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MARKDOWN = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "paper" / "README.md"]
SOURCES = list((ROOT / "src").rglob("*.py"))


def test_generated_parts_are_current():
    done = subprocess.run([sys.executable, "docs/generate.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_candidates_cost_the_worst_server_is_shown():
    page = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"<!-- scale-given-up -->\n(.*?)<!--", page, re.DOTALL)
    heading, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    assert rows
    assert all(re.match(r"[+-]\d", row[heading.index("worst server, validation")]) for row in rows)


def test_the_python_example_of_the_readme_runs():
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(code.strip().splitlines()) <= 16
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}  # beside other tests, more would only get in each other's way
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=one_thread)
    assert done.returncode == 0, done.stderr
    assert "hat-dfed" in done.stdout


@pytest.mark.parametrize("page", MARKDOWN, ids=lambda path: path.name)
def test_links_inside_the_repository_lead_somewhere(page):
    targets = re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text())
    targets += re.findall(r'\b(?:src|srcset)="(?!https?://)([^"]+)"', page.read_text())  # pictures for light and dark
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert missing == []


def test_every_reading_has_an_entry_and_every_entry_is_one():
    entries = set(re.findall(r"^### (D\d+) ", (ROOT / "docs/deviations.md").read_text(), re.MULTILINE))
    assert entries == {f"D{number}" for number in range(1, 21)}
    named = {found for path in SOURCES for found in re.findall(r"\bD\d+\b", path.read_text())}
    assert named <= entries


def test_the_equations_of_both_phases_are_cited_where_they_are_computed():
    text = "\n".join(path.read_text() for path in SOURCES)
    single = {int(number) for number in re.findall(r"Eq\. \((\d+)\)", text)}
    spans = [range(int(a), int(b) + 1) for a, b in re.findall(r"Eqs\. \((\d+)\)–\((\d+)\)", text)]
    cited = single.union(*spans)
    assert cited >= {2, 4, 5, 6, 7, 9, 10, 11, 15, 16, 17, 18, 19, 20, 21, 23}


def test_nothing_that_runs_code_from_data_is_reachable():
    banned = re.compile(r"\b(pickle|cPickle|dill|cloudpickle|torch\.load|yaml\.load\(|eval\(|exec\(|allow_pickle)\b")
    found = [(path.name, match) for path in SOURCES for match in banned.findall(path.read_text())]
    assert found == []
