"""Documents that fail the build when they are no longer true."""

import json
import re
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MARKDOWN = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "paper" / "README.md"]
SOURCES = list((ROOT / "src").rglob("*.py"))


@pytest.fixture
def docs_on_path(monkeypatch):
    """Where the generator's modules are found, as when it is run; they are gone after the test."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if (ROOT / "docs" / f"{name}.py").is_file():
            del sys.modules[name]


@pytest.mark.usefixtures("docs_on_path")
def test_generated_parts_are_current(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["docs/generate.py", "--check"])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(ROOT / "docs" / "generate.py"), run_name="__main__")
    assert stop.value.code == 0


def test_what_candidates_cost_the_worst_server_is_shown():
    page = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"<!-- scale-given-up -->\n(.*?)<!--", page, re.DOTALL)
    heading, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    assert rows
    assert all(re.match(r"[+-]\d", row[heading.index("worst server, validation")]) for row in rows)


def test_the_python_example_of_the_readme_runs(tmp_path, monkeypatch, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(code.strip().splitlines()) <= 16
    monkeypatch.chdir(tmp_path)
    (tmp_path / "example.py").write_text(code)
    runpy.run_path("example.py", run_name="__main__")
    assert "hat-dfed" in capsys.readouterr().out


def test_the_readme_is_read_in_a_few_minutes():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) < 1200


def test_the_first_commands_of_the_readme_are_those_that_were_timed():
    script = runpy.run_path(str(ROOT / "benchmarks/first_run.py"), run_name="first_run")
    shown = script["read_first_commands"]((ROOT / "README.md").read_text(encoding="utf-8"))
    timed = json.loads((ROOT / "benchmarks/results/first-run-cpu.json").read_text(encoding="utf-8"))["commands"]
    assert len(shown) == 3
    assert [each["typed"] for each in timed] == [*shown, *script["LATER"]]


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
