import io
import os
import pickle  # noqa: TID251 (to show that it is never called)
import zipfile

import numpy as np
import pytest
from tests.unit.data.own_files import contents, make_format, npy, open_source, picture, trained

from hatdfed.core.task import REGRESSION, TaskKind
from hatdfed.data.datasets.base import SampleFormat
from hatdfed.data.own import images as reader
from hatdfed.data.own.arrays import gather_arrays
from hatdfed.errors import DataError

X = np.stack([picture(number) for number in range(40)])
Y = np.arange(40) % 3


def saved(folder, x=X, y=Y, **more):
    np.savez(folder / "own.npz", x=x, y=y, **more)
    return folder / "own.npz"


def everything(source):
    return set().union(*(trained(source.work(t)) for t in range(8)), contents(source.validation))


@pytest.mark.parametrize("x", [X, X[:, 0], X.transpose(0, 2, 3, 1), X / 255, (X / 255).astype(np.float32)[:, 0]])
@pytest.mark.parametrize("y", [Y, Y.astype(np.uint8), Y.astype(np.int32)])
def test_every_layout_gives_the_same_images(tmp_path, x, y):
    source = open_source(saved(tmp_path, x, y))
    assert everything(source) == {image.tobytes() for image in X}
    assert contents(source.validation) == contents(open_source(saved(tmp_path)).validation)


def test_labels_stay_with_their_images(tmp_path):
    source = open_source(saved(tmp_path))
    label_of = {image.tobytes(): int(label) for image, label in zip(X, Y, strict=True)}
    for batch in (*source.work(0).batches, source.validation):
        assert [label_of[image] for image in contents(batch)] == batch.y.tolist()


def test_compressed_colour_images_are_read(tmp_path):
    colour = np.stack([picture(number, (8, 8, 3)) for number in range(30)])
    np.savez_compressed(tmp_path / "own.npz", x=colour, y=np.zeros(30, dtype=np.int64))
    source = open_source(tmp_path / "own.npz", form=make_format((3, 8, 8)))
    assert everything(source) == {image.transpose(2, 0, 1).tobytes() for image in colour}


def test_only_the_first_round_brings_something_new(tmp_path):
    source = open_source(saved(tmp_path), fresh_only=True)
    rounds = [source.work(t) for t in range(5)]
    assert [work.devices_online for work in rounds] == [1, 0, 0, 0, 0]
    assert sum(work.num_samples for work in rounds) == 40 - len(source.validation.y)
    assert rounds[-1].batches == ()


def test_the_last_images_are_taken_where_memory_is_small(tmp_path):
    warned = []
    source = open_source(saved(tmp_path), max_images=15, warned=warned)
    assert everything(source) == {image.tobytes() for image in X[-15:]}
    assert "There are more than 15 samples" in warned[0]


class Trap:
    def __reduce__(self):
        return (print, ("unpacked",))


@pytest.mark.parametrize("name", ["x", "y"])
def test_python_objects_are_refused_and_never_unpacked(tmp_path, monkeypatch, name):
    trap = np.array([Trap()] * 40, dtype=object)
    path = saved(tmp_path, **{"x": X, "y": Y, name: trap})

    def unpacked(*_, **__):
        raise AssertionError("the objects were unpacked")

    monkeypatch.setattr(pickle, "load", unpacked)
    monkeypatch.setattr(pickle, "loads", unpacked)
    monkeypatch.setattr(pickle, "Unpickler", unpacked)
    with pytest.raises(DataError, match=f"array '{name}': it holds Python objects, which are never unpickled; numbers"):
        open_source(path)


def test_a_sentence_that_says_itself_what_to_do_has_no_other_advice(tmp_path):
    form = SampleFormat((4,), np.dtype("float32"), TaskKind(REGRESSION, 1), (0.0,), (1.0,))
    path = saved(tmp_path, np.full((40, 4), np.nan, np.float32), np.zeros(40))
    with pytest.raises(DataError, match=r"the first at \[0, 0\]\. Remove or replace them\.$"):
        open_source(path, form=form)


@pytest.mark.parametrize(
    ("x", "y", "sentence"),
    [
        (X[:, :, :4], Y, "images of 1×4×8 were found, 1×8×8 were wanted. Save it again"),
        (X.ravel(), np.zeros(40 * 64, dtype=int), "images of no pixels were found"),
        (np.uint8(3), Y[:1], "images of no pixels were found"),
        (X.astype(np.int32), Y, "pixels are int32, uint8 or floats from 0 to 1 were wanted"),
        (X.astype(float), Y, "pixels are floats from 0 to 255, 0 to 1 were wanted. Divide them, or"),
        (X * np.nan, Y, "2560 pixels are NaN or infinite, the first one in image 0"),
        (X, Y / 2, r"labels are float64 of shape \[40\], integers of shape \[40\] were wanted"),
        (X, Y[:-1], "x has 40 samples, but y has 39. Give one target for each sample"),
        (X, Y[:, None], r"labels are int64 of shape \[40, 1\]"),
        (X, Y + 1, "labels go from 1 to 3, but must be numbered from 0. Subtract 1 from all of them. Save it again"),
        (X, Y * 2, "labels go from 0 to 4, from 0 to 2 were wanted"),
        (X, Y - 1, "labels go from -1 to 1, from 0 to 2 were wanted"),
        (X[:5], Y[:5], "holds 5 images that can be used, but at least 10 are needed"),
        (X[:0], Y[:0], "holds 0 images"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path, x, y, sentence):
    with pytest.raises(DataError, match=sentence):
        open_source(saved(tmp_path, x, y))


def test_missing_arrays_are_named(tmp_path):
    np.savez(tmp_path / "own.npz", x=X, labels=Y)
    with pytest.raises(DataError, match=r"has no array 'y', but labels, x. Save it with numpy.savez\(file, x=samples"):
        open_source(tmp_path / "own.npz")


def packed(folder, **members):
    with zipfile.ZipFile(folder / "own.npz", "w") as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return folder / "own.npz"


def header(shape, descr="|u1", version=(1, 0)):
    text = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode().ljust(117) + b"\n"
    return b"\x93NUMPY" + bytes(version) + len(text).to_bytes(2, "little") + text


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (npy(X)[:-1], "2559 bytes of data were found, 2560 were wanted by its header"),
        (b"hello", "it has no valid .npy header"),
        (b"", "it has no valid .npy header"),
        (header((-5, 8, 8)), r"it claims to hold \[-5, 8, 8\] numbers"),
        (header((1 << 40, 8, 8)), "it claims .* bytes in all were wanted"),
        (header((4, 8, 8)), "0 bytes of data were found, 256 were wanted"),
        (header((4,), descr="nonsense"), "it has no valid .npy header"),
        (header((4,)).replace(b"}", b" "), "it has no valid .npy header"),
        (header((0, 1 << 62)), r"it claims to hold \[0, 4611686018427387904\] numbers"),
        (header((1,) * 30), "it claims to hold"),
        (header((4,), version=(3, 0)), r"its format is \(3, 0\)"),
    ],
)
def test_broken_arrays_are_refused(tmp_path, content, sentence):
    with pytest.raises(DataError, match=f"own.npz cannot be used, because of its array 'x': {sentence}"):
        open_source(packed(tmp_path, x=content, y=npy(Y)))


def test_a_file_that_is_no_archive_is_refused(tmp_path):
    (tmp_path / "own.npz").write_bytes(b"hello")
    with pytest.raises(DataError, match=r"is not a valid .npz file .* Save it again with numpy.savez"):
        open_source(tmp_path / "own.npz")
    whole = saved(tmp_path).read_bytes()
    (tmp_path / "own.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"is not a valid \.npz file"):
        open_source(tmp_path / "own.npz")
    changed = bytearray(whole)
    changed[1000] ^= 255
    (tmp_path / "own.npz").write_bytes(changed)
    with pytest.raises(DataError, match=r"is not a valid \.npz file"):
        open_source(tmp_path / "own.npz")


def test_a_file_that_may_not_be_read_is_refused(tmp_path, monkeypatch):
    def closed(*_):
        raise PermissionError(13, "Permission denied")

    path = saved(tmp_path)
    monkeypatch.setattr(reader.zipfile, "ZipFile", closed)
    with pytest.raises(DataError, match=r"cannot be read \(Permission denied\). Check the path and its permissions"):
        open_source(path)


def test_arrays_by_columns_keep_their_order():
    array = np.asfortranarray(np.arange(12).reshape(3, 4))
    assert np.array_equal(reader.read_npy(io.BytesIO(npy(array))), array)


def test_a_pipe_that_never_ends_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "mine.npz")
    with pytest.raises(DataError, match="is not a plain file"):
        gather_arrays(tmp_path / "mine.npz")
