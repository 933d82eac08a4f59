"""Figures about hat-dfed-plus, from figures made by hand."""

import pytest

from hatdfed_paper import figure_words as words
from hatdfed_paper.claims import Claims
from hatdfed_paper.figure_data import figure_data
from hatdfed_paper.figures import write_figures
from hatdfed_paper.plans import BASELINES, FULL, SMOKE, Scale, point, points
from hatdfed_paper.plus_figure_data import AS_IT_IS, DENSE, EQUAL, PLUS, front_panels, regime_panels
from hatdfed_paper.regimes import FACTORS
from hatdfed_paper.results import ResultFile, Results, keep

CLAIMS = Claims({"sparsity": [], "sensitivity": {"best_alpha": 0.6, "best_beta": 0.4}})
NEAR = {"avg_accuracy": 80.0, "total_energy_mj": 1.0, "link_energy_mj": 0.5}
CAUSES = {"link_energy_mj": 8.0, "training_energy_mj": 1.5, "upload_energy_mj": 0.5}


def results_of(runs):
    files = {"by hand": ResultFile(None, "smoke")}
    curve = {"round": [], "accuracy": [], "total_mj": [], "regret": []}
    for settings, figures in runs:
        record = {"key": "", "settings": {**settings, "seed": 0}, "figures": figures, "curve": curve}
        keep(files, "by hand", record)
    return Results(files)


def everything(experiments):
    return {str(each): each for name in experiments for each in points(name, SMOKE)}.values()


def test_every_way_to_play_the_methods_has_its_line():
    runs = [(each, NEAR) for each in everything(["plus", "plus_equal", "plus_dense"])]
    for panel in front_panels(results_of(runs), "digits"):
        methods = {line["name"]: line["methods"] for line in panel["lines"]}
        five = [*BASELINES, "hat-dfed"]
        assert methods == {AS_IT_IS: five, EQUAL: five, DENSE: list(BASELINES), PLUS: [PLUS]}


def test_what_was_not_played_is_left_out():
    without_plus = [(each, NEAR) for each in everything(["plus"]) if each["method"] != PLUS]
    assert all(panel["lines"] == [] for panel in front_panels(results_of(without_plus), "digits"))
    first, *others = front_panels(results_of([(point("digits", PLUS), NEAR)]), "digits")
    assert [line["name"] for line in first["lines"]] == [PLUS]
    assert all(panel["lines"] == [] and panel["front"] == [] for panel in others)


def test_the_front_is_what_nothing_beats_at_both():
    figures = {"rnd": (70.0, 3.0), "sgp": (82.0, 4.0), PLUS: (80.0, 1.0)}
    runs = [(point("digits", name), {"avg_accuracy": a, "total_energy_mj": e}) for name, (a, e) in figures.items()]
    panel = front_panels(results_of(runs), "digits")[0]
    names = [panel["lines"][line]["methods"][place] for line, place in panel["front"]]
    assert names == [PLUS, "sgp"]


def test_the_title_of_the_front_follows_from_the_numbers():
    figures = {"rnd": (70.0, 4.0), "sgp": (78.0, 5.0), "hat-dfed": (60.0, 2.0), PLUS: (80.0, 1.0)}
    runs = [
        (point("digits", name), {**NEAR, "avg_accuracy": accuracy, "total_energy_mj": energy})
        for name, (accuracy, energy) in figures.items()
    ]
    data = figure_data(results_of(runs), CLAIMS, Scale("smoke", ("digits",), seeds=1, servers=(5,)))["front-digits.png"]
    expected = "hat-dfed-plus-0.1 ends 2.0 to 10.0 points above the baselines with 20 to 25 % of their energy"
    assert words.title(data) == f"Digits: {expected}"


def test_the_map_has_a_line_for_every_price_of_a_sample():
    thrifty = {**CAUSES, "link_energy_mj": 0.0}
    runs = [(point("cifar-10", name), CAUSES) for name in BASELINES] + [(point("cifar-10", PLUS), thrifty)]
    (panel,) = regime_panels(results_of(runs), "cifar-10", FULL)
    assert len(panel["lines"]) == len(FACTORS)
    middle = panel["lines"][len(FACTORS) // 2]
    assert middle["saved"][len(FACTORS) // 2] == middle["share"][len(FACTORS) // 2] == pytest.approx(80.0)
    assert middle["x"] == sorted(middle["x"])
    (empty,) = regime_panels(results_of(runs[:-1]), "cifar-10", FULL)
    assert empty["lines"] == []


def test_both_can_be_drawn(tmp_path):
    of_front = [(each, NEAR) for each in everything(["plus", "plus_equal"]) if each["label_concentration"] == 0.3]
    scale = Scale("smoke", ("digits", "cifar-10"), seeds=1, servers=(5,))
    runs = [*of_front, *((point("cifar-10", name), {**CAUSES, **NEAR}) for name in (*BASELINES, PLUS))]
    files = write_figures(results_of(runs), CLAIMS, scale, tmp_path)
    names = {"front-digits.png", "front-cifar-10.png", "regimes-cifar-10.png"}
    assert names <= {path.name for path in files}
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in names)
