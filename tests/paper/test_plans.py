"""Plans of confirmatory experiments: nothing is decided by test results, by chance, or before all runs are there."""

from itertools import combinations

import numpy as np
import pytest
from scipy import stats
from tests.paper.made_results import results_by_seed

from hatdfed.runs.statistics import PairedDifference
from hatdfed.setup.layers import resolve
from hatdfed_paper.claims import Claims
from hatdfed_paper.differences import points_gained
from hatdfed_paper.experiments import EXPERIMENTS, attribution, fresh_seeds, frontier
from hatdfed_paper.folders import paper_folder, plan_path
from hatdfed_paper.plan import BASELINES, FULL, HARD, PLUS, SMOKE, point
from hatdfed_paper.protocol import decide
from hatdfed_paper.results import FIRST_FRESH_SEED, Results, read_all, run_name
from hatdfed_paper.todo import todo
from hatdfed_paper.verdict_rules import NOT, PARTLY, REPRODUCED

CLAIMS = Claims.read()
CONFIRMATORY = {name: each for name, each in EXPERIMENTS.items() if each.protocol is not None}
PLANNED = {name: each for name, each in CONFIRMATORY.items() if each.all_points(FULL)}  # others wait to be tuned
FIGURES = dict.fromkeys(("var_accuracy", "std_accuracy", "best_accuracy", "worst_accuracy", "total_energy_mj"), 1.0)


@pytest.mark.parametrize("name", PLANNED)
def test_the_committed_plan_is_that_of_the_code(name):
    assert plan_path(name).read_text(encoding="utf-8") == EXPERIMENTS[name].write_plan()


def test_no_plan_is_left_of_another_experiment():
    assert {path.stem for path in (paper_folder() / "plans").glob("*.toml")} <= set(CONFIRMATORY)


@pytest.mark.parametrize("name", CONFIRMATORY)
def test_a_rule_says_what_decides_and_that_the_rest_is_not_corrected_for_its_number(name):
    rule = CONFIRMATORY[name].protocol.rule
    assert CONFIRMATORY[name].protocol.null
    assert CONFIRMATORY[name].known
    assert "95 % interval" in rule
    assert "correct" in rule or "without a claim" in rule


def test_the_frontier_has_everybody_that_it_should():
    named = {"random-regular", "sgp", "one-peer-exponential", "base-2", "el-local", "el-oracle", "d-psgd", PLUS}
    assert named <= set(frontier.methods())
    assert (frontier.DEGREES, frontier.INTERVALS) == ((1, 2, 4), (1, 4, 16))
    assert frontier.fleets(FULL) == (5, 20, 50)
    given = ("loss", "codec", "common_init")
    ours = resolve(point("cifar-10", PLUS, servers=20))
    for method in frontier.methods():
        for words, settings in frontier.frontier_points("cifar-10", 20, method):
            config = resolve(settings)
            assert all(getattr(config, each) == getattr(ours, each) for each in given), (method, words)
            assert config.learner == ours.learner
            assert config.schedule.finish_rounds == ours.schedule.finish_rounds


def test_seeds_are_fresh_for_each_experiment():
    """A seed belongs to one experiment for each number of servers; what tunes shares none with what decides."""
    used = {
        name: {(run["servers"], run["seed"]) for run in each.runs(FULL) if run["seed"] >= FIRST_FRESH_SEED}
        for name, each in EXPERIMENTS.items()
    }
    for one, other in combinations(used, 2):
        assert used[one].isdisjoint(used[other]), (one, other)
    tuning = {seed for _, seed in used["rival_tuning"]}
    assert tuning
    assert all(tuning.isdisjoint(seed for _, seed in used[name]) for name in CONFIRMATORY)


@pytest.mark.parametrize("name", CONFIRMATORY)
@pytest.mark.parametrize("scale", [SMOKE, FULL], ids=lambda scale: scale.name)
def test_runs_that_decide_come_first_a_whole_seed_before_the_next(name, scale):
    each = CONFIRMATORY[name]
    decisive, runs = each.decisive_runs(scale), each.runs(scale)
    assert len(decisive) == len(each.decisive_points(scale)) * len(each.planned_seeds(scale))
    first = runs[: len(decisive)]
    assert {run_name(run) for run in first} == decisive
    assert [run["seed"] for run in first] == sorted(run["seed"] for run in first)
    assert len({run_name(run) for run in runs}) == len(runs)


def test_of_several_experiments_all_that_decides_comes_first(tmp_path):
    names = ("attribution", "training_effort")
    wanted = list(todo(names, SMOKE, tmp_path).missing)
    decisive = set.union(*(EXPERIMENTS[name].decisive_runs(SMOKE) for name in names))
    assert set(wanted[: len(decisive)]) == decisive


def test_what_was_reported_before_is_of_the_settings_that_are_played_again():
    folder = paper_folder() / "results"
    results = Results(read_all(folder, EXPERIMENTS, FULL.name))
    for dataset, before in fresh_seeds.BEFORE.items():
        gained = points_gained(results, fresh_seeds.main_contests(dataset, FULL), "avg_accuracy")
        assert gained.n == 10
        assert round(gained.mean, 1) == before


# Verdicts


def test_a_verdict_waits_for_all_planned_seeds():
    sure = PairedDifference(1.0, 0.9, 1.1, 3)
    assert decide(sure, [1, 2, 3], [1, 2, 3]) == REPRODUCED
    assert decide(sure, [1, 2, 3], [1, 2, 3, 4]) == "open: 3 of 4 seeds"
    assert decide(sure, [2, 3, 9], [1, 2, 3]) == "open: 2 of 3 seeds"  # a seed too many is no substitute
    assert decide(None, [], [1, 2]) == "open: 0 of 2 seeds"


@pytest.mark.parametrize(
    ("low", "high", "size", "verdict"),
    [
        (0.1, 1.0, 0.0, REPRODUCED), (-0.1, 1.0, 0.0, NOT), (0.0, 1.0, 0.0, NOT), (-2.0, -1.0, 0.0, NOT),
        (3.0, 4.0, 4.6, PARTLY), (3.0, 4.7, 4.6, REPRODUCED), (6.0, 7.0, 4.6, REPRODUCED), (-1.0, 9.0, 4.6, NOT),
    ],
)  # fmt: skip
def test_the_rule_of_a_plan_is_that_of_all_claims(low, high, size, verdict):
    assert decide(PairedDifference((low + high) / 2, low, high, 2), [0, 1], [0, 1], size) == verdict


# The frontier, from planted runs


def planted_frontier(drop=()):
    """Every point of every method at scale smoke: joules by its degree and interval, accuracies drawn."""
    rng, runs = np.random.default_rng(5), []
    for method in frontier.methods():
        for place, (_, settings) in enumerate(frontier.frontier_points("digits", 5, method)):
            for seed in (0, 1):
                test, validation, spread = 60 + 20 * rng.random(), 60 + 20 * rng.random(), 0.01 * rng.random()
                figures = {
                    "link_energy_mj": 1.0 + place + spread, "total_energy_mj": 9.0 + place + spread,
                    "avg_accuracy": test, "validation_accuracy": validation,
                }  # fmt: skip
                if (method, place, seed) not in drop:
                    runs.append((settings, seed, {**FIGURES, **figures}))
    return runs


def lead_by_hand(runs, rival):
    """At the recipe's joules: interpolated between points that are on the front by validation accuracy."""
    found = []
    as_it_is = run_name(point("digits", PLUS, servers=5))
    for seed in (0, 1):
        reached = {}
        wanted = next(f["link_energy_mj"] for s, n, f in runs if n == seed and run_name(s) == as_it_is)
        spent_by = {}
        for method in (PLUS, rival):
            names = [run_name(each) for _, each in frontier.frontier_points("digits", 5, method)]
            by_point = [{n: f for s, n, f in runs if run_name(s) == name} for name in names]
            mean = [[np.mean([f[k] for f in each.values()]) for k in ("link_energy_mj", "validation_accuracy")]
                    for each in by_point]  # fmt: skip
            front = [
                a
                for a, one in enumerate(mean)
                if not any(two[0] <= one[0] and two[1] >= one[1] for b, two in enumerate(mean) if a != b)
            ]
            spent_by[method] = [each[seed]["link_energy_mj"] for each in by_point]
            reached[method] = sorted((by_point[a][seed]["link_energy_mj"], by_point[a][seed]["avg_accuracy"])
                                     for a in front)  # fmt: skip
        low, high = max(map(min, spent_by.values())), min(map(max, spent_by.values()))
        at = min(max(wanted, low), high)
        mine, theirs = (np.interp(at, *zip(*reached[method], strict=True)) for method in (PLUS, rival))
        found.append(mine - theirs)
    return found


@pytest.mark.parametrize("rival", ["sgp", "d-psgd", "random-regular"])
def test_leads_at_equal_joules_are_what_they_are_by_hand(rival):
    runs = planted_frontier()
    rows = frontier.EXPERIMENT.tables[0].rows(results_by_seed(runs), CLAIMS, SMOKE)
    named = {"d-psgd": "ring", "random-regular": "random regular"}.get(rival, rival)
    row = next(row for row in rows if (row["energy"], row["rival"], row["servers"]) == ("link", named, 5))
    by_hand = lead_by_hand(runs, rival)
    low, high = stats.t.interval(0.95, 1, loc=np.mean(by_hand), scale=stats.sem(by_hand))
    assert row["plus_is_ahead_by"]["mean"] == pytest.approx(np.mean(by_hand), abs=1e-3)
    assert (row["plus_is_ahead_by"]["low"], row["plus_is_ahead_by"]["high"]) == pytest.approx((low, high), abs=1e-3)


def test_the_test_set_does_not_choose_the_points_of_a_frontier():
    runs = planted_frontier()
    joules = {0: 3.5, 1: 3.5}
    before = frontier.accuracy_at(results_by_seed(runs), "digits", 5, "sgp", "link_energy_mj", joules)
    worst = [(s, n, {**f, "validation_accuracy": -f["avg_accuracy"]}) for s, n, f in runs]
    best = [(s, n, {**f, "validation_accuracy": f["avg_accuracy"]}) for s, n, f in runs]
    by_worst, by_best = (
        frontier.accuracy_at(results_by_seed(each), "digits", 5, "sgp", "link_energy_mj", joules)
        for each in (worst, best)
    )
    assert sum(by_worst.values()) < sum(before.values()) < sum(by_best.values())


def test_a_seed_that_lacks_a_point_of_one_side_is_in_no_difference():
    rows = {}
    for drop in ((), (("sgp", 3, 1),)):
        results = results_by_seed(planted_frontier(drop))
        found = frontier.EXPERIMENT.tables[0].rows(results, CLAIMS, SMOKE)
        rows[drop] = {row["rival"]: row for row in found if row["energy"] == "link" and row["servers"] == 5}
    whole, part = rows.values()
    assert whole["sgp"]["seeds"] == [0, 1]
    assert part["sgp"]["seeds"] == [0]
    assert part["ring"] == whole["ring"]
    pooled = [row for row in found if row["servers"] == 0 and row["energy"] == "link"]
    assert [(row["seeds"], row["verdict"]) for row in pooled] == [([0], "open: 1 of 2 seeds")]


# Fresh seeds, from planted runs


def test_the_verdict_on_fresh_seeds_leaves_out_seeds_that_one_side_lacks():
    level = {PLUS: 70.0, "rnd": 60.0, "d-psgd": 61.0, "dac": 62.0, "sgp": 63.0}
    runs = [
        (
            point("digits", name, servers=5, **HARD),
            seed,
            {**FIGURES, "avg_accuracy": mean + 10 * seed + len(name) * seed},
        )
        for name, mean in level.items()
        for seed in (0, 1)
    ]
    table = EXPERIMENTS["fresh_seeds"].tables[1]
    (row,) = table.rows(results_by_seed(runs), CLAIMS, SMOKE)
    by_hand = [
        level[PLUS] + len(PLUS) * seed - np.mean([level[name] + len(name) * seed for name in BASELINES])
        for seed in (0, 1)
    ]
    low, high = stats.t.interval(0.95, 1, loc=np.mean(by_hand), scale=stats.sem(by_hand))
    assert row["avg_accuracy_points"] == {
        "mean": pytest.approx(np.mean(by_hand)), "low": pytest.approx(low, abs=1e-4),
        "high": pytest.approx(high, abs=1e-4), "pairs": 2,
    }  # fmt: skip
    (part,) = table.rows(results_by_seed(runs[:-1]), CLAIMS, SMOKE)
    assert part["verdict"] == "open: 1 of 2 seeds"
    assert part["avg_accuracy_points"]["mean"] == pytest.approx(by_hand[0])
    assert "open: 1 of 2 seeds" in table.markdown([part])


def test_a_table_says_how_many_seeds_are_paired():
    names = (PLUS, "rnd")
    runs = [
        (
            point("digits", name, servers=5, **HARD),
            seed,
            {**FIGURES, "avg_accuracy": 60.0 + seed, "link_energy_mj": 1.0},
        )
        for name in names
        for seed in (0, 1)
    ]
    table = EXPERIMENTS["fresh_seeds"].tables[0]
    for played, said in ((runs, "2"), (runs[1:], "2, 1 paired")):
        rows = table.rows(results_by_seed(played), CLAIMS, SMOKE)
        (line,) = [each for each in table.markdown(rows).splitlines() if "rnd" in each]
        assert line.split("|")[-2].strip() == said


# Attribution, from planted runs


def test_main_effects_are_what_they_are_by_hand():
    """Accuracy of a combination: drawn; the effect of a part: with it minus without, mean over all other parts."""
    rng, runs, level = np.random.default_rng(7), [], {}
    for topology in ("ring", "sgp", "random", "balanced"):
        for there in attribution.combinations():
            for seed in (0, 1):
                level[topology, there, seed] = 60 + 10 * rng.random()
                settings = attribution.combine("digits", 5, topology, there)
                runs.append((settings, seed, {"avg_accuracy": level[topology, there, seed]}))
    rows = attribution.EXPERIMENT.tables[0].rows(results_by_seed(runs), CLAIMS, SMOKE)
    shown = {(row["part"], row["topology"]): row for row in rows if row["servers"] == 5}

    def by_hand(difference):
        values = [np.mean([difference(there, seed) for there in attribution.combinations()]) for seed in (0, 1)]
        return (np.mean(values), *stats.t.interval(0.95, 1, loc=np.mean(values), scale=stats.sem(values)))

    def of_finish(there, seed):
        with_it, without = ((*there[:2], each, there[3]) for each in (True, False))
        return level["sgp", with_it, seed] - level["sgp", without, seed]

    def of_balance(there, seed):
        return level["balanced", there, seed] - level["random", there, seed]

    for key, wanted in ((("finish", "sgp"), by_hand(of_finish)), (("balance", "random"), by_hand(of_balance))):
        found = shown[key]["points"]
        assert (found["mean"], found["low"], found["high"]) == pytest.approx(wanted, abs=1e-3)
    decides = {key for key, row in shown.items() if row["verdict"]}
    assert decides == {("balance", "random")}


def test_a_combination_that_lacks_a_seed_is_in_no_mean():
    runs = [
        (
            attribution.combine("digits", 5, topology, there),
            seed,
            {"avg_accuracy": 60.0 + 5 * seed + (topology == "balanced")},
        )
        for topology in ("random", "balanced")
        for there in attribution.combinations()
        for seed in (0, 1)
    ]
    rows = attribution.EXPERIMENT.tables[0].rows(results_by_seed(runs[:-1]), CLAIMS, SMOKE)
    (row,) = [each for each in rows if each["part"] == "balance"]
    assert (row["points"]["mean"], row["seeds"], row["verdict"]) == (1.0, [0], "open: 1 of 2 seeds")
