"""The forms in which users have data; libraries that are not installed are played by objects that can do the same."""

import numpy as np
import pytest
import torch
from tests.unit.data.own_files import fill, npy, picture, put

from hatdfed.data.own.arrays import gather_arrays
from hatdfed.errors import DataError

X = np.random.default_rng(0).normal(size=(30, 3)).astype(np.float32)
Y = np.arange(30) % 2


class Column(np.ndarray):
    """A column of a pandas frame, as far as it is used."""

    def isna(self):
        return np.array([value is None or value != value for value in self.tolist()])


class Frame:
    """A pandas frame, as far as it is used."""

    iloc = None

    def __init__(self, **columns):
        self._columns = {name: np.asarray(column).view(Column) for name, column in columns.items()}
        self.columns = list(columns)

    def __getitem__(self, name):
        return self._columns[name]


class HuggingFace:
    """A Hugging Face data set, as far as it is used."""

    features = with_format = None

    def __init__(self, **columns):
        self._columns = columns
        self.column_names = list(columns)

    def __getitem__(self, name):
        return self._columns[name]


class Pairs(torch.utils.data.Dataset):
    """A torch data set."""

    def __init__(self, *items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, place):
        return self.items[place]


@pytest.mark.parametrize(
    "given",
    [
        (X, Y),
        [X, Y],
        {"x": X, "y": Y},
        (torch.tensor(X), torch.tensor(Y)),
        (X.tolist(), Y.tolist()),
        torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(Y)),
        Pairs(*zip(X, Y.tolist(), strict=True)),
        Frame(a=X[:, 0], b=X[:, 1], c=X[:, 2], label=Y),
        HuggingFace(a=X[:, 0].tolist(), b=X[:, 1].tolist(), c=X[:, 2].tolist(), label=Y.tolist()),
        HuggingFace(values=X.tolist(), label=Y.tolist()),
    ],
    ids=lambda given: type(given).__name__,
)
def test_every_form_gives_the_same_arrays(given):
    found = gather_arrays(given, target="label")
    np.testing.assert_allclose(found.x, X, rtol=1e-6)
    np.testing.assert_array_equal(found.y, Y)


def test_an_array_alone_holds_samples():
    tokens = np.arange(12).reshape(3, 4)
    for given in (tokens, torch.tensor(tokens), Pairs(*tokens)):
        found = gather_arrays(given)
        np.testing.assert_array_equal(found.x, tokens)
        assert found.y is None


def test_tokens_of_a_tokenizer_are_recognised():
    given = HuggingFace(text=["a", "b"], input_ids=[[1, 2], [3, 4]], attention_mask=[[1, 1], [1, 1]])
    np.testing.assert_array_equal(gather_arrays(given).x, [[1, 2], [3, 4]])


def test_an_npz_file_may_have_groups_and_test_data(tmp_path):
    np.savez(tmp_path / "own.npz", x=X, y=Y, groups=np.array(["a", "b"])[Y], x_test=X[:2], y_test=Y[:2], other=X)
    found = gather_arrays(tmp_path / "own.npz")
    assert found.groups.tolist() == np.array(["a", "b"])[Y].tolist()
    np.testing.assert_array_equal(found.x_test, X[:2])
    assert found.name == "own"
    assert found.digest() == found._replace(name="another").digest()


def test_a_folder_of_images_is_read_class_by_class(tmp_path):
    found = gather_arrays(fill(tmp_path, range(12)))
    assert found.x.shape == (12, 1, 8, 8)
    assert found.y.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    np.testing.assert_array_equal(found.x[0], picture(0))
    put(tmp_path, "cat/broken.npy", b"no image")
    with pytest.raises(DataError, match=r"broken\.npy cannot be used"):
        gather_arrays(tmp_path)
    put(tmp_path, "cat/broken.npy", npy(picture(1, (1, 9, 9))))
    with pytest.raises(DataError, match=r"broken\.npy cannot be used: images of 1×9×9 were found, 1×8×8 were wanted"):
        gather_arrays(tmp_path)


def test_columns_of_text_are_coded_as_categories():
    frame = Frame(colour=np.array(["red", "blue", "red"], dtype=object), size=[1, 2, 3], kind=["b", "a", "b"])
    found = gather_arrays(frame, target="kind")
    np.testing.assert_array_equal(found.x, [[0, 1, 1], [1, 0, 2], [0, 1, 3]])
    assert found.y.tolist() == [1, 0, 1]
    grouped = gather_arrays(frame, target="kind", groups="colour")
    assert grouped.x.shape == (3, 1)
    assert grouped.groups.tolist() == ["red", "blue", "red"]


@pytest.mark.parametrize(
    ("given", "target", "said"),
    [
        ((torch.zeros(3, requires_grad=True), Y), None, r"x is a tensor that requires grad, .* Give x.detach\(\)"),
        ((X, Y, Y, Y), None, r"4 arrays were given, but \(x, y\)"),
        ({"y": Y}, None, "There is no array 'x'"),
        ({"x": X, "labels": Y}, None, "no use for the array 'labels'"),
        (([[1, 2], [3]], Y), None, "x cannot be made an array"),
        (Pairs(), None, "The data set Pairs is empty"),
        (Pairs((1, 2, 3)), None, "Items of Pairs have 3 parts, but must be pairs"),
        (Pairs((X[0], 1), (X[0, :2], 1)), None, "x has samples of shapes"),
        (Frame(a=[1, 2]), None, "The columns are a. Say which one is to be learned"),
        (Frame(a=[1, 2]), "b", "There is no column 'b', but a"),
        (Frame(a=[1, 2]), "a", "no column besides the target 'a'"),
        (Frame(a=[1, 2], b=np.array(["x", None], dtype=object)), "a", "Column 'b' has 1 cells without a value"),
        (Frame(a=np.arange(200), b=np.arange(200).astype(str)), "a", "Column 'b' has 200 different texts"),
        (Frame(a=[1, 2], b=np.zeros(2, "datetime64[s]")), "a", "Column 'b' holds times"),
        (3.5, None, "Data of type float cannot be used"),
        ("data.csv", None, "data.csv is neither an .npz file nor a folder"),
    ],
)
def test_what_cannot_be_understood_is_refused(given, target, said):
    with pytest.raises(DataError, match=said) as refusal:
        gather_arrays(given, target=target)
    assert "\n" not in str(refusal.value)
