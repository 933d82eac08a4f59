"""Own data that cannot be learned from are refused in one sentence, in a run, a comparison and a sweep alike."""

import numpy as np
import pytest
import torch

import hatdfed
from hatdfed.errors import DataError

DRAWN = np.random.default_rng(0)
F = DRAWN.normal(size=(120, 4)).astype(np.float32)
IMAGES = DRAWN.integers(0, 255, (120, 1, 8, 8), dtype=np.uint8)
Y = np.arange(120) % 3
SMALL = {"method": "rnd", "servers": 3, "rounds": 1}

WRONG = {
    "labels from 1": ((F, Y + 1), "Labels go from 1 to 3, .* Subtract 1"),
    "labels with gaps": ((F, 2 * Y), "2 of these classes have no sample, such as 1"),
    "negative labels": ((F, Y - 1), "Labels go from -1 to 1, but must be numbered from 0"),
    "labels without end": ((F, Y * 10**12), "Labels go up to 2000000000000"),
    "labels beyond int64": ((F, Y.astype(np.uint64) + 2**63), "Labels go up to 9223372036854775810"),
    "labels as floats": (
        (F, Y.astype(float)),
        "only a few different whole numbers, as class labels do. Convert labels to integers",
    ),
    "one-hot labels": ((F, np.eye(3, dtype=int)[Y]), r"exactly one 1 in every row.* y\.argmax"),
    "labels as text": ((F, np.array(["a", "b", "c"])[Y]), "y holds text"),
    "images as int64": ((IMAGES.astype(np.int64), Y), "x is int64 of shape .* images to uint8"),
    "Python objects": ((F.astype(object), Y), "x holds Python objects"),
    "ragged lists": (([[1, 2], [3]], [0, 1]), "x cannot be made an array"),
    "NaN": ((np.where(F > 2, np.nan, F), Y), "values that are NaN or infinite, the first at"),
    "masked values": ((np.ma.masked_array(F, F > 0), Y), "x is a masked array"),
    "nothing": ((F[:0], Y[:0]), "x is empty"),
    "unequal lengths": ((F, Y[:-1]), "x has 120 samples, but y has 119"),
    "no targets": ((F, None), "There is no y, and x is float32"),
    "no samples": ((None, Y), "There is no array 'x'"),
    "a tensor of parameters": ((torch.tensor(F, requires_grad=True), Y), r"Give x\.detach\(\)"),
    "test data of another shape": ({"x": F, "y": Y, "x_test": F[:, :2], "y_test": Y}, "x_test and y_test do not go"),
    "test data with NaN": ({"x": F, "y": Y, "x_test": F * np.nan, "y_test": Y}, "x_test and y_test cannot be used"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_data_get_one_sentence_wherever_they_are_given(case, tmp_path):
    data, sentence = WRONG[case]
    plan = {"base": {**SMALL, "dataset": data}, "grid": {"rounds": [1]}, "seeds": 1}
    calls = [
        lambda: hatdfed.run(**SMALL, dataset=data),
        lambda: hatdfed.compare(["rnd"], servers=3, rounds=1, dataset=data),
        lambda: hatdfed.sweep(plan, out=tmp_path / "sweep", jobs=1),
    ]
    for call in calls:
        with pytest.raises(DataError, match=sentence) as caught:
            call()
        assert "\n" not in str(caught.value)


def test_the_task_can_be_named_where_targets_are_doubtful():
    found = hatdfed.run(**SMALL, dataset=(F, Y.astype(float)), task="regression")
    assert found.config.task == "regression"


def test_a_sweep_takes_data_as_python_objects(tmp_path):
    plan = {"base": {**SMALL, "dataset": (F, Y)}, "grid": {"rounds": [1, 2]}, "seeds": 1}
    found = hatdfed.sweep(plan, out=tmp_path / "sweep")  # in one process, which has the data
    assert [row["settings"] for row in found.rows] == [{"rounds": 1}, {"rounds": 2}]
