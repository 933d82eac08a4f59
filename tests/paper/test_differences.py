"""Gains and savings over rivals: by the paper's own definition, and paired over seeds."""

import pytest
from tests.paper.made_results import results_by_seed, results_of

from hatdfed_paper.claims import Claims
from hatdfed_paper.differences import Contest, energy_saving, percent_saved, points_gained
from hatdfed_paper.experiments.table1 import contests
from hatdfed_paper.plan import BASELINES, FULL, point

CLAIMS = Claims.read()
CONTEST = [Contest(point("digits", "hat-dfed"), {name: point("digits", name) for name in ("rnd", "sgp")})]


@pytest.mark.parametrize(
    ("figure", "published"),
    [("total_energy_mj", "total_energy_saving_percent"), ("link_energy_mj", "link_energy_saving_percent")],
)
def test_the_published_savings_follow_from_the_published_table(figure, published):
    """The paper's 36.7 % and 46.3 % come out of its Table 1; a ratio of means would give 36.8 % and 46.4 %."""
    savings = []
    for contest in contests(FULL):
        mine, *theirs = (CLAIMS.row("table_1", each)[figure][0] for each in (contest.mine, *contest.rivals.values()))
        assert len(theirs) == len(BASELINES)
        savings.append(energy_saving(mine, theirs))
    assert len(savings) == 8
    assert round(sum(savings) / len(savings), 1) == CLAIMS.headline[published]


def test_a_dear_rival_does_not_outweigh_a_cheap_one():
    energies = {"hat-dfed": 1.0, "rnd": 100.0, "sgp": 2.0}
    results = results_of([(point("digits", name), {"total_energy_mj": mj}) for name, mj in energies.items()])
    assert percent_saved(results, CONTEST, "total_energy_mj").mean == pytest.approx((99.0 + 50.0) / 2)


def test_where_a_rival_spends_nothing_there_is_nothing_to_save():
    assert energy_saving(1.0, [0.0, 2.0]) is None
    energies = {"hat-dfed": 1.0, "rnd": 0.0, "sgp": 2.0}
    results = results_of([(point("digits", name), {"link_energy_mj": mj}) for name, mj in energies.items()])
    assert percent_saved(results, CONTEST, "link_energy_mj") is None


def test_points_are_over_the_mean_of_the_rivals_seed_by_seed():
    runs = [
        (point("digits", name), seed, {"avg_accuracy": level + 20 * seed})
        for name, level in {"hat-dfed": 60.0, "rnd": 50.0, "sgp": 54.0}.items()
        for seed in (0, 1)
    ]
    gained = points_gained(results_by_seed(runs), CONTEST, "avg_accuracy")
    assert gained == (8.0, 8.0, 8.0, 2)  # worlds differ by 20 points, and nothing of it is left
    assert points_gained(results_by_seed(runs[:-1]), CONTEST, "avg_accuracy").n == 1
    assert points_gained(results_by_seed(runs[:-2]), CONTEST, "avg_accuracy") is None
