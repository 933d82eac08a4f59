"""Synthetic: generated images, one smooth template per class, for tests and experiments.

An image is the template of its class, shifted by a few pixels with wrap-around, plus noise in every pixel.
The options determine every pixel on every machine: only elementary arithmetic is used.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.task import CLASSIFICATION, TaskKind
from hatdfed.data.datasets.base import Dataset, DatasetKind, Examples, Progress, make_dataset
from hatdfed.errors import ConfigError
from hatdfed.randomness import stream

KNOTS = 4  # a template is drawn from 4×4 random values, so it has no finer detail than that
DARKEST, BRIGHTEST = 0.2, 0.8  # of a template, so that noise is seldom clipped
MOST_NOISE = 10  # beyond this an image is nothing but noise
MOST_PIXELS = 2**28  # one and a half times CIFAR-10: more is most likely a typing error


def load(
    data_dir: Path | None = None,
    progress: Progress | None = None,
    *,
    classes: int = 10,
    side: int = 8,
    channels: int = 1,
    train: int = 4000,
    validation: int = 1000,
    test: int = 1000,
    noise: float = 0.1,
    seed: int = 0,
) -> Dataset:
    """Generate the data set of these options; `noise` is a standard deviation, where 1 is from black to white."""
    _require_whole("classes", classes, least=2)
    _require_whole("side", side, least=KNOTS)
    _require_whole("channels", channels, least=1)
    _require_whole("seed", seed, least=0)
    _require_noise(noise)
    sizes = {"train": train, "validation": validation, "test": test}
    for split, count in sizes.items():
        _require_whole(split, count, least=classes)  # so that every class has an image
    _require_affordable(sum(sizes.values()) * channels * side * side)

    templates = _draw_templates(seed, classes, channels, side)
    parts = {
        split: _draw_images(stream(seed, "synthetic", split), templates, count, noise) for split, count in sizes.items()
    }
    return make_dataset(
        "synthetic",
        train=parts["train"],
        validation=parts["validation"],
        test=parts["test"],
        task=TaskKind(CLASSIFICATION, classes),
    )


def locate(data_dir: Path | None = None) -> str | None:
    """Return "generated": there is nothing to download."""
    return "generated"


KIND = DatasetKind(
    name="synthetic",
    summary="generated: a smooth template per class with shifts and noise; all sizes are options",
    load=load,
    locate=locate,
    defaults={
        "rounds": 40,
        "images_per_server": 100,
        "validation_images": 300,
        "network": "small-cnn",
        "samples_per_round": 60,
        "local_passes": 2,
        # The price of the model that is really sent.
        "energy": {"model_bits": "actual", "weak_joules_per_sample": 0.5, "strong_joules_per_sample": 0.25},
    },
)


def _draw_templates(seed: int, classes: int, channels: int, side: int) -> NDArray[np.float64]:  # [L, C, H, W]
    """Draw one smooth random image per class, with values from `DARKEST` to `BRIGHTEST`."""
    knots = stream(seed, "synthetic", "templates").standard_normal((classes, channels, KNOTS, KNOTS))
    smooth = _interpolate(_interpolate(knots, side).swapaxes(2, 3), side).swapaxes(2, 3)
    lowest = smooth.min(axis=(1, 2, 3), keepdims=True)
    highest = smooth.max(axis=(1, 2, 3), keepdims=True)
    templates: NDArray[np.float64] = DARKEST + (BRIGHTEST - DARKEST) * (smooth - lowest) / (highest - lowest)
    return templates


def _interpolate(knots: NDArray[np.float64], side: int) -> NDArray[np.float64]:  # [..., KNOTS] -> [..., side]
    """Interpolate linearly along the last axis, with wrap-around, so that a shifted image has no seam."""
    place = np.arange(side) * (KNOTS / side)
    left = place.astype(np.int64)
    share = place - left
    return (1 - share) * knots[..., left] + share * knots[..., (left + 1) % KNOTS]


def _draw_images(rng: np.random.Generator, templates: NDArray[np.float64], count: int, noise: float) -> Examples:
    classes, channels, side, _ = templates.shape
    labels = rng.permutation(np.arange(count, dtype=np.int64) % classes)
    farthest = max(1, side // 8)
    shift = rng.integers(-farthest, farthest + 1, size=(2, count, 1))
    rows, columns = (np.arange(side) + shift) % side  # [n, H] and [n, W]
    clean = templates.astype(np.float32)[
        labels[:, None, None, None],
        np.arange(channels)[None, :, None, None],
        rows[:, None, :, None],
        columns[:, None, None, :],
    ]
    noisy = clean + np.float32(noise) * rng.standard_normal(clean.shape, dtype=np.float32)
    return Examples(np.rint(noisy.clip(0, 1) * 255).astype(np.uint8), labels)


def _require_whole(name: str, value: object, *, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"synthetic: {name} is {value!r}. Use a whole number of at least {least}.")


def _require_noise(value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MOST_NOISE:
        raise ConfigError(f"synthetic: noise is {value!r}. Use a number from 0 to {MOST_NOISE}.")


def _require_affordable(pixels: int) -> None:
    if pixels > MOST_PIXELS:
        raise ConfigError(
            f"synthetic: these options ask for {pixels:,} pixels. Use at most {MOST_PIXELS:,}: "
            "fewer images, or smaller ones."
        )
