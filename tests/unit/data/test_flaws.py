"""Flaws of a server's training data."""

import numpy as np
import pytest

from hatdfed.data.datasets.base import Examples
from hatdfed.data.flaws import Flaws
from hatdfed.randomness import stream


def images(count=4000, num_classes=10):
    rng = stream(0, "images with flaws")
    return Examples(rng.integers(256, size=(count, 1, 4, 4), dtype=np.uint8), rng.integers(num_classes, size=count))


def test_data_without_flaws_stay_as_they_are():
    flaws = Flaws(0, 3)
    assert not flaws
    seen = flaws.apply(images(), 10)
    np.testing.assert_array_equal(seen.x, images().x)
    np.testing.assert_array_equal(seen.y, images().y)


@pytest.mark.parametrize("flaw", [{"label_rate": 0.1}, {"is_noise": True}, {"flips_labels": True}])
def test_every_flaw_is_one(flaw):
    assert Flaws(0, 3, **flaw)


@pytest.mark.parametrize("rate", [0.2, 0.8, 1.0])
def test_the_share_of_replaced_labels_is_about_the_rate(rate):
    """Of the replaced ones, every tenth is drawn as it was."""
    seen = Flaws(0, 3, label_rate=rate).apply(images(), 10)
    wrong = (seen.y != images().y).mean()
    assert wrong == pytest.approx(0.9 * rate, abs=4 * 0.5 / np.sqrt(4000))
    np.testing.assert_array_equal(seen.x, images().x)


def test_replaced_labels_are_spread_over_all_classes():
    ones = images()._replace(y=np.ones(4000, dtype=np.int64))
    drawn = np.bincount(Flaws(0, 3, label_rate=1.0).apply(ones, 10).y, minlength=10)
    assert len(drawn) == 10
    assert np.abs(drawn - 400).max() < 5 * np.sqrt(400)


def test_turned_around_twice_labels_are_what_they_were():
    flip = Flaws(0, 3, flips_labels=True)
    once = flip.apply(images(), 10)
    np.testing.assert_array_equal(once.y, 9 - images().y)
    np.testing.assert_array_equal(flip.apply(once, 10).y, images().y)


def test_a_broken_sensor_sends_noise_of_all_brightnesses_and_keeps_the_labels():
    dark = images()._replace(x=np.zeros((4000, 1, 4, 4), dtype=np.uint8))
    seen = Flaws(0, 3, is_noise=True).apply(dark, 10)
    assert seen.x.shape == dark.x.shape
    assert seen.x.dtype == np.uint8
    assert (seen.x.min(), seen.x.max()) == (0, 255)
    assert seen.x.mean() == pytest.approx(127.5, abs=2)
    np.testing.assert_array_equal(seen.y, dark.y)


def test_noise_says_nothing_about_the_image_behind_it():
    flaws = Flaws(0, 3, is_noise=True)
    other = images()._replace(x=255 - images().x)
    np.testing.assert_array_equal(flaws.apply(images(), 10).x, flaws.apply(other, 10).x)


def test_flaws_are_the_same_every_time():
    flaws = Flaws(5, 3, label_rate=0.5, is_noise=True)
    one, two = flaws.apply(images(), 10), flaws.apply(images(), 10)
    np.testing.assert_array_equal(one.x, two.x)
    np.testing.assert_array_equal(one.y, two.y)


@pytest.mark.parametrize(("seed", "server"), [(5, 4), (6, 3)])
def test_servers_and_seeds_differ_in_noise_and_in_labels(seed, server):
    one, two = (Flaws(*who, label_rate=0.5, is_noise=True).apply(images(), 10) for who in ((5, 3), (seed, server)))
    assert not np.array_equal(one.x, two.x)
    assert not np.array_equal(one.y, two.y)


def test_the_given_images_are_not_changed():
    given = images()
    Flaws(0, 3, label_rate=1.0, is_noise=True, flips_labels=True).apply(given, 10)
    np.testing.assert_array_equal(given.x, images().x)
    np.testing.assert_array_equal(given.y, images().y)
