"""What can be learned from, and what is refused in one sentence."""

import numpy as np
import pytest

from hatdfed.core.task import IGNORED
from hatdfed.data.own.arrays import OwnArrays
from hatdfed.data.own.checks import make_examples
from hatdfed.data.own.dataset import make_own_dataset
from hatdfed.errors import DataError, HatdfedError

RNG = np.random.default_rng(0)
TABLE = RNG.normal(size=(60, 4))
TOKENS = RNG.integers(9, size=(60, 7))
CLASSES = np.arange(60) % 3


@pytest.mark.parametrize(
    ("x", "y", "task", "outputs"),
    [
        (TABLE, CLASSES, "classification", 3),
        (TABLE, CLASSES.astype(np.uint8)[:, None], "classification", 3),
        (TABLE, CLASSES > 0, "classification", 2),
        (TABLE, TABLE[:, 0], "regression", 1),
        (TABLE, TABLE[:, :2].astype(np.float16), "regression", 2),
        (TABLE, (TABLE > 0).astype(int), "multi-label", 4),
        (TABLE, TABLE > 0, "multi-label", 4),
        (TOKENS, None, "next-token", 9),
        (TOKENS.astype(np.uint8), None, "next-token", 9),
        (TOKENS, TOKENS[:, ::-1], "next-token", 9),
        (TOKENS, CLASSES, "classification", 3),
        (RNG.integers(256, size=(60, 5, 6), dtype=np.uint8), CLASSES, "classification", 3),
    ],
)
def test_the_task_is_guessed_from_the_types(x, y, task, outputs):
    _, kind = make_examples(x, y)
    assert (kind.name, kind.num_outputs) == (task, outputs)


@pytest.mark.parametrize(
    ("x", "shape", "dtype"),
    [
        (TABLE, (4,), np.float32),
        (TABLE[:, 0], (1,), np.float32),
        (TABLE > 0, (4,), np.float32),
        (RNG.normal(size=(60, 8, 3)), (8, 3), np.float32),
        (TOKENS.astype(np.int16), (7,), np.int16),
        (np.zeros((60, 5, 6), np.uint8), (1, 5, 6), np.uint8),
        (np.zeros((60, 5, 6, 3), np.uint8), (3, 5, 6), np.uint8),
        (np.zeros((60, 7, 5, 6), np.uint8), (7, 5, 6), np.uint8),
    ],
)
def test_samples_keep_their_shape_and_type(x, shape, dtype):
    examples, _ = make_examples(x, CLASSES)
    assert examples.x.shape == (60, *shape)
    assert examples.x.dtype == dtype


def test_the_next_tokens_are_those_one_place_on():
    examples, _ = make_examples(TOKENS, None)
    np.testing.assert_array_equal(examples.x[:, 1:], examples.y[:, :-1])
    np.testing.assert_array_equal(examples.y[:, -1], TOKENS[:, -1])


def with_value(array, value):
    changed = np.array(array)
    changed[3, 1] = value
    return changed


@pytest.mark.parametrize(
    ("x", "y", "task", "said"),
    [
        (TABLE.astype(object), CLASSES, None, "x holds Python objects, but must be an array of integers or real"),
        (TABLE.astype(complex), CLASSES, None, "x holds complex numbers"),
        (TABLE, CLASSES.astype(str), None, "y holds text"),
        (np.zeros(60, "datetime64[s]"), CLASSES, None, r"x holds datetime64\[s\]"),
        (
            with_value(TABLE, np.nan),
            CLASSES,
            None,
            r"x has one value that is NaN or infinite, at \[3, 1\]\. Remove or replace it\.",
        ),
        (with_value(TABLE, np.inf), CLASSES, None, "NaN or infinite"),
        (TABLE, with_value(TABLE, np.nan), None, "y has one value that is NaN"),
        (with_value(TABLE, 1e300), CLASSES, None, "too large for float32"),
        (TABLE[:0], CLASSES[:0], None, r"x is empty: its shape is \[0, 4\]"),
        (np.float64(3), CLASSES, None, "x is a single number"),
        (TABLE[:50], CLASSES, None, "x has 50 samples, but y has 60"),
        (TABLE, None, None, "next-token prediction needs token ids"),
        (TABLE, None, "regression", "There is no y, but task regression needs a target"),
        (TABLE, CLASSES - 1, None, "Labels go from -1 to 1, but must be numbered from 0"),
        (TABLE, TABLE[:, 0], "classification", "y is float64 of shape"),
        (TABLE, TABLE, "multi-label", "several labels at once are 0 or 1"),
        (TABLE, np.zeros((60, 2, 2)), None, r"a regression needs values \[n\] or \[n, K\]"),
        (TABLE, CLASSES, "clasification", "Did you mean classification"),
        (np.zeros((60, 5, 6), np.int32), CLASSES, None, "neither token ids .* nor 8-bit images"),
        (np.arange(60), CLASSES, None, "neither token ids"),
        (TOKENS - 1, CLASSES, None, "which are no token ids"),
        (TOKENS[:, :1], None, None, "sequences of one token"),
        (TOKENS, TOKENS[:, 1:], "next-token", "must hold the next token of each one in x"),
        (TOKENS, TOKENS - 7, "next-token", f"only {IGNORED} may be negative"),
    ],
)
def test_what_cannot_be_learned_from_is_refused(x, y, task, said):
    with pytest.raises(HatdfedError, match=said) as refusal:
        make_examples(np.asarray(x), y, task)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("x", "y", "said"),
    [
        (TABLE, CLASSES + 1, "Labels go from 1 to 3, but must be numbered from 0. Subtract 1 from all of them"),
        (TABLE, CLASSES * 2, "2 of these classes have no sample, such as 1"),
        (TABLE, CLASSES * 0, "at least 2 classes"),
        (TABLE, np.arange(60), "look like values, not like classes. Set task to regression"),
        (TABLE, np.ones(60), "All targets are the same"),
        (TABLE[:10], CLASSES[:10], "There are 10 samples, but at least 20"),
    ],
)
def test_a_data_set_must_make_sense_as_a_whole(x, y, said):
    with pytest.raises(DataError, match=said):
        make_own_dataset(OwnArrays(x, y))


def test_a_data_set_is_split_without_overlap_and_always_alike():
    dataset = make_own_dataset(OwnArrays(TABLE, TABLE[:, 0]))
    parts = [dataset.train, dataset.validation, dataset.test]
    assert [part.count for part in parts] == [42, 6, 12]
    rows = np.concatenate([part.x for part in parts])
    assert len(np.unique(rows, axis=0)) == 60
    again = make_own_dataset(OwnArrays(TABLE.copy(), TABLE[:, 0]))
    np.testing.assert_array_equal(again.train.x, dataset.train.x)
    assert again.name == dataset.name
    assert make_own_dataset(OwnArrays(TABLE + 1, TABLE[:, 0])).name != dataset.name
    assert (
        make_own_dataset(OwnArrays(TABLE, CLASSES), "regression").name
        != make_own_dataset(OwnArrays(TABLE, CLASSES)).name
    )


def test_targets_of_a_regression_are_standardised_by_the_training_data():
    task = make_own_dataset(OwnArrays(TABLE, 100 + 7 * TABLE[:, :2])).task
    assert task.target_mean == pytest.approx((100, 100), abs=5)
    assert task.target_std == pytest.approx((7, 7), rel=0.4)


def test_own_test_data_and_groups_are_used_as_they_are():
    arrays = OwnArrays(TABLE, CLASSES, np.array(["a", "b", "c"])[CLASSES], TABLE[:5], CLASSES[:5])
    dataset = make_own_dataset(arrays)
    np.testing.assert_array_equal(dataset.test.y, CLASSES[:5])
    np.testing.assert_array_equal(dataset.groups, dataset.train.y)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"groups": CLASSES[:5]}, r"groups has the shape \[5\], but must name one group for each of 60"),
        ({"groups": CLASSES * 0}, "All samples are of one group"),
        ({"groups": TABLE[:, 0]}, "groups holds float64, but must be integers or text"),
        ({"y_test": CLASSES}, "There is y_test, but no x_test"),
        ({"x_test": TABLE[:, :3], "y_test": CLASSES}, r"do not go with x and y: samples are float32 of shape \[3\]"),
        ({"x_test": TABLE, "y_test": CLASSES + 1}, "labels go from 1 to 3, but must be numbered from 0. Subtract 1"),
        ({"x_test": TABLE, "y_test": CLASSES + 5}, "do not go with x and y: labels go up to 7, up to 2 were wanted"),
    ],
)
def test_groups_and_test_data_that_do_not_fit_are_refused(more, said):
    with pytest.raises(DataError, match=said):
        make_own_dataset(OwnArrays(TABLE, CLASSES)._replace(**more))
