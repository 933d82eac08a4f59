from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from hatdfed.core.policies.link_bandit import theorem_learning_rate
from hatdfed.core.regret import printed_bound, standard_bound
from hatdfed.report.regret_figure import has_regret, regret_figure
from hatdfed.report.style import FigureStyle, style_methods

ETA = theorem_learning_rate(5, 6)


def words(figure: Figure) -> list[str]:
    legend = figure.axes[0].get_legend()
    assert legend is not None
    return [text.get_text() for text in legend.get_texts()]


def lines(figure: Figure, length: int = 6) -> list[Any]:
    return [line.get_ydata() for line in figure.axes[0].lines if len(np.asarray(line.get_ydata())) == length]


def test_only_methods_with_a_budget_are_shown(make_run) -> None:
    methods = style_methods({"rnd": [make_run(budget=6)], "ring": [make_run()]})
    assert [has_regret(method) for method in methods] == [True, False]
    figure = regret_figure(methods)
    assert [text.split()[0] for text in words(figure)] == ["rnd"]
    assert " ".join(text.get_text() for text in figure.texts).endswith("without a known budget of links: ring.")


def test_the_bandit_stands_beside_both_bounds(make_run) -> None:
    runs = {"hat-dfed": [make_run(budget=6, learning_rate=ETA, seed=seed) for seed in range(3)]}
    figure = regret_figure(style_methods(runs))
    assert "does not hold in general" in words(figure)[1]
    standard, printed = lines(figure)[-2:]
    assert standard[-1] == pytest.approx(standard_bound(20, 6, 6, ETA))
    assert standard[0] == pytest.approx(6 * math.log(20 / 6) / ETA + ETA * 20 / 2)
    assert set(printed) == {printed_bound(5, 6)}
    assert figure.axes[0].get_yscale() == "function"  # both are far above what was missed


def test_the_printed_bound_is_not_shown_for_another_learning_rate(make_run) -> None:
    methods = style_methods({"hat-dfed": [make_run(budget=6, learning_rate=0.9)]})
    assert [text.split()[0] for text in words(regret_figure(methods))] == ["standard", "hat-dfed"]


def test_bandits_alike_share_a_bound_and_others_have_their_own(make_run) -> None:
    alike = {"a": [make_run(budget=6, learning_rate=ETA)], "b": [make_run(budget=6, learning_rate=ETA)]}
    assert sum("standard" in text for text in words(regret_figure(style_methods(alike)))) == 1
    other = regret_figure(style_methods({**alike, "c": [make_run(budget=3, learning_rate=ETA)]}))
    assert {text.split("\n")[0] for text in words(other) if "standard" in text} == {
        "standard bound of a",
        "standard bound of c",
    }


def test_bounds_that_are_near_share_the_axis(make_run) -> None:
    run = make_run(budget=6, learning_rate=ETA)
    missed = run._replace(rounds=[{**record, "regret_best_fixed": 30.0 * record["t"]} for record in run.rounds])
    assert regret_figure(style_methods({"hat-dfed": [missed]})).axes[0].get_yscale() == "linear"


def test_a_narrow_figure_has_room_for_its_legend_and_its_axes(make_run) -> None:
    methods = style_methods({"hat-dfed": [make_run(budget=6, learning_rate=ETA)]})
    wide, narrow = regret_figure(methods), regret_figure(methods, FigureStyle(width=4.2, font_size=9))
    narrow.draw_without_rendering()
    inches = narrow.axes[0].get_position().height * narrow.get_figheight()
    assert inches > 1.4
    assert narrow.get_figheight() < wide.get_figheight() * 1.2
    fixed = FigureStyle(width=4.2, height=3.0)
    assert regret_figure(methods, fixed).get_figheight() == 3.0


@pytest.mark.parametrize("odd", [{"rounds": 1}, {"rounds": 1, "learning_rate": None}, {"learning_rate": 0.0}])
def test_regret_at_the_edge_is_drawn(odd: dict[str, Any], make_run) -> None:
    settings = {"budget": 6, "learning_rate": ETA, **odd}
    figure = regret_figure(style_methods({"hat-dfed": [make_run(**settings), make_run(**settings, seed=1)]}))
    figure.draw_without_rendering()


def test_regret_that_was_not_reported_is_told(make_run) -> None:
    run = make_run(budget=6)
    silent = run._replace(rounds=[{**record, "regret_best_fixed": None} for record in run.rounds])
    figure = regret_figure(style_methods({"rnd": [silent]}))
    assert figure.texts[0].get_text() == "No regret was reported"


def test_the_legend_of_many_methods_stays_on_the_page(make_run) -> None:
    runs = {
        f"one-peer-method-{k}": [make_run(budget=6, learning_rate=ETA, seed=k + s) for s in (0, 50)] for k in range(20)
    }
    figure = regret_figure(style_methods(runs))
    figure.draw_without_rendering()
    legend = figure.axes[0].get_legend()
    assert legend is not None
    box = legend.get_window_extent()
    assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.axes[0].bbox.y1 + 10
    assert box.x1 <= figure.bbox.x1
