from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib import rcParams, rcParamsDefault
from matplotlib.text import Annotation, Text

from hatdfed.errors import ConfigError
from hatdfed.report import labels as lb
from hatdfed.report import style as st
from hatdfed.report.comparison_figures import draw_comparison_figures
from hatdfed.report.run_figures import draw_run_figures


def test_labels_that_are_wanted_at_one_place_are_spread_around_it() -> None:
    placed = lb.spread(np.array([50.0, 50.0, 50.0, 90.0]), 10, 100)
    np.testing.assert_allclose(placed, [40, 50, 60, 90])


def test_spread_labels_stay_on_the_page_in_their_order() -> None:
    wanted = np.array([99.0, 100.0, 1.0, 98.0, 0.0])
    placed = lb.spread(wanted, 12, 100)
    assert np.argsort(placed).tolist() == np.argsort(wanted).tolist()
    assert np.diff(np.sort(placed)).min() >= 12 - 1e-9
    assert placed.min() >= 0
    assert placed.max() <= 100


@pytest.mark.parametrize("crowd", [1, 5, 20])
def test_no_label_of_a_crowd_covers_another_or_leaves_the_axes(crowd: int) -> None:
    points = np.random.default_rng(crowd).uniform(0, 1, (crowd, 2))
    figure, axes = st.chart(9, 6, "A crowd", "of points")
    axes.set(xlim=(-0.1, 1.1), ylim=(-0.1, 1.1))
    lb.place_labels(figure, axes, points, [f"method {index}" for index in range(crowd)], points)
    notes = [note for note in axes.texts if isinstance(note, Annotation) and note.get_text()]
    boxes = [note.get_window_extent() for note in notes]
    assert len(boxes) == crowd
    for index, box in enumerate(boxes):
        assert box.count_overlaps(boxes[:index]) == 0
        assert axes.bbox.x0 <= box.x0 < box.x1 <= axes.bbox.x1
        assert axes.bbox.y0 <= box.y0 < box.y1 <= axes.bbox.y1


def test_labels_of_ringed_points_touch_no_ring() -> None:
    figure, axes = st.chart(9, 6, "A front", "of points")
    points = np.array([[0.2, 0.3], [0.6, 0.6]])
    lb.place_labels(figure, axes, points, ["hat-dfed", "d-psgd"], points, ringed=[0, 1])
    for note, at in zip(axes.texts, axes.transData.transform(points), strict=True):
        box = note.get_window_extent()
        nearest = np.clip(at, [box.x0, box.y0], [box.x1, box.y1])
        assert np.linalg.norm(nearest - at) * 72 / st.DPI > 8.6, "points: half of a ring and of its line"


def test_a_long_heading_is_wrapped_inside_the_page() -> None:
    figure, _ = st.chart(6, 5, "A finding that takes many words to be told " * 3, "and a note of 12.3 % and more " * 6)
    assert len(figure.texts) > 3
    for text in figure.texts:
        assert text.get_window_extent().x1 <= figure.bbox.x1
    assert not any(text.get_text().startswith("%") for text in figure.texts)


def test_a_style_sets_size_words_and_headline_of_every_figure_of_a_run(make_run) -> None:
    style = st.FigureStyle(headline=False, width=3.4, font_size=7)
    usual, small = draw_run_figures(make_run(budget=2)), draw_run_figures(make_run(budget=2), style)
    assert usual.keys() == small.keys()
    for name, figure in small.items():
        assert figure.get_figwidth() == 3.4
        assert figure.get_figheight() < usual[name].get_figheight()
        assert usual[name].texts
        assert not figure.texts
        words = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]
        assert max(text.get_size() for text in words) <= 7


def test_words_of_a_narrow_figure_stay_inside_and_the_legend_leaves_room_for_the_axes(make_run) -> None:
    names = ("hat-dfed", "hat-dfed-plus", "rnd", "d-psgd")
    runs = {name: [make_run(label=name, seed=seed, budget=2) for seed in range(2)] for name in names}
    style = st.FigureStyle(headline=False, width=3.4, font_size=8)
    for name, figure in draw_comparison_figures(runs, style).items():
        figure.draw_without_rendering()
        axes = figure.axes[0]
        if name != "link_use":
            assert axes.bbox.width > 0.6 * figure.bbox.width
        if (legend := axes.get_legend()) is not None:
            box = legend.get_window_extent()
            assert 0 <= box.x0 < box.x1 <= figure.bbox.x1
            assert box.y1 <= figure.bbox.y1


LONG = "(dataset digits, network small-cnn, samples_per_round 30, label_concentration 0.5, …)"


@pytest.mark.parametrize("style", [st.SCREEN, st.FigureStyle(width=7.2, font_size=9), st.FigureStyle(width=3.4)])
def test_long_names_leave_most_of_a_figure_to_its_axes(make_run, style: st.FigureStyle) -> None:
    names = [f"{method} {LONG}" for method in ("hat-dfed", "hat-dfed-plus", "rnd")]
    runs = {name: [make_run(label=name, seed=seed, budget=2) for seed in range(2)] for name in names}
    for name, figure in draw_comparison_figures(runs, style).items():
        st.settle(figure)
        figure.draw_without_rendering()
        axes = figure.axes[0]
        if name != "link_use":
            assert axes.bbox.width > 0.5 * figure.bbox.width, name
            assert axes.bbox.height > 0.29 * figure.usual_height * st.DPI, name
        legend = axes.get_legend()
        words = [*figure.texts, *axes.texts, *(legend.get_texts() if legend else ())]
        boxes = [text.get_window_extent() for text in words if text.get_text()]
        assert all(box.x0 >= -1 and box.x1 <= figure.bbox.x1 + 1 for box in boxes), name
        headline = min(text.get_window_extent().y0 for text in figure.texts)
        assert axes.get_tightbbox().y1 <= headline, name


@pytest.mark.parametrize(("width", "font_size"), [(None, 24), (3.4, 10), (4, 16), (30, 24)])
@pytest.mark.parametrize("headline", [True, False])
def test_a_figure_is_as_high_as_its_words_need(make_run, tmp_path, width, font_size: float, headline: bool) -> None:
    style = st.FigureStyle(headline=headline, width=width, font_size=font_size)
    runs = {name: [make_run(label=name, seed=seed, budget=2) for seed in range(2)] for name in ("hat-dfed", "rnd")}
    figures = {**draw_comparison_figures(runs, style), **draw_run_figures(make_run(budget=2), style)}
    st.save_figures(figures, tmp_path)
    for name, figure in figures.items():
        assert figure.axes[0].bbox.height >= st._LEAST_AXES * st.DPI, name
        if headline:
            lowest = min(text.get_window_extent().y0 for text in figure.texts)
            assert max(axes.bbox.y1 for axes in figure.axes) <= lowest, name


@pytest.mark.parametrize(
    "style", [st.FigureStyle(height=1), st.FigureStyle(width=3.4, height=2), st.FigureStyle(width=2, font_size=24)]
)
def test_a_figure_without_room_for_its_axes_is_refused_and_no_other_is_written(make_run, tmp_path, style) -> None:
    runs = {name: [make_run(label=name, budget=2)] for name in ("hat-dfed", "rnd")}
    with pytest.raises(ConfigError, match=r"^A figure .* need at least 0.5 × 0.5 inches\. Choose a larger size"):
        st.save_figures(draw_comparison_figures(runs, style), tmp_path / "figures")
    assert not (tmp_path / "figures").exists()


def test_a_figure_whose_axes_lose_their_room_in_a_second_layout_is_refused(make_run, tmp_path) -> None:
    runs = {name: [make_run(label=name, seed=seed, rounds=4) for seed in range(2)] for name in ("full", "rnd")}
    style = st.FigureStyle(headline=False, width=3.4, font_size=24)
    for name, figure in draw_comparison_figures(runs, style).items():
        try:
            st.settle(figure)
        except ConfigError:
            continue
        for _ in range(3):
            assert min(st._lay_out_axes(figure)) >= st._LEAST_AXES, name


@pytest.mark.parametrize("headline", [True, False])
def test_a_refused_figure_is_named_and_no_size_that_is_too_small_looks_large_enough(headline: bool) -> None:
    figure, _ = st.chart(9, 2, "A finding", "and a note", st.FigureStyle(headline=headline, height=2))
    told = st._describe_lack_of_room(figure, 8.53, 0.497, "energy")
    ways = "a larger size, a smaller font, or no headline" if headline else "a larger size or a smaller font"
    assert "leaves 8.5 × 0.49 inches for the axes of 'energy', which need at least 0.5 × 0.5 inches" in told
    assert told.endswith(f". Choose {ways}.")


def test_the_height_of_a_style_is_that_of_its_figures() -> None:
    assert st.find_size(8, 4.8, st.SCREEN) == (8, 4.8)
    assert st.find_size(8, 4.8, st.FigureStyle(width=4, height=2)) == (4, 2)
    width, height = st.find_size(8, 8, st.FigureStyle(width=4, font_size=8))
    assert width == height == 4


def test_figures_are_saved_in_every_format_of_their_style_and_equal_ones_are_equal_files(tmp_path: Path) -> None:
    formats = ("png", "svg", "pdf")
    files = []
    for folder in (tmp_path / "1", tmp_path / "2"):
        figure, _ = st.chart(4, 3, "A finding", "and a note", st.FigureStyle(formats))
        files.append(st.save_figures({"one": figure}, folder))
        assert figure.dpi == st.DPI
    assert [file.name for file in files[0]] == ["one.png", "one.svg", "one.pdf"]
    for file, start in zip(files[0], (b"\x89PNG", b"<?xml", b"%PDF-"), strict=True):
        assert file.read_bytes().startswith(start)
    assert [file.read_bytes() for file in files[0]] == [file.read_bytes() for file in files[1]]
    assert b"/Type3" not in files[0][2].read_bytes()
    assert rcParams["pdf.fonttype"] == rcParamsDefault["pdf.fonttype"]
