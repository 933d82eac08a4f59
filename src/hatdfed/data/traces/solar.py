"""Power of solar panels: from a measured year of weather, or from a formula for the sun with random clouds.

The measured years are typical meteorological years (TMY3, US National Renewable Energy Laboratory) that the package
pvlib (BSD-3-Clause) ships for its examples. Only its data files are read; it is neither imported nor needed otherwise.

The formula is for those who want another latitude, or no further package. Clear sky after B. Haurwitz, "Insolation in
relation to cloudiness and cloud density" (Journal of Meteorology 2, 1945), declination after P. I. Cooper (Solar
Energy 12, 1969). The weather is a Markov chain of clear, mixed and overcast days with clouds that last for hours. Its
numbers are chosen, not fitted to any place.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.traces import Trace
from hatdfed.data.datasets.packages import PackageFiles, find_module_folder, require_package_files
from hatdfed.data.traces.daily import DAY, HOUR
from hatdfed.errors import DataError, require_one_of
from hatdfed.randomness import stream

Values = NDArray[np.float64]

FULL_SUN = 1000.0  # W/m², at which a panel has its rated power
_HOURS = 8760
_IRRADIANCE = "GHI (W/m^2)"  # on a horizontal surface, mean of the hour before

# From clear, mixed or overcast: the chance of each on the next day, and what each lets through.
_NEXT_SKY = np.array([[0.60, 0.30, 0.10], [0.30, 0.40, 0.30], [0.15, 0.35, 0.50]])
_SKY_MEAN = np.array([0.95, 0.60, 0.25])
_SKY_DEVIATION = np.array([0.03, 0.20, 0.08])
_CLOUD_MEMORY = 0.8  # correlation of the clouds from one hour to the next


class Panel(NamedTuple):
    """A panel that lies flat, at each of several servers."""

    peak_watts: float  # at full sun
    performance: float = 0.8  # what is left of it after heat, dirt and conversion
    shade: float = 0.0  # servers lose up to this share, each its own


def year_files(site: str) -> PackageFiles:
    """The file of a site's year."""
    require_one_of("--site", site, SITES)
    name, checksum = SITES[site]
    return PackageFiles(
        title=f"the weather of {site} (a file of pvlib 0.16.1)",
        install="pip install --no-deps pvlib==0.16.1",
        sha256={name: checksum},
        folders=lambda: find_module_folder("pvlib", "data"),
    )


SITES = {
    "greensboro": ("723170TYA.CSV", "1e96f84638ce98e6b29002bc45a27aa69bb29b0ed0368d3b52b7b1f81610c6c9"),
    "sand-point": ("703165TY.csv", "f0333a68a116f5ae92f1285a2ab8784d8e00e52a367445658ac88d72d93d8ca4"),
}


def make_solar_of_site(
    seed: int, servers: int, panel: Panel, *, site: str, first_day: int, days: int, data_dir: Path | None = None
) -> Trace:
    """Power by the measured year of a site, from its `first_day` (1: 1 January) on; the year goes round."""
    (path,) = require_package_files(year_files(site), data_dir).values()
    hours = (24 * (first_day - 1) + np.arange(24 * days)) % _HOURS
    return _make_trace(seed, read_irradiance(path)[hours][:, None].repeat(servers, axis=1), panel)


def make_solar_by_formula(
    seed: int, servers: int, panel: Panel, *, latitude: float, first_day: int, days: int
) -> Trace:
    """Power at a latitude in degrees: the sun by formula, days of weather that servers share, clouds of their own."""
    sun = compute_clear_sky(latitude, first_day, days)
    return _make_trace(seed, sun[:, None] * _draw_clearness(seed, servers, days), panel)


def compute_clear_sky(latitude: float, first_day: int, days: int) -> Values:  # -> [24 · days] W/m²
    """Irradiance under a clear sky, in the middle of each hour of solar time."""
    hour = np.arange(24 * days)
    day = first_day + hour // 24
    declination = np.radians(23.45) * np.sin(2 * np.pi * (284 + day) / 365)
    angle = np.pi * ((hour % 24) + 0.5 - 12) / 12
    phi = np.radians(latitude)
    height = np.sin(phi) * np.sin(declination) + np.cos(phi) * np.cos(declination) * np.cos(angle)
    above = np.maximum(height, 1e-3)
    clear: Values = np.where(height > 0, 1098 * above * np.exp(-0.059 / above), 0.0)
    return clear


def read_irradiance(path: Path) -> Values:  # -> [8760] W/m²
    """The irradiance of every hour of a year in the format TMY3."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            next(file)  # the site
            found = np.array([float(row[_IRRADIANCE]) for row in csv.DictReader(file)])
    except (OSError, ValueError, KeyError, StopIteration, csv.Error):
        raise DataError(f"{path} is not a year of weather in the format TMY3. Install pvlib again.") from None
    if len(found) != _HOURS or not (np.isfinite(found) & (found >= 0)).all():
        raise DataError(f"{path} does not hold the irradiance of {_HOURS} hours. Install pvlib again.")
    return found


def _draw_clearness(seed: int, servers: int, days: int) -> Values:  # -> [24 · days, servers]
    """What the weather lets through, 0 to 1."""
    rng, sky, skies = stream(seed, "trace-sky"), 1, []
    for chance in rng.random(days):
        sky = min(2, int(np.searchsorted(np.cumsum(_NEXT_SKY[sky]), chance, side="right")))
        skies.append(sky)
    state = np.repeat(skies, 24)
    clouds, noise = np.zeros((24 * days, servers)), rng.standard_normal((24 * days, servers))
    clouds[0] = noise[0]
    for hour in range(1, 24 * days):
        clouds[hour] = _CLOUD_MEMORY * clouds[hour - 1] + np.sqrt(1 - _CLOUD_MEMORY**2) * noise[hour]
    clearness: Values = np.clip(_SKY_MEAN[state][:, None] + _SKY_DEVIATION[state][:, None] * clouds, 0.02, 1.0)
    return clearness


def _make_trace(seed: int, irradiance: Values, panel: Panel) -> Trace:  # [hours, servers]
    """Hours of constant power; after the last day the first comes again."""
    kept = 1 - panel.shade * stream(seed, "trace-shade").random(irradiance.shape[1])
    watts: Values = panel.peak_watts * panel.performance * kept * irradiance / FULL_SUN
    return Trace(HOUR * np.arange(float(len(watts))), watts, period=DAY * (len(watts) // 24))
