"""The plan of whom to hear: its worlds, its rules, and the figures that it reads."""

import numpy as np
import pytest

import hatdfed
from hatdfed.runs.statistics import paired_difference
from hatdfed.setup.layers import config_members, resolve
from hatdfed_paper.experiments.trust import (
    BAD,
    EXPERIMENT,
    GROUPS,
    LIARS,
    PLAIN,
    World,
    judge,
    place,
    worlds,
)
from hatdfed_paper.packing import run_figures
from hatdfed_paper.plan import FULL, PLUS, SMOKE
from hatdfed_paper.results import ResultFile, Results


def around(mean):
    return paired_difference({0: mean - 0.1, 1: mean, 2: mean + 0.1}, dict.fromkeys(range(3), 0.0))


def test_the_plan_has_ten_fresh_seeds_and_all_of_its_worlds_exist():
    runs = EXPERIMENT.runs(FULL)
    assert {each["seed"] for each in runs} == set(range(300, 310))
    assert {each["servers"] for each in runs} == {10, 30}
    assert {each["seed"] for each in EXPERIMENT.runs(SMOKE)} == {0, 1}
    assert len(worlds(10)) == 5 + 7 + 1 + 2 + 20
    assert {world.kind for world in worlds(30).values()} == {PLAIN, GROUPS}
    assert len(worlds(30)) == 2 + 6
    assert not [world for world in worlds(10, "cifar-10").values() if world.kind == LIARS]
    for settings in EXPERIMENT.all_points(FULL)[::7]:
        assert resolve({**settings, "seed": 300}).rounds == 200


def test_a_lone_server_is_one():
    settings = place("digits", 10, worlds(10)["a lone server, λ 0.3"], "local")
    groups = config_members(resolve({**settings, "seed": 300})).last_group
    assert sorted(np.bincount(groups)) == [1, 9]


@pytest.mark.parametrize(
    ("kind", "gained", "share", "holds"),
    [
        (PLAIN, around(-0.05), 1.1, True),
        (PLAIN, around(-1.0), 1.1, False),
        (PLAIN, around(0.0), 1.3, False),
        (BAD, around(-0.5), 1.0, True),
        (BAD, around(-0.9), 1.0, False),
        (LIARS, around(-2.5), 1.0, True),
        (LIARS, around(-2.9), 1.0, False),
    ],
)
def test_margins_are_held_by_the_whole_interval(kind, gained, share, holds):
    assert judge(World(kind, {}), gained, None, None, None, share) is holds


def test_groups_need_the_minority_the_rival_its_joules_and_servers_alone():
    good = {"gained": around(-1), "minority": around(-1), "rival": around(5), "alone": around(9), "link_share": 0.1}
    world = World(GROUPS, {})
    assert judge(world, **good) is True
    for worse in ({"gained": around(-2)}, {"minority": around(-3)}, {"rival": around(-1)}, {"alone": around(-1)}):
        assert judge(world, **{**good, **worse}) is False
    assert judge(world, **{**good, "link_share": 0.3}) is False
    assert judge(world, **{**good, "gained": None}) is None


def test_the_table_has_every_world_and_the_one_comparison(tmp_path):
    file = ResultFile(tmp_path / "trust.json", SMOKE.name)
    level = {"hat-dfed-trust": 90.0, "oracle-groups": 91.0, PLUS: 90.0, "dac": 80.0, "local": 60.0}
    for settings in EXPERIMENT.runs(SMOKE):
        accuracy = level[settings["method"]] + settings["seed"]
        figures = dict.fromkeys(("avg_accuracy", "own_accuracy", "smallest_group_accuracy"), accuracy)
        figures["link_energy_mj"] = 10.0 if settings["method"] == "dac" else 1.0
        file.records[str(settings)] = {"settings": settings, "key": "", "figures": figures, "curve": {}}
    (table,) = EXPERIMENT.tables
    rows = table.rows(Results({"trust": file}), None, SMOKE)
    assert len(rows) == len(worlds(10)) + 1
    by_world = {row["world"]: row for row in rows}
    assert by_world["two meanings, λ 0.3"]["points"]["mean"] == pytest.approx(-1)
    assert by_world["two meanings, λ 0.3"]["rival_points"]["mean"] == pytest.approx(10)
    assert by_world["two meanings, λ 0.3"]["link_share"] == pytest.approx(0.1)
    assert by_world["all with groups"]["points"]["mean"] == pytest.approx(10)
    assert "three meanings, λ 0.1" in table.markdown(rows)


def test_figures_are_of_sound_servers_and_of_the_smallest_group():
    result = hatdfed.run(
        {
            "method": "local", "servers": 5, "rounds": 2, "images_per_server": 60, "validation_images": 50,
            "world": {"groups": 2, "group_shares": [0.8, 0.2], "differ": "labels", "liars": 0.2},
        },
        show_progress=False,
    )  # fmt: skip
    own, members = np.array(result.summary["own_accuracy_by_server"]), config_members(result.config)
    figures = run_figures(result)
    assert figures["own_accuracy"] == pytest.approx(own[members.is_sound].mean(), rel=1e-5)
    sizes = np.bincount(members.last_group[members.is_sound], minlength=2)
    smallest = members.is_sound & (members.last_group == np.argmin(np.where(sizes > 0, sizes, 9)))
    assert figures["smallest_group_accuracy"] == pytest.approx(own[smallest].mean(), rel=1e-5)
    assert "own_accuracy" not in run_figures(hatdfed.run("local", servers=3, rounds=1, show_progress=False))
