import numpy as np
import pytest
import torch
from tests.unit.data.own_files import (
    SHAPE,
    WORK,
    Clock,
    contents,
    fill,
    make_format,
    numbers,
    open_source,
    picture,
    trained,
)

from hatdfed.core.effort import ServerEffort
from hatdfed.data.devices import LocalWork
from hatdfed.data.own.images import OwnSample
from hatdfed.data.own.source import ImageStore, OwnData, SlowMachine
from hatdfed.errors import ConfigError, DataError


def image(name, content_hash, label=0):
    return OwnSample(name, picture(0), np.array(label), content_hash)


def names(images):
    return [image.name for image in images]


def store(share=0.1, max_images=100, max_held_out=100):
    return ImageStore(held_out_share=share, max_images=max_images, max_held_out=max_held_out)


def test_a_round_trains_on_so_many_images_in_passes_over_all_of_them(tmp_path):
    work = open_source(fill(tmp_path, range(60))).work(0)
    assert work.num_samples == 12 == len(trained(work))
    assert [len(batch.y) for batch in work.batches] == [5, 5, 2] * 2
    first = {image for batch in work.batches[:3] for image in contents(batch)}
    assert first == trained(work)
    assert set(contents(work.probe)) <= trained(work)
    assert len(work.probe.y) == 4


def test_what_lies_there_at_the_start_is_used_up_before_anything_is_used_again(tmp_path):
    source = open_source(fill(tmp_path, range(60)))
    held_out = set(contents(source.validation))
    rounds = [source.work(t) for t in range(8)]
    seen = set().union(*(trained(work) for work in rounds))
    assert len(seen) == 60 - len(held_out)
    assert not seen & held_out
    assert sum(work.num_samples for work in rounds[:4]) == 48 == len(set().union(*map(trained, rounds[:4])))
    assert [work.num_samples for work in rounds] == [12] * 8
    assert [work.devices_online for work in rounds] == [1] + [0] * 7


def test_what_lies_there_at_the_start_is_not_taken_class_by_class(tmp_path):
    for number in range(90):
        fill(tmp_path, [number], age=1000 - 300 * (number % 3))
    labels = {label for batch in open_source(tmp_path).work(0).batches for label in batch.y.tolist()}
    assert labels == {0, 1, 2}


def test_the_same_round_can_be_asked_for_again(tmp_path):
    source = open_source(fill(tmp_path, range(40)))
    work = source.work(3)
    fill(tmp_path, range(40, 60))
    assert source.work(3) is work
    assert source.work(4).devices_online == 1


def test_equal_worlds_give_equal_rounds_and_other_seeds_and_servers_others(tmp_path):
    fill(tmp_path, range(60))
    rounds = [
        [trained(open_source(tmp_path, **who).work(t)) for t in range(3)]
        for who in ({}, {}, {"seed": 6}, {"server": 2})
    ]
    assert rounds[0] == rounds[1]
    assert rounds[0] != rounds[2]
    assert rounds[0] != rounds[3]
    one, two = open_source(tmp_path).work(2), open_source(tmp_path).work(2)
    assert one.seed == two.seed != open_source(tmp_path).work(1).seed
    assert all(torch.equal(a.x, b.x) and torch.equal(a.y, b.y) for a, b in zip(one.batches, two.batches, strict=True))
    assert torch.equal(one.probe.x, two.probe.x)


def test_the_held_out_images_are_the_same_for_every_seed_server_round_and_start(tmp_path):
    fill(tmp_path, range(80))
    held_out = contents(open_source(tmp_path).validation)
    assert 2 <= len(held_out) <= 16
    assert contents(open_source(tmp_path, seed=9, server=4).validation) == held_out
    source = open_source(tmp_path)
    fill(tmp_path, range(80, 160))
    later = source.work(0).validation
    assert set(held_out) < set(contents(later))
    assert later is source.validation
    assert contents(open_source(tmp_path).validation) == contents(later)


def test_an_image_under_another_name_stays_on_its_side(tmp_path):
    fill(tmp_path, range(60))
    held_out = contents(open_source(tmp_path).validation)
    for path in list(tmp_path.glob("*/*.npy")):
        path.rename(path.with_name(f"moved-{path.name}"))
    assert contents(open_source(tmp_path).validation) == held_out


def test_labels_are_counted_among_the_images_to_train_on(tmp_path):
    source = open_source(fill(tmp_path, range(31)))
    counts = source.work(0).label_counts
    held_out = torch.bincount(source.validation.y, minlength=3)
    assert (counts + held_out).tolist() == [11, 10, 10]
    assert isinstance(source, OwnData)
    assert torch.equal(source.label_counts, counts)


def test_images_are_standardised_as_told(tmp_path):
    source = open_source(fill(tmp_path, range(20)), form=make_format(mean=0.2, std=0.4))
    (number, *_) = [n for n in range(20) if picture(n).tobytes() in contents(open_source(tmp_path).validation)]
    wanted = (torch.from_numpy(picture(number)).float() / 255 - 0.2) / 0.4
    assert any(torch.equal(found, wanted) for found in source.validation.x)
    assert source.validation.x.dtype == torch.float32


def test_a_topped_up_probe_is_full_and_one_without_images_comes_from_the_stock(tmp_path):
    fill(tmp_path, range(40))
    topped = open_source(tmp_path, settings=LocalWork(samples_per_round=3, probe_size=9, probe_top_up=True)).work(0)
    assert len(set(contents(topped.probe))) == 9
    settings = LocalWork(samples_per_round=100, probe_size=9)
    source = open_source(tmp_path, settings=settings, fresh_only=True)
    source.work(0)
    idle = source.work(1)
    assert idle.batches == ()
    assert idle.num_samples == idle.devices_online == 0
    assert len(idle.probe.y) == 9
    assert not set(contents(idle.probe)) & set(contents(source.validation))


def test_a_held_out_probe_is_a_sample_of_the_validation_images(tmp_path):
    settings = LocalWork(samples_per_round=100, probe_size=3, holds_out_probe=True)
    source = open_source(fill(tmp_path, range(40)), settings=settings)
    probes = [set(contents(source.work(t).probe)) for t in range(4)]
    assert all(len(probe) == 3 and probe <= set(contents(source.validation)) for probe in probes)
    assert len(set(map(frozenset, probes))) > 1


def test_a_slow_machine_is_put_around_the_data(tmp_path):
    source = open_source(fill(tmp_path, range(40)), work_share=0.3)
    assert isinstance(source, SlowMachine)
    assert [len(batch.y) for batch in source.work(0).batches] == [5, 5]
    assert source.work(0).num_samples == 10


def test_more_images_than_memory_allows_push_the_oldest_out_and_this_is_said_once(tmp_path):
    warned = []
    clock = Clock()
    source = open_source(fill(tmp_path, range(20)), max_images=20, warned=warned, clock=clock)
    for t in range(3):
        clock.now += 50
        fill(tmp_path, range(20 + 10 * t, 30 + 10 * t), age=10, now=clock.now)
        source.work(t)
    assert warned == [
        "There are more than 20 samples, so the oldest are left out. Raise max_images if there is memory for more."
    ]
    assert int(source.label_counts.sum()) <= 20


def test_the_oldest_make_room():
    kept = store(max_images=3)
    kept.add([image(str(i), 0.5 + i / 100) for i in range(6)])
    assert names(kept.training) == ["3", "4", "5"]
    assert kept.dropped == 2  # one of the six is held out, because nothing else was
    assert names(kept.held_out) == ["0"]


def test_the_smallest_marks_stay_when_many_are_held_out():
    kept = store(max_held_out=2)
    kept.add([image("a", 0.09), image("b", 0.01), image("c", 0.05), image("d", 0.9)])
    assert names(kept.held_out) == ["b", "c"]
    assert names(kept.training) == ["d"]


def test_without_a_small_mark_the_smallest_is_held_out_until_there_is_one():
    kept = store()
    kept.add([image("a", 0.5), image("b", 0.4)])
    assert names(kept.held_out) == ["b"]
    kept.add([image("c", 0.3)])
    assert names(kept.held_out) == ["c"]
    assert set(names(kept.training)) == {"a", "b"}
    kept.add([image("d", 0.05)])
    assert names(kept.held_out) == ["d"]
    assert set(names(kept.training)) == {"a", "b", "c"}


def test_a_name_counts_again_only_with_other_content():
    kept = store()
    assert kept.add([image("a", 0.5), image("b", 0.05)]) == 2
    kept.use(kept.fresh)
    assert kept.add([image("a", 0.5)]) == 0
    assert kept.fresh == []
    assert kept.add([image("a", 0.6)]) == 1
    assert names(kept.fresh) == ["a"]
    assert len(kept.training) == 1


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"form": make_format((1, 0, 8))}, r"the shape \[1, 0, 8\], but every side must be at least 1"),
        ({"form": make_format(num_classes=1)}, "There are 1 classes, but a classifier needs at least 2"),
        ({"held_out_share": 0.0}, r"held_out_share is 0\.0, but must be above 0 and at most 0\.5"),
        ({"max_images": 9}, "max_images is 9 and max_validation 1000, but at least 10 and 1 are needed"),
        ({"work_share": 0.0}, r"work_share is 0\.0, but must be above 0 and at most 1"),
    ],
)
def test_settings_that_cannot_work_are_refused(tmp_path, changes, sentence):
    with pytest.raises(ConfigError, match=sentence):
        open_source(fill(tmp_path, range(20)), **changes)


@pytest.mark.parametrize("where", ["nowhere/at/all", "not-a-module", "a b:c"])
def test_a_place_that_is_not_there_is_refused(where):
    with pytest.raises(DataError, match=r"does not exist. Name a folder .* an .npz file with x and y, or package"):
        open_source(where)


def test_a_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "data.csv").write_text("1,2")
    with pytest.raises(DataError, match=r"data.csv is a file of another type. Name a folder"):
        open_source(tmp_path / "data.csv")


def test_too_few_images_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"holds 9 images that can be used, but at least 10 are needed .* Add images"):
        open_source(fill(tmp_path, range(9)))
    source = open_source(fill(tmp_path, range(10)))
    assert len(source.validation.y) >= 1
    assert source.work(0).num_samples + len(source.validation.y) <= 12
    assert numbers(trained(source.work(0))) <= set(range(10))


def test_images_that_are_all_alike_are_refused(tmp_path):
    np.savez(tmp_path / "same.npz", x=np.zeros((30, *SHAPE), dtype=np.uint8), y=np.zeros(30, dtype=np.int64))
    with pytest.raises(DataError, match="holds 30 images, but their contents are so similar that all are held out"):
        open_source(tmp_path / "same.npz", settings=WORK)


def test_a_server_that_rests_keeps_its_new_images_for_later(tmp_path):
    source = open_source(fill(tmp_path, range(60)))
    resting = source.work(0, ServerEffort(0, asks=True))
    assert not resting.batches
    assert (resting.num_samples, resting.devices_online, resting.volume) == (0, 1, 12)
    assert len(resting.probe.y) == WORK.probe_size
    trained_on = trained(source.work(1, ServerEffort(3, asks=False)))
    assert len(trained_on) == 12
    assert trained_on == trained(open_source(tmp_path).work(1)), "they were not used up"


def test_a_server_that_asks_nobody_does_not_look_for_new_images(tmp_path):
    source = open_source(fill(tmp_path, range(40)))
    source.work(0)
    fill(tmp_path, range(40, 80))
    held = source.work(1, ServerEffort(2, asks=False))
    assert held.devices_online == 0
    assert numbers(trained(held)) <= set(range(40))
    assert source.work(2).devices_online == 1
