from __future__ import annotations

import numpy as np
import pytest
from matplotlib.text import Annotation

from hatdfed.report import labels as lb
from hatdfed.report import style as st


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


def test_a_long_heading_is_wrapped_inside_the_page() -> None:
    figure, _ = st.chart(6, 5, "A finding that takes many words to be told " * 3, "and a note of 12.3 % and more " * 6)
    assert len(figure.texts) > 3
    for text in figure.texts:
        assert text.get_window_extent().x1 <= figure.bbox.x1
    assert not any(text.get_text().startswith("%") for text in figure.texts)
