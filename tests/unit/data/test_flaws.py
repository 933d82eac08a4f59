"""Flaws of a server's training data."""

import numpy as np
import pytest

from hatdfed.data.datasets.base import Images
from hatdfed.data.flaws import Flaws
from hatdfed.randomness import stream


def images(count=4000, num_classes=10):
    rng = stream(0, "images with flaws")
    return Images(rng.integers(256, size=(count, 1, 4, 4), dtype=np.uint8), rng.integers(num_classes, size=count))


def test_data_without_flaws_stay_as_they_are():
    flaws = Flaws(0, 3)
    assert not flaws
    seen = flaws.apply(images(), 10)
    np.testing.assert_array_equal(seen.pixels, images().pixels)
    np.testing.assert_array_equal(seen.labels, images().labels)


@pytest.mark.parametrize("flaw", [{"label_rate": 0.1}, {"is_noise": True}, {"flips_labels": True}])
def test_every_flaw_is_one(flaw):
    assert Flaws(0, 3, **flaw)


@pytest.mark.parametrize("rate", [0.2, 0.8, 1.0])
def test_the_share_of_replaced_labels_is_about_the_rate(rate):
    """Of the replaced ones, every tenth is drawn as it was."""
    seen = Flaws(0, 3, label_rate=rate).apply(images(), 10)
    wrong = (seen.labels != images().labels).mean()
    assert wrong == pytest.approx(0.9 * rate, abs=4 * 0.5 / np.sqrt(4000))
    np.testing.assert_array_equal(seen.pixels, images().pixels)


def test_replaced_labels_are_spread_over_all_classes():
    ones = images()._replace(labels=np.ones(4000, dtype=np.int64))
    drawn = np.bincount(Flaws(0, 3, label_rate=1.0).apply(ones, 10).labels, minlength=10)
    assert len(drawn) == 10
    assert np.abs(drawn - 400).max() < 5 * np.sqrt(400)


def test_turned_around_twice_labels_are_what_they_were():
    flip = Flaws(0, 3, flips_labels=True)
    once = flip.apply(images(), 10)
    np.testing.assert_array_equal(once.labels, 9 - images().labels)
    np.testing.assert_array_equal(flip.apply(once, 10).labels, images().labels)


def test_a_broken_sensor_sends_noise_of_all_brightnesses_and_keeps_the_labels():
    dark = images()._replace(pixels=np.zeros((4000, 1, 4, 4), dtype=np.uint8))
    seen = Flaws(0, 3, is_noise=True).apply(dark, 10)
    assert seen.pixels.shape == dark.pixels.shape
    assert seen.pixels.dtype == np.uint8
    assert (seen.pixels.min(), seen.pixels.max()) == (0, 255)
    assert seen.pixels.mean() == pytest.approx(127.5, abs=2)
    np.testing.assert_array_equal(seen.labels, dark.labels)


def test_noise_says_nothing_about_the_image_behind_it():
    flaws = Flaws(0, 3, is_noise=True)
    other = images()._replace(pixels=255 - images().pixels)
    np.testing.assert_array_equal(flaws.apply(images(), 10).pixels, flaws.apply(other, 10).pixels)


def test_flaws_are_the_same_every_time():
    flaws = Flaws(5, 3, label_rate=0.5, is_noise=True)
    one, two = flaws.apply(images(), 10), flaws.apply(images(), 10)
    np.testing.assert_array_equal(one.pixels, two.pixels)
    np.testing.assert_array_equal(one.labels, two.labels)


@pytest.mark.parametrize(("seed", "server"), [(5, 4), (6, 3)])
def test_servers_and_seeds_differ_in_noise_and_in_labels(seed, server):
    one, two = (Flaws(*who, label_rate=0.5, is_noise=True).apply(images(), 10) for who in ((5, 3), (seed, server)))
    assert not np.array_equal(one.pixels, two.pixels)
    assert not np.array_equal(one.labels, two.labels)


def test_the_given_images_are_not_changed():
    given = images()
    Flaws(0, 3, label_rate=1.0, is_noise=True, flips_labels=True).apply(given, 10)
    np.testing.assert_array_equal(given.pixels, images().pixels)
    np.testing.assert_array_equal(given.labels, images().labels)
