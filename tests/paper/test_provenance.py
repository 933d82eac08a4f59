"""Confirmatory runs need a committed plan and committed code; results say which commit made them."""

import json
import subprocess
import sys

import pytest

from hatdfed.cli.app import main
from hatdfed.setup.build.placement import Placement
from hatdfed.sweeps.batches import PlayOptions, TimeLimit
from hatdfed_paper import provenance
from hatdfed_paper.experiments import EXPERIMENTS
from hatdfed_paper.plan import SMOKE
from hatdfed_paper.play import play_missing
from hatdfed_paper.provenance import NAMED, NAMED_BY, OUTSIDE, PlanError, code_commit
from hatdfed_paper.results import read_all
from hatdfed_paper.todo import todo

NAME = "training_effort"


def git(folder, *words):
    who = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.org")
    subprocess.run(["git", "-C", str(folder), *who, *words], check=True, capture_output=True)


@pytest.fixture
def plans(tmp_path, monkeypatch):
    """A checkout whose plans are ours to change; whoever begins to play fails the test."""
    (tmp_path / "plans").mkdir()
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "commit", "--quiet", "--allow-empty", "-m", "begin")
    monkeypatch.setattr("hatdfed_paper.cli.plan_path", lambda name: tmp_path / "plans" / f"{name}.toml")
    monkeypatch.setattr("hatdfed_paper.provenance.code_commit", lambda: {"commit": "0" * 40})

    def must_not(*_, **__):
        raise AssertionError("runs would have been played")

    monkeypatch.setattr("hatdfed_paper.cli._load_data", must_not)
    monkeypatch.setattr("hatdfed_paper.play.play_missing", must_not)
    return tmp_path / "plans"


def run_paper(monkeypatch, capfd, tmp_path, *words):
    monkeypatch.setattr(sys, "argv", ["hatdfed", "paper", "run", NAME, "--results", str(tmp_path / "out"), *words])
    with pytest.raises(SystemExit) as stop:
        main()
    return stop.value.code, " ".join(capfd.readouterr().err.split())


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("missing", "has no plan at"),
        ("other", "is not the plan of this code"),
        ("uncommitted", "is not committed as it is"),
        ("changed since", "is not the plan of this code"),
    ],
)
def test_without_a_committed_plan_nothing_is_played(plans, monkeypatch, capfd, tmp_path, state, words):
    path, text = plans / f"{NAME}.toml", EXPERIMENTS[NAME].write_plan()
    if state != "missing":
        path.write_text(text if state != "other" else text.replace("runs = ", "runs = 1"))
    if state == "changed since":
        git(plans, "add", ".")
        git(plans, "commit", "--quiet", "-m", "plan")
        path.write_text(text + "\n")
    code, said = run_paper(monkeypatch, capfd, tmp_path)
    assert code == 2
    assert words in said
    assert f"hatdfed paper plan {NAME} --write" in said
    assert "--exploratory" in said
    assert "Traceback" not in said


def test_code_that_no_commit_has_plays_no_confirmatory_run(plans, monkeypatch, capfd, tmp_path):
    (plans / f"{NAME}.toml").write_text(EXPERIMENTS[NAME].write_plan())
    git(plans, "add", ".")
    git(plans, "commit", "--quiet", "-m", "plan")
    monkeypatch.setattr(
        "hatdfed_paper.provenance.code_commit", lambda: {"commit": "0" * 40, "note": provenance.CHANGED}
    )
    code, said = run_paper(monkeypatch, capfd, tmp_path)
    assert code == 2
    assert "the code differs from its commit" in said


def test_a_copy_without_git_is_told_its_commit(monkeypatch):
    monkeypatch.setattr(provenance, "_git", lambda *_: None)
    monkeypatch.delenv(NAMED_BY, raising=False)
    assert code_commit() == {"commit": None, "note": OUTSIDE}
    monkeypatch.setenv(NAMED_BY, "a1" * 20)
    assert code_commit() == {"commit": "a1" * 20, "note": NAMED}
    monkeypatch.setenv(NAMED_BY, "main")
    with pytest.raises(PlanError, match="HATDFED_COMMIT is 'main', but must be the 40 digits"):
        code_commit()


def test_a_result_carries_plan_and_commit(monkeypatch, tmp_path):
    monkeypatch.setattr("hatdfed_paper.play.code_commit", lambda: {"commit": "b2" * 20})
    what = todo(["scalability"], SMOKE, tmp_path)
    how = PlayOptions(Placement("stacked", "cpu"), limit=TimeLimit(float("inf")))
    play_missing(what, plans={"scalability": "digest"}, processes=1, how=how)
    records = read_all(tmp_path, ("scalability",), SMOKE.name)["scalability"].records.values()
    assert records
    assert all(each["made"] == {"kind": "confirmatory", "plan": "digest", "commit": "b2" * 20} for each in records)
    (session,) = json.loads((tmp_path / "sessions.json").read_text(encoding="utf-8"))
    assert session["code"] == {"commit": "b2" * 20}
    assert len(session["source"]) == 12
