"""`hatdfed paper` as a user types it."""

import json
import sys
from pathlib import Path

import pytest

from hatdfed.cli.app import main
from hatdfed_paper.experiments import EXPERIMENTS, THE_PAPER

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def paper(monkeypatch, capfd, tmp_path):
    """Call `hatdfed paper …` in an empty folder; returns exit code, output and what was said."""

    def call(*arguments):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["hatdfed", "paper", *arguments])
        capfd.readouterr()
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
        done = capfd.readouterr()
        return code, done.out, " ".join(done.err.split())

    return call


def test_from_nothing_to_a_table(paper):
    code, out, _ = paper("run", "scalability", "--scale", "smoke", "--jobs", "1")
    assert code == 0
    assert "4 runs played" in out
    code, out, _ = paper("tables", "scalability", "--scale", "smoke")
    assert code == 0
    assert [line.split("|")[2].strip() for line in out.splitlines() if line.startswith("| digits")] == ["5", "10"]
    code, _, err = paper("tables", "scalabilty", "--scale", "smoke")
    assert code == 2
    assert "no table called 'scalabilty'" in err
    assert "Did you mean scalability?" in err
    code, out, _ = paper("tables", "--scale", "smoke", "--json")
    rows = json.loads(out)["scalability"]
    assert [row["servers"] for row in rows] == [5, 10]
    assert all(row["seeds"] == [0, 1] and row["published"] is None for row in rows)
    code, out, _ = paper("run", "scalability", "--scale", "smoke", "--jobs", "1")
    assert "0 runs played in 0 s, 4 were known" in out


def test_small_energies_are_not_zeros(paper):
    """A world of digits spends kilojoules; its table is in megajoules."""
    paper("run", "ablation", "--scale", "smoke", "--jobs", "1")
    _, out, _ = paper("tables", "ablation", "--scale", "smoke")
    rows = [line.split("|") for line in out.splitlines() if line.startswith("| digits")]
    assert len(rows) == 3
    for row in rows:
        total, link = (float(row[column].split("±")[0]) for column in (-4, -3))
        assert 0.0005 < link < total < 0.01


def test_the_list_says_how_much_is_done(paper):
    code, out, _ = paper("list", "--scale", "smoke")
    assert code == 0
    assert {"table1", "sparsity", "scalability", "sensitivity", "ablation"} <= set(out.split())


def test_a_time_limit_leaves_a_note(paper):
    code, out, err = paper("run", "table1", "--scale", "smoke", "--time-limit", "0.01", "--jobs", "1")
    assert code == 0
    assert "0 runs played" in out
    assert "left 56 runs undone" in err
    assert "The same command goes on" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "tabel1"], ["no experiment called 'tabel1'", "Did you mean table1?"]),
        (["run", "table1", "--scale", "huge"], ["no scale called 'huge'"]),
        (["run", "table1", "--time-limit", "-3"], ["--time-limit is -3", "above 0"]),
        (["run", "table1", "--scale", "smoke", "--dataset", "cifar-10"], ["scale smoke has digits"]),
        (["run", "table1", "--scale", "smoke", "--device", "tpu"], ["--device", "tpu"]),
        (
            ["tables", "--scale", "smoke"],
            ["no results of scale smoke", "--results FOLDER", "hatdfed paper run all --scale smoke"],
        ),
        (["figures", "--results", "nowhere"], ["no results of scale full in nowhere"]),
        (
            ["run", "scalability", "--device", "cpu", "--results", "new", "--data-dir", "nowhere"],
            ["nowhere (from --data-dir) is not"],
        ),
    ],
)
def test_what_is_wrong_is_one_sentence(paper, arguments, words, monkeypatch):
    monkeypatch.setenv("HATDFED_MIRROR", "http://127.0.0.1:9")  # nothing is downloaded in a test
    code, _, err = paper(*arguments)
    assert code == 2
    for word in words:
        assert word in err
    assert "Traceback" not in err


@pytest.fixture
def outside_a_checkout(monkeypatch, tmp_path):
    """As installed from a wheel: no repository around the package."""
    monkeypatch.setattr("hatdfed_paper.folders.__file__", str(tmp_path / "lib" / "hatdfed_paper" / "folders.py"))
    few = {name: EXPERIMENTS[name] for name in THE_PAPER}  # those beyond the paper take seconds
    monkeypatch.setattr("hatdfed_paper.cli.EXPERIMENTS", few)
    monkeypatch.setattr("hatdfed_paper.tables.EXPERIMENTS", few)


@pytest.mark.parametrize("verb", ["tables", "figures", "list"])
@pytest.mark.usefixtures("outside_a_checkout")
def test_outside_a_checkout_one_sentence_says_where_results_come_from(paper, verb):
    code, _, err = paper(verb)
    assert code == 2
    assert err.startswith("error: There are no results of scale full in paper/results:")
    for cure in ("paper/results of a checkout", "--results FOLDER", "hatdfed paper run all --scale full"):
        assert cure in err
    assert "Traceback" not in err


@pytest.mark.usefixtures("outside_a_checkout")
def test_outside_a_checkout_results_of_a_checkout_can_be_named(paper):
    code, out, _ = paper("tables", "ablation", "--results", str(ROOT / "paper" / "results"))
    assert code == 0
    assert "(83.9)" in out  # the published figure stands beside ours
    code, out, _ = paper("list", "--results", str(ROOT / "paper" / "results"))
    assert code == 0
    assert "ablation" in out


def test_from_tuning_to_a_verdict_as_typed(paper):
    """The stages of tuned_rivals at scale smoke, each named by the one before it."""
    code, _, err = paper("freeze", "tuned_rivals", "--scale", "smoke", "--results", "nowhere")
    assert code == 2
    assert "no results of scale smoke" in err
    code, out, err = paper("run", "tuned_rivals", "--scale", "smoke", "--jobs", "1")
    assert code == 0
    assert "its first stage rival_tuning is played" in err
    assert "Then: hatdfed paper freeze tuned_rivals --scale smoke" in err
    code, out, _ = paper("freeze", "tuned_rivals", "--scale", "smoke")
    assert code == 0
    assert "next: hatdfed paper run tuned_rivals --scale smoke" in out
    code, out, _ = paper("run", "tuned_rivals", "--scale", "smoke", "--jobs", "1")
    assert code == 0
    _, out, _ = paper("tables", "--scale", "smoke", "--json")
    tables = json.loads(out)
    assert {"frontier", "fresh_seeds", "tuned_rivals", "attribution", "planned"} <= set(tables)
    state = {row["experiment"]: row["state"] for row in tables["planned"]}
    assert state["tuned_rivals"] == state["rival_tuning"] == "played"
    assert state["attribution"] == "not played"
    assert [row["rival"] for row in tables["tuned_rivals_main"]] == ["rnd", "d-psgd", "dac", "sgp"]
    assert all(not row["verdict"].startswith("open") for row in tables["tuned_rivals_main"])


def test_a_table_without_rows_says_that_nothing_was_played(paper):
    results = str(ROOT / "paper" / "results")
    code, out, err = paper("tables", "frontier", "planned", "--results", results)
    if "not played" in out:
        assert code == 0
        assert "## frontier" in out
        assert "Planned, not played" in out
        assert "rows: frontier" in err
    rows = [line.split("|") for line in out.splitlines() if line.startswith("| ")][-8:]
    assert {row[1].strip() for row in rows} >= {"frontier", "fresh_seeds", "tuned_rivals", "attribution"}
