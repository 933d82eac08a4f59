import io
import os
import sys

import numpy as np
import pytest
from PIL import Image
from tests.unit.data.own_files import (
    NOW,
    Clock,
    contents,
    fill,
    make_format,
    npy,
    numbers,
    open_source,
    picture,
    put,
    trained,
)

from hatdfed.data.devices import LocalWork
from hatdfed.data.own import folder as folders
from hatdfed.errors import DataError, MissingDependencyError


def encoded(array, kind, **options):
    held = io.BytesIO()
    Image.fromarray(array).save(held, kind, **options)
    return held.getvalue()


def everything(source, rounds=10):
    """All images that the source knows, to train on and held out."""
    return set().union(*(trained(source.work(t)) for t in range(rounds)), contents(source.validation))


def test_a_folder_that_fills_gives_each_round_what_is_new(tmp_path):
    clock = Clock()
    source = open_source(fill(tmp_path, range(12)), fresh_only=True, clock=clock)
    held_out = numbers(contents(source.validation))
    assert numbers(trained(source.work(0))) == set(range(12)) - held_out
    for t, new in [(1, range(100, 108)), (2, range(200, 201)), (3, range(0)), (4, range(300, 310))]:
        clock.now += 30
        fill(tmp_path, new, age=5, now=clock.now)
        work = source.work(t)
        assert numbers(trained(work)) == set(new) - numbers(contents(work.validation))
        assert work.num_samples == len(trained(work))
        assert work.devices_online == (1 if len(new) else 0)


def test_the_newest_come_first_and_the_others_later(tmp_path):
    clock = Clock()
    source = open_source(
        fill(tmp_path, range(10)), settings=LocalWork(samples_per_round=4), fresh_only=True, clock=clock
    )
    while source.work(clock.now).num_samples:
        clock.now += 1
    clock.now += 100
    for number in range(100, 110):
        fill(tmp_path, [number], age=200 - number, now=clock.now + 10)
    first, second = source.work(0), source.work(1)
    held_out = numbers(contents(source.validation))
    newest = [number for number in range(109, 99, -1) if number not in held_out]
    assert numbers(trained(first)) == set(newest[:4])
    assert numbers(trained(second)) == set(newest[4:8])
    assert (first.devices_online, second.devices_online) == (1, 0)


def test_new_images_come_before_known_ones(tmp_path):
    clock = Clock()
    source = open_source(fill(tmp_path, range(30)), clock=clock)
    for t in range(4):
        source.work(t)
    clock.now += 50
    fill(tmp_path, range(100, 105), age=10, now=clock.now)
    work = source.work(4)
    new = set(range(100, 105)) - numbers(contents(work.validation))
    assert new < numbers(trained(work))
    assert work.num_samples == 12


def test_every_kind_of_image_file_is_read(tmp_path):
    fill(tmp_path, range(12))
    grey = picture(500)[0]
    put(tmp_path, "cat/a.PNG", encoded(grey, "PNG"))
    put(tmp_path, "cat/b.jpg", encoded(grey, "JPEG", quality=100))
    put(tmp_path, "cat/c.pgm", b"P5\n# by hand\n8 8\n255\n" + picture(501).tobytes())
    put(tmp_path, "cat/d.pgm", b"P5 8 8 15 " + (picture(502) // 17).tobytes())
    put(tmp_path, "cat/e.npy", npy(picture(503).transpose(1, 2, 0)))
    put(tmp_path, "cat/f.npy", npy(np.asfortranarray(picture(504)[0]) / 255))
    found = everything(open_source(tmp_path))
    assert len(found) == 18
    for wanted in (grey, picture(501), picture(502) // 17 * 17, picture(503), picture(504)):
        assert wanted.tobytes() in found


def test_colour_images_are_read_with_their_channels_first(tmp_path):
    for name in ("cat", "dog", "owl"):
        (tmp_path / name).mkdir()
    pixels = [picture(number, (8, 8, 3)) for number in range(12)]
    for number, image in enumerate(pixels):
        content = encoded(image, "PNG") if number % 2 else b"P6\n8 8\n255\n" + image.tobytes()
        put(tmp_path, f"dog/{number}.{'png' if number % 2 else 'ppm'}", content)
    source = open_source(tmp_path, form=make_format((3, 8, 8)))
    assert everything(source) == {image.transpose(2, 0, 1).tobytes() for image in pixels}
    assert set(source.validation.y.tolist()) == {1}


def test_files_that_are_no_images_of_ours_are_counted_by_reason_and_told_once(tmp_path):
    fill(tmp_path, range(12))
    put(tmp_path, "cat/small.npy", npy(picture(1, (1, 4, 4))))
    put(tmp_path, "cat/small.png", encoded(picture(1, (4, 4)), "PNG"))
    put(tmp_path, "cat/cut.pgm", b"P5 8 8 255 abc")
    put(tmp_path, "cat/cut.png", encoded(picture(1)[0], "PNG")[:60])
    put(tmp_path, "dog/cut.jpg", encoded(picture(1)[0], "JPEG")[:-200])
    put(tmp_path, "dog/cut.npy", npy(picture(1))[:-1])
    put(tmp_path, "dog/empty.npy", b"")
    put(tmp_path, "dog/deep.png", encoded(picture(1)[0].astype(np.uint16) * 200, "PNG"))
    put(tmp_path, "dog/deep.pgm", b"P5 8 8 65535 " + bytes(128))
    put(tmp_path, "owl/bright.npy", npy(picture(1) * 1.0))
    put(tmp_path, "owl/whole.npy", npy(picture(1).astype(np.int32)))
    put(tmp_path, "owl/objects.npy", npy_of_objects())
    put(tmp_path, "owl/notes.txt", b"hello")
    put(tmp_path, "owl/.hidden", b"hello")
    warned = []
    source = open_source(tmp_path, warned=warned)
    assert source._incoming.skipped == {
        "wrong size": 2,
        "cannot be read or is cut short": 5,
        "wrong numbers": 5,
        "unknown file type": 1,
    }
    assert len(everything(source)) == 12
    assert len(warned) == 4
    (told,) = [sentence for sentence in warned if "wrong size" in sentence]
    assert told.startswith(f"2 files in {tmp_path} left out: wrong size (such as cat/small")
    assert told.endswith("Repair or remove such files; further ones are only counted.")
    put(tmp_path, "cat/more.npy", npy(picture(1, (1, 4, 4))))
    source.work(11)
    assert source._incoming.skipped["wrong size"] == 3
    assert len(warned) == 4


def npy_of_objects():
    held = io.BytesIO()
    np.save(held, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    return held.getvalue()


def test_without_a_listener_python_warns(tmp_path):
    put(fill(tmp_path, range(12)), "cat/small.npy", npy(picture(1, (1, 4, 4))))
    with pytest.warns(UserWarning, match="1 file in .* left out: wrong size"):
        open_source(tmp_path)


def test_a_file_that_was_just_changed_waits_for_the_next_round(tmp_path):
    clock = Clock()
    source = open_source(fill(tmp_path, range(12)), fresh_only=True, clock=clock)
    source.work(0)
    fill(tmp_path, range(100, 120), age=0.5)
    assert source.work(1).num_samples == 0
    clock.now += 1
    assert source.work(2).num_samples > 0


def test_a_file_from_the_future_is_read_too(tmp_path):
    fill(tmp_path, range(12))
    put(tmp_path, "cat/later.npy", npy(picture(600)), age=-1e6)
    assert picture(600).tobytes() in everything(open_source(tmp_path))


def test_a_half_written_file_waits_and_is_read_when_it_is_whole(tmp_path):
    clock = Clock()
    warned = []
    source = open_source(fill(tmp_path, range(12)), clock=clock, warned=warned)
    content = npy(picture(700))
    put(tmp_path, "cat/700.npy", content[:90], age=5)
    source.work(0)
    assert source._incoming.waiting == 1
    assert source._incoming.skipped == {}
    put(tmp_path, "cat/700.npy", content, age=4)
    assert source.work(1).devices_online == 1
    assert picture(700).tobytes() in everything(source)
    assert warned == []


def test_a_file_that_stays_broken_is_called_so_and_still_read_when_it_is_mended(tmp_path):
    clock = Clock()
    warned = []
    source = open_source(fill(tmp_path, range(12)), clock=clock, warned=warned)
    put(tmp_path, "cat/700.npy", npy(picture(700))[:90], age=5)
    clock.now += 70
    source.work(0)
    assert source._incoming.skipped == {"cannot be read or is cut short": 1}
    assert len(warned) == 1
    put(tmp_path, "cat/700.npy", npy(picture(700)), age=5, now=clock.now)
    source.work(1)
    assert source._incoming.skipped == {}
    assert picture(700).tobytes() in everything(source)


def test_a_touched_file_is_nothing_new_and_a_changed_one_replaces_its_image(tmp_path):
    source = open_source(fill(tmp_path, range(20)), fresh_only=True, settings=LocalWork(samples_per_round=100))
    source.work(0)
    for path in tmp_path.glob("*/*.npy"):
        os.utime(path, (NOW - 50, NOW - 50))
    assert source.work(1).num_samples == source.work(1).devices_online == 0
    total = int(source.label_counts.sum()) + len(source.validation.y)
    put(tmp_path, "cat/0.npy", npy(picture(800)), age=40)
    assert source.work(2).devices_online == 1
    assert int(source.label_counts.sum()) + len(source.validation.y) == total == 20


def test_images_whose_files_are_taken_away_stay_known(tmp_path):
    source = open_source(fill(tmp_path, range(20)))
    for path in list(tmp_path.iterdir()):
        for file in path.iterdir():
            file.unlink()
        path.rmdir()
    assert source.work(0).num_samples == 12
    fill(tmp_path, range(20))
    assert len(everything(source)) == 20
    assert source.work(20).devices_online == 0


def test_a_file_that_may_not_be_read_is_read_when_it_may(tmp_path, monkeypatch):
    fill(tmp_path, range(12))
    path = put(tmp_path, "cat/900.npy", npy(picture(900)))
    read = type(path).read_bytes
    closed = True

    def guarded(self):
        if closed and self.name == "900.npy":
            raise PermissionError(13, "Permission denied")
        return read(self)

    monkeypatch.setattr(type(path), "read_bytes", guarded)
    warned = []
    source = open_source(tmp_path, warned=warned)
    assert source._incoming.skipped == {"cannot be opened": 1}
    assert "Permission denied" in warned[0]
    closed = False
    assert picture(900).tobytes() in everything(source)
    assert source._incoming.skipped == {}


def test_a_file_that_goes_between_listing_and_reading_is_no_trouble(tmp_path, monkeypatch):
    fill(tmp_path, range(12))
    path = put(tmp_path, "cat/900.npy", npy(picture(900)))
    read = type(path).read_bytes

    def vanishing(self):
        if self.name == "900.npy":
            self.unlink()
        return read(self)

    monkeypatch.setattr(type(path), "read_bytes", vanishing)
    assert len(everything(open_source(tmp_path))) == 12


def test_a_class_folder_that_cannot_be_listed_is_told(tmp_path):
    fill(tmp_path, range(30))
    warned = []
    source = open_source(tmp_path, warned=warned)
    for file in (tmp_path / "owl").iterdir():
        file.unlink()
    (tmp_path / "owl").rmdir()
    (tmp_path / "owl").write_text("no folder")
    assert source.work(0).num_samples == 12
    assert "owl cannot be listed (Not a directory), so its images are left out. Check its permissions." in warned[0]


def test_a_file_that_is_far_too_large_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "MOST_FILE_BYTES", 1000)
    put(fill(tmp_path, range(12)), "cat/film.npy", bytes(1001))
    warned = []
    assert open_source(tmp_path, warned=warned)._incoming.skipped == {"too large": 1}
    assert "1001 bytes were found, at most 1000 were wanted" in warned[0]


def test_only_the_newest_files_of_a_vast_folder_are_read(tmp_path):
    for number in range(25):
        fill(tmp_path, [number], age=1000 - number)
    warned = []
    source = open_source(tmp_path, warned=warned, max_images=15)
    assert numbers(everything(source)) == set(range(10, 25))
    assert "There are more than 15 samples" in warned[0]


def test_pictures_without_pillow_are_refused_at_the_start_and_skipped_later(tmp_path, monkeypatch):
    fill(tmp_path, range(12))
    monkeypatch.setitem(sys.modules, "PIL", None)
    warned = []
    source = open_source(tmp_path, warned=warned)
    put(tmp_path, "cat/a.png", b"anything")
    source.work(0)
    assert source._incoming.skipped == {"Pillow is not installed": 1}
    assert len(warned) == 1
    with pytest.raises(
        MissingDependencyError, match=r"Pillow, which reads them, is not installed. Install it with: pip"
    ):
        open_source(tmp_path)


def test_when_nothing_is_left_the_sentence_says_why(tmp_path):
    fill(tmp_path, range(3))
    fill(tmp_path, range(3, 20), age=0.1)
    put(tmp_path, "cat/x.npy", npy(picture(1, (2, 2))))
    with pytest.raises(DataError, match=r"holds 3 images .* Left out: 1 wrong size; 17 still being written\."):
        open_source(tmp_path, warned=[])
