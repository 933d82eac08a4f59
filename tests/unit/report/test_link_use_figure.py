from __future__ import annotations

import numpy as np
import pytest

import hatdfed.report.run_data as rp
from hatdfed.report import findings as fd
from hatdfed.report.link_use_figure import link_use_figure
from hatdfed.report.style import FigureStyle, style_methods


def test_use_counts_the_rounds_of_each_link_row_receives(make_run) -> None:
    run = make_run(num_servers=3, rounds=4, link_share=0.0)
    drawn = [{"t": t, "receiver": 0, "sender": 2} for t in range(3)] + [{"t": 0, "receiver": 1, "sender": 0}]
    np.testing.assert_array_equal(rp.link_use(run._replace(links=drawn)), [[0, 0, 0.75], [0.25, 0, 0], [0, 0, 0]])
    assert rp.link_use(make_run(num_servers=3, link_share=1.0)).sum() == 6


@pytest.mark.parametrize("num_methods", [1, 2, 3, 5, 7, 16, 20])
def test_every_method_has_a_panel_up_to_sixteen(num_methods: int, make_run) -> None:
    runs = {f"method-{k}": [make_run(3, seed=k), make_run(3, seed=k + 50)] for k in range(num_methods)}
    figure = link_use_figure(style_methods(runs))
    panels = [axes for axes in figure.axes if axes.get_title()]
    assert len(panels) == min(num_methods, 16)
    assert ("Not shown: method-16" in " ".join(text.get_text() for text in figure.texts)) == (num_methods > 16)
    figure.draw_without_rendering()
    boxes = [panel.get_tightbbox() for panel in panels]
    for index, box in enumerate(boxes):
        assert box is not None
        assert box.padded(-2).count_overlaps(boxes[:index]) == 0  # type: ignore[arg-type]
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
        assert box.y1 < min(text.get_window_extent().y0 for text in figure.texts)


@pytest.mark.parametrize(("num_servers", "is_named"), [(40, True), (41, False)])
def test_servers_are_numbered_where_there_is_room(num_servers: int, is_named: bool, make_run) -> None:
    figure = link_use_figure(style_methods({"rnd": [make_run(num_servers, rounds=2)]}))
    assert bool(len(figure.axes[0].get_xticks())) is is_named


def test_panels_share_one_scale_of_colours(make_run) -> None:
    often, never = make_run(3, link_share=1.0), make_run(3, link_share=0.0)
    once = often._replace(links=[link for link in often.links if link["t"] < 3])  # in half of the rounds
    figure = link_use_figure(style_methods({"full": [often], "half": [once], "local": [never]}))
    full, half, local = (axes.images[0].get_array()[0, 1] for axes in figure.axes[:3])  # type: ignore[index]
    assert full.sum() < half.sum() < local.sum()  # the more often, the darker


def test_the_matrix_is_that_of_the_first_seed_and_the_note_says_so(make_run) -> None:
    often, never = make_run(3, link_share=1.0), make_run(3, link_share=0.0)
    alone, first = (link_use_figure(style_methods({"full": runs})) for runs in ([often], [often, never]))
    pictures = [figure.axes[0].images[0].get_array() for figure in (alone, first)]
    np.testing.assert_array_equal(*pictures)
    notes = [" ".join(text.get_text() for text in figure.texts).replace("\n", " ") for figure in (alone, first)]
    assert "first seed only: seeds differ in data and prices. The title is the mean over 2 seeds." in notes[1]
    assert "seed" not in notes[0]


def test_the_title_says_how_uneven_the_first_method_that_chooses_is() -> None:
    ring = np.array([[0.0, 100.0], [100.0, 0.0]])
    chosen = np.array([[0.0, 80.0], [20.0, 0.0]])
    assert fd.link_use_finding({"d-psgd": [ring], "hat-dfed": [chosen]}) == (
        "hat-dfed draws its most frequent link in 80 % of the rounds, its rarest in 20 %"
    )
    assert fd.link_use_finding({"d-psgd": [ring]}) == "Every method keeps to the same links in all rounds"


def test_the_most_frequent_link_is_found_in_each_world_for_itself() -> None:
    here = np.array([[0.0, 80.0], [20.0, 0.0]])
    there = np.array([[0.0, 30.0], [70.0, 0.0]])  # another world, another most frequent link
    assert fd.link_use_finding({"hat-dfed": [here, there]}) == (
        "hat-dfed draws its most frequent link in 75 % of the rounds, its rarest in 25 %"
    )


def test_a_figure_for_a_column_has_no_empty_bands(make_run) -> None:
    runs = {name: [make_run(5, seed=0)] for name in ("a", "b", "c")}
    figure = link_use_figure(style_methods(runs), FigureStyle(headline=False, width=3.4, font_size=8))
    figure.draw_without_rendering()
    assert figure.get_figwidth() == 3.4
    assert figure.get_tightbbox().height > 0.9 * figure.get_figheight()
