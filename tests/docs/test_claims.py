"""Every figure on README and evaluation is listed with its source, and is what the raw runs give."""

import sys
from pathlib import Path

import pytest

from hatdfed_paper.experiments import EXPERIMENTS
from hatdfed_paper.plan import FULL
from hatdfed_paper.results import Results, read_all

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def claims():
    """The list of claims, imported as its command is."""
    sys.path.insert(0, str(ROOT / "docs"))
    import claims

    yield claims
    sys.path.remove(str(ROOT / "docs"))
    for name in ("claims", "claim_figures"):
        sys.modules.pop(name, None)


def test_every_claim_is_what_the_raw_runs_give(claims, capsys):
    assert claims.main([]) == 0
    said = capsys.readouterr().out
    assert said.count(": holds: ") == len(claims.CLAIMS)


def test_an_unknown_claim_is_a_sentence(claims, capsys):
    assert claims.main(["no-such"]) == 2
    assert "no claim called 'no-such'" in capsys.readouterr().err


@pytest.mark.parametrize("page", ["README.md", "docs/evaluation.md"])
def test_no_figure_is_without_a_claim(claims, page):
    assert claims.unlisted_figures(page) == []


@pytest.mark.parametrize("sentence", ["It saves 42 % of the energy.", "| `rnd` | 99.9 ± 0.1 |", "(3 times as fast)"])
def test_a_figure_that_nobody_listed_is_found(claims, sentence):
    text = f"{claims.read_words('README.md')} {sentence}"
    assert claims.unlisted_figures("README.md", text)


def test_results_that_have_changed_are_noticed(claims, monkeypatch, capsys):
    figures = sys.modules["claim_figures"]
    load = figures.load

    def other(path):
        found = load(path)
        if path.endswith("worlds-groups-digits.json"):
            for row in found["rows"]:
                row["accuracy"] += 0.2
        return found

    monkeypatch.setattr(figures, "load", other)
    claims._fill.cache_clear()
    assert claims.main(["two-meanings"]) == 1
    assert "NOT on docs/evaluation.md" in capsys.readouterr().out
    claims._fill.cache_clear()


def test_what_a_claim_rests_on_exists(claims):
    words = {claims.BEFORE, claims.KNOWN, claims.EXPLORATORY, claims.MEASURED}
    for claim in claims.CLAIMS:
        assert claim.plan in words or (ROOT / claim.plan).is_file(), claim.name
        assert all((ROOT / path).is_file() for path in claim.results), claim.name
        typed = claim.made_by.split()
        if typed[:3] == ["hatdfed", "paper", "run"]:
            named = [word for word in typed[3:] if word not in ("--scale", "explore", "all")]
            assert set(named) <= set(EXPERIMENTS), claim.name
        elif typed[0] == "python":
            assert (ROOT / typed[1]).is_file(), claim.name
        else:
            assert f"\n{typed[1]}:" in (ROOT / "Makefile").read_text(encoding="utf-8"), claim.name


def test_no_claim_rests_on_a_plan_that_has_not_been_played(claims):
    """As long as the page says so."""
    results = Results(read_all(ROOT / "paper/results", EXPERIMENTS, FULL.name))
    planned = {f"paper/plans/{name}.toml": each for name, each in EXPERIMENTS.items() if each.protocol is not None}
    for claim in claims.CLAIMS:
        if claim.plan in planned:
            assert all(results.at(each) for each in planned[claim.plan].decisive_points(FULL)), claim.name
