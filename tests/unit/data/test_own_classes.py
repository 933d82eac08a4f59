import pytest
from tests.unit.data.own_files import contents, fill, make_format, npy, open_source, picture, put

from hatdfed.data.devices import LocalWork
from hatdfed.errors import DataError


def test_sorted_names_are_the_labels_and_a_list_gives_another_order(tmp_path):
    fill(tmp_path, range(30))
    sorted_names = open_source(tmp_path)
    (tmp_path / "classes.txt").write_text("owl\n\ndog\ncat\n")
    listed = open_source(tmp_path)
    assert contents(sorted_names.validation) == contents(listed.validation)
    assert (2 - sorted_names.validation.y).tolist() == listed.validation.y.tolist()


def test_a_listed_class_may_come_later(tmp_path):
    fill(tmp_path, range(30))
    (tmp_path / "classes.txt").write_text("cat\ndog\nowl\nyak\n")
    source = open_source(
        tmp_path, form=make_format(num_classes=4), fresh_only=True, settings=LocalWork(samples_per_round=100)
    )
    source.work(0)
    for number in range(100, 120):
        put(tmp_path, f"yak/{number}.npy", npy(picture(number)))
    assert {label for batch in source.work(1).batches for label in batch.y.tolist()} == {3}
    assert source.label_counts[3] > 0


@pytest.mark.parametrize(
    ("listed", "sentence"),
    [
        (b"cat\ndog\n", "names 2 different classes on 2 lines, but the model has 3. Write the name of each class once"),
        (b"cat\ndog\ncat\n", "names 2 different classes on 3 lines"),
        (b"cat\ndog\n../owl\n", r"names '\.\./owl', which is not the name of a sub-folder. Use names without slashes"),
        (b"cat\ndog\n..\n", "which is not the name of a sub-folder"),
        (b"cat\ndog\nowl\0\n", "which is not the name of a sub-folder"),
        (b"cat\ndog\n\xff\xfe\n", "is not UTF-8 text. Write one name of a sub-folder on each line"),
    ],
)
def test_a_list_of_classes_that_cannot_be_right_is_refused(tmp_path, listed, sentence):
    (fill(tmp_path, range(12)) / "classes.txt").write_bytes(listed)
    with pytest.raises(DataError, match=sentence):
        open_source(tmp_path)


def test_a_missing_class_folder_is_refused_because_labels_would_shift(tmp_path):
    fill(tmp_path, range(12))
    with pytest.raises(
        DataError, match=r"has 3 sub-folders, but the model has 4 classes. Make one for each class, empty"
    ):
        open_source(tmp_path, form=make_format(num_classes=4))
    (tmp_path / "zebra").mkdir()
    (tmp_path / ".cache").mkdir()
    assert open_source(tmp_path, form=make_format(num_classes=4)).work(0).num_samples > 0
