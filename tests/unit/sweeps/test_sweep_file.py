"""What a sweep file may say, which runs it stands for, and what it is told when it makes no sense."""

import csv
import re
from pathlib import Path

import pytest
import yaml
from tests.unit.sweeps.small import SMALL

from hatdfed.data.datasets import LoadedDatasets
from hatdfed.errors import ConfigError, RunFolderError
from hatdfed.sweeps.file import read_sweep
from hatdfed.sweeps.points import all_runs, points
from hatdfed.sweeps.search import find_judged_rounds
from hatdfed.sweeps.sweep import SweepFolder, default_folder, plan_sweep

ROOT = Path(__file__).resolve().parents[3]
RANGE = {"low": 0.1, "high": 0.5}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"grd": {"rounds": [1]}}, "Did you mean grid?"),
        ({"grid": {"link_shar": [0.1]}}, "grid: There is no setting 'link_shar'. Did you mean link_share?"),
        ({"zip": {"learner.momentm": [0.1]}}, "zip: There is no setting 'learner.momentm'"),
        ({"base": {"lerner": {"momentum": 1}}, "seeds": 2}, "base: There is no setting 'lerner'"),
        ({"grid": {"rounds": []}}, "grid.rounds is empty"),
        ({"grid": {}}, "varies nothing"),
        ({}, "varies nothing"),
        ({"grid": {"rounds": 3}}, "grid.rounds is 3, but must be a valid list"),
        ({"zip": {"rounds": [1, 2], "servers": [3]}}, "rounds has 2, servers has 1 values"),
        ({"grid": {"rounds": [1]}, "zip": {"rounds": [2]}}, "rounds is in grid and in zip"),
        ({"grid": {"policy": [{"name": "ring"}], "policy.thrift": [1]}}, "policy is varied as a whole"),
        ({"grid": {"policy..thrift": [1]}}, "'policy..thrift'"),
        ({"grid": {"seed": [1]}}, "Use seeds instead"),
        ({"seeds": []}, "seeds is empty"),
        ({"seeds": 0}, "seeds is 0"),
        ({"seeds": 2**32}, "seeds is 4294967296"),
        ({"search": {}}, "search.parameters is empty"),
        ({"search": {"paramters": {}}}, "Did you mean parameters?"),
        ({"search": {"parameters": {"polcy.thrift": RANGE}}}, "search: There is no setting 'polcy'"),
        ({"search": {"parameters": {"link_share": {"low": 0.1, "hgh": 0.2}}}}, "Did you mean high?"),
        ({"search": {"parameters": {"link_share": {"low": 0.5, "high": 0.1}}}}, "low must be below high"),
        ({"search": {"parameters": {"link_share": {"low": 0.5}}}}, "no range and no choices"),
        ({"search": {"parameters": {"link_share": {**RANGE, "low": 0.0, "log": True}}}}, "must start above 0"),
        ({"search": {"parameters": {"link_share": {**RANGE, "step": 0.1, "log": True}}}}, "has step 0.1"),
        ({"search": {"parameters": {"link_share": {**RANGE, "choices": [1]}}}}, "has choices and a range"),
        ({"search": {"parameters": {"link_share": []}}}, "at least one of them"),
        ({"search": {"parameters": {"policy": [{"name": "ring"}]}}}, "numbers or names"),
        ({"search": {"parameters": {"link_share": RANGE}, "objectives": ["test"]}}, "search.objectives.0 is 'test'"),
        ({"search": {"parameters": {"link_share": RANGE}}, "grid": {"rounds": [1]}}, "but not both"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(content, sentence):
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        read_sweep(content)


def test_a_grid_is_every_combination_and_a_zip_goes_together():
    sweep = read_sweep({"zip": {"servers": [3, 4], "rounds": [2, 1]}, "grid": {"method": ["rnd", "local"]}, "seeds": 2})
    found = [
        (run.config.servers, run.config.rounds, run.config.method, run.config.seed) for run in all_runs(points(sweep))
    ]
    assert found == [
        (servers, rounds, method, seed)
        for servers, rounds in ((3, 2), (4, 1))
        for method in ("rnd", "local")
        for seed in (0, 1)
    ]


def test_dotted_keys_reach_into_sections_and_over_the_base():
    sweep = read_sweep(
        {
            "base": {"method": "hat-dfed-plus", "learner": {"momentum": 0.5}, "policy.thrift": 1.0},
            "grid": {"policy.thrift": [2.0, 3.0], "learner.cool_down": [0.2]},
        }
    )
    first, second = (run.config for run in all_runs(points(sweep)))
    assert [config.policy.settings["thrift"] for config in (first, second)] == [2.0, 3.0]
    assert (first.learner.momentum, first.learner.cool_down) == (0.5, 0.2)
    assert first.policy.name == "balanced-links"  # what the method brings stays


def test_names_say_what_was_varied_and_never_collide():
    sweep = read_sweep(
        {
            "grid": {
                "learner.cool_down": [0.0, 0.25],
                "energy.link_kbit_per_joule": [[20, 50], [2, 50]],
                "dataset_options": [{}, {"train": 1}],
            },
            "seeds": [7],
        }
    )
    names = [run.name for run in all_runs(points(sweep))]
    assert len(set(names)) == len(names) == 8
    assert all(name.startswith("cool_down=0") and name.endswith(",seed=7") for name in names)
    assert all("/" not in name and " " not in name and len(name) < 120 for name in names)
    plain = read_sweep({"grid": {"method": ["rnd"], "link_share": [0.25]}})
    assert [run.name for run in all_runs(points(plain))] == ["method=rnd,link_share=0.25,seed=0"]


def test_hostile_values_make_harmless_names():
    sweep = read_sweep({"grid": {"network": ["../../etc/passwd", "a" * 300, "..", ""]}})
    names = [run.name for run in all_runs(points(sweep))]
    assert len(set(names)) == 4
    assert all(re.fullmatch(r"network[=a-zA-Z0-9,.-]*", name) and ".." not in name for name in names)


def test_the_same_run_is_there_once():
    sweep = read_sweep({"base": {"rounds": 3}, "grid": {"servers": [5, 5], "rounds": [3, 3.0]}, "seeds": [1, 1]})
    found = points(sweep)
    assert [len(found), len(all_runs(found))] == [1, 1]


def test_the_version_is_of_what_is_said_not_of_how(tmp_path):
    (tmp_path / "a.yaml").write_text("grid: {rounds: [1, 2]}\nseeds: 2\n")
    (tmp_path / "b.yaml").write_text("# the same\nseeds: 2\nbase:\ngrid:\n  rounds:\n  - 1\n  - 2\n")
    first, second = (read_sweep(tmp_path / name) for name in ("a.yaml", "b.yaml"))
    assert first.version == second.version
    assert default_folder(tmp_path / "a.yaml", first).name == f"a-{first.version}"
    assert read_sweep({"grid": {"rounds": [1, 2]}, "seeds": 3}).version != first.version


def test_a_search_with_more_trials_is_the_same_search():
    versions = {
        read_sweep({"search": {"parameters": {"link_share": RANGE}, "trials": trials}}).version for trials in (5, 10)
    }
    assert len(versions) == 1


def test_a_folder_of_another_sweep_is_refused(tmp_path):
    one = read_sweep({"base": SMALL, "seeds": 2})
    other = read_sweep({"base": SMALL, "seeds": 3})
    folder = SweepFolder(tmp_path / "s")
    with folder.claimed(one), pytest.raises(RunFolderError, match="Another command is writing"), folder.claimed(one):
        pass
    with folder.claimed(one):  # nobody else is there now
        pass
    with pytest.raises(RunFolderError, match=f"another sweep file \\(version {one.version}"), folder.claimed(other):
        pass
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("")
    with pytest.raises(RunFolderError, match="holds something that is no sweep"):
        SweepFolder(tmp_path / "full").refuse_others(one)


@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "sweeps").glob("*.yaml")), ids=lambda path: path.name)
def test_example_files_can_be_played(path):
    plan = plan_sweep(path)
    plan.check(LoadedDatasets())
    assert plan.size[0] >= 20


def test_the_files_of_the_page_can_be_read():
    page = (ROOT / "docs" / "sweeps.md").read_text()
    files = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    grid, search, pruned = (read_sweep(yaml.safe_load(text)) for text in files)
    assert len(all_runs(points(grid))) == 24
    assert search.search is not None
    assert search.search.parameters["schedule.every"].high == 8
    assert pruned.search is not None
    assert find_judged_rounds(pruned) == [10, 20]


def test_the_table_of_the_page_is_that_of_the_example():
    sweep = read_sweep(ROOT / "examples" / "sweeps" / "digits-40.yaml")
    rows = list(csv.DictReader((ROOT / "docs" / "sweeps" / "summary.csv").read_text().splitlines()))
    assert [row["point"] for row in rows] == [point.label for point in points(sweep)]
