"""Kinds of data: images turned or inverted, labels that mean another class."""

import numpy as np
import pytest

from hatdfed.data.datasets.base import Examples
from hatdfed.data.kinds import PLAIN, Kind, make_kinds
from hatdfed.errors import ConfigError
from hatdfed.randomness import stream

SQUARE, WIDE = (50, 1, 8, 8), (50, 1, 8, 6)


def images(shape=SQUARE, num_classes=10):
    rng = stream(0, "images of kinds")
    return Examples(rng.integers(256, size=shape, dtype=np.uint8), rng.integers(num_classes, size=shape[0]))


@pytest.mark.parametrize("differ", ["none", "inputs", "labels"])
def test_the_first_kind_is_the_data_as_they_are(differ):
    first = make_kinds(differ, 2, 10, SQUARE)[0]
    assert first == PLAIN
    seen = first.apply(images(), 10)
    np.testing.assert_array_equal(seen.x, images().x)
    np.testing.assert_array_equal(seen.y, images().y)


def test_groups_that_differ_in_nothing_are_all_plain():
    assert make_kinds("none", 3, 10, SQUARE) == [PLAIN] * 3


def test_upside_down_twice_is_the_original():
    turned = Kind(quarter_turns=2)
    once = turned.apply(images(), 10)
    assert not np.array_equal(once.x, images().x)
    np.testing.assert_array_equal(turned.apply(once, 10).x, images().x)


def test_a_quarter_turn_is_clockwise():
    corner = Examples(np.zeros((1, 1, 4, 4), dtype=np.uint8), np.zeros(1, dtype=np.int64))
    corner.x[0, 0, 0, 1] = 255  # at the top, left of the middle
    turned = Kind(quarter_turns=1).apply(corner, 10).x[0, 0]
    assert np.argwhere(turned).tolist() == [[1, 3]]  # at the right, above the middle


def test_the_negative_of_a_negative_is_the_original():
    negative = Kind(is_negative=True)
    once = negative.apply(images(), 10)
    np.testing.assert_array_equal(once.x, 255 - images().x)
    np.testing.assert_array_equal(negative.apply(once, 10).x, images().x)


def test_inputs_that_differ_leave_the_labels_alone():
    for kind in make_kinds("inputs", 8, 10, SQUARE):
        np.testing.assert_array_equal(kind.apply(images(), 10).y, images().y)


def test_labels_that_differ_leave_the_images_alone():
    for kind in make_kinds("labels", 10, 10, SQUARE):
        np.testing.assert_array_equal(kind.apply(images(), 10).x, images().x)


@pytest.mark.parametrize("num_classes", [2, 3, 9, 10, 26])
def test_a_shift_gives_every_label_another_meaning_of_its_own(num_classes):
    """Also where the usual step of three shares a divisor with the number of classes."""
    every = Examples(np.zeros((num_classes, 1, 2, 2), dtype=np.uint8), np.arange(num_classes))
    kinds = make_kinds("labels", num_classes, num_classes, (num_classes, 1, 2, 2))
    meanings = np.stack([kind.apply(every, num_classes).y for kind in kinds])  # [kind, label]
    for kind in meanings:
        assert sorted(kind.tolist()) == list(range(num_classes))
    for label in meanings.T:
        assert len(set(label.tolist())) == num_classes


def test_all_eight_kinds_of_inputs_differ():
    seen = [kind.apply(images(), 10).x.tobytes() for kind in make_kinds("inputs", 8, 10, SQUARE)]
    assert len(set(seen)) == 8


def test_the_first_groups_are_the_same_however_many_there_are():
    assert make_kinds("inputs", 8, 10, SQUARE)[:3] == make_kinds("inputs", 3, 10, SQUARE)
    assert make_kinds("labels", 10, 10, SQUARE)[:3] == make_kinds("labels", 3, 10, SQUARE)


def test_images_that_are_not_square_keep_their_shape():
    for kind in make_kinds("inputs", 2, 10, WIDE):
        assert kind.apply(images(WIDE), 10).x.shape == WIDE


@pytest.mark.parametrize(
    ("differ", "count", "shape", "message"),
    [
        ("inputs", 9, SQUARE, r"^world\.groups is 9, but there are at most 8 groups that differ in their inputs\.$"),
        ("labels", 11, SQUARE, r"^world\.groups is 11, but there are at most 10 groups that differ in the meaning of"),
        ("inputs", 3, WIDE, r"^world\.groups is 3, but images that are not square can only be turned upside down\.$"),
    ],
)
def test_more_groups_than_possible_are_refused_in_a_sentence(differ, count, shape, message):
    with pytest.raises(ConfigError, match=message):
        make_kinds(differ, count, 10, shape)
