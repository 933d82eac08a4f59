"""Trace files, and the generators of typical traces."""

import numpy as np
import pytest

from hatdfed.data.datasets.packages import find_package_files
from hatdfed.data.traces.daily import DAY, HOUR, WEEK, make_diurnal, make_office_hours
from hatdfed.data.traces.files import read_trace, split_digest, with_digest, write_trace
from hatdfed.data.traces.solar import (
    SITES,
    Panel,
    compute_clear_sky,
    make_solar_by_formula,
    make_solar_of_site,
    read_irradiance,
    year_files,
)
from hatdfed.errors import ConfigError, DataError, HatdfedError, MissingDependencyError

WAVE = {"low": 2.0, "high": 6.0, "peak_hour": 18.0, "spread_hours": 0.0, "noise": 0.0}
OFFICE = {"first_hour": 8.0, "last_hour": 18.0, "jitter_hours": 0.0, "with_weekend": False, "is_inverted": False}
DAYS = {"latitude": 45.0, "first_day": 80, "days": 3}


def test_a_wave_is_highest_at_its_hour_and_lowest_half_a_day_later():
    trace = make_diurnal(0, 2, **WAVE)
    assert trace.at(18 * HOUR) == pytest.approx([6, 6])
    assert trace.at(6 * HOUR) == pytest.approx([2, 2])
    assert trace.at(18 * HOUR + 5 * DAY) == pytest.approx([6, 6])


def test_noise_and_spread_make_servers_differ_and_belong_to_the_seed():
    noisy = {**WAVE, "noise": 0.2, "spread_hours": 3.0}
    first = make_diurnal(1, 2, **noisy)
    assert not np.allclose(first.values[:, 0], first.values[:, 1])
    np.testing.assert_array_equal(first.values, make_diurnal(1, 2, **noisy).values)
    assert not np.array_equal(first.values, make_diurnal(2, 2, **noisy).values)
    assert (first.values >= 0).all()


def test_office_hours_are_those_of_workdays():
    trace = make_office_hours(0, 1, **OFFICE)
    there = [trace.at(day * DAY + hour * HOUR).item() for day in (0, 4, 5, 6) for hour in (7, 9, 17, 19)]
    assert there == [0, 1, 1, 0] * 2 + [0] * 8
    assert trace.period == WEEK


def test_office_hours_can_be_inverted_and_include_the_weekend():
    outside = make_office_hours(0, 1, **{**OFFICE, "is_inverted": True, "with_weekend": True})
    assert [outside.at(5 * DAY + hour * HOUR).item() for hour in (7, 9, 19)] == [1, 0, 1]


def test_people_come_at_different_times():
    trace = make_office_hours(3, 4, **{**OFFICE, "jitter_hours": 1.0})
    assert len(np.unique(trace.integrate(0, WEEK))) == 4
    assert set(np.unique(trace.values)) == {0.0, 1.0}


def test_hours_that_cannot_be_are_refused():
    with pytest.raises(ConfigError, match="--from is 18"):
        make_office_hours(0, 1, **{**OFFICE, "first_hour": 18.0, "last_hour": 8.0})
    with pytest.raises(ConfigError, match="--low is 7"):
        make_diurnal(0, 1, **{**WAVE, "low": 7.0})


def test_there_is_no_sun_at_night_and_most_at_noon():
    sun = compute_clear_sky(45.0, 172, 1)
    assert sun[0] == sun[23] == 0
    assert sun.argmax() in (11, 12)
    assert 900 < sun.max() < 1000


def test_summer_brings_more_sun_than_winter_and_the_polar_night_none():
    assert compute_clear_sky(45.0, 172, 1).sum() > 2 * compute_clear_sky(45.0, 355, 1).sum()
    assert compute_clear_sky(80.0, 355, 1).sum() == 0


def test_weather_takes_from_the_clear_sky_and_never_adds():
    panel = Panel(20.0, performance=0.8)
    trace = make_solar_by_formula(5, 3, panel, **DAYS)
    clear = 20.0 * 0.8 * compute_clear_sky(45.0, 80, 3) / 1000
    assert (trace.values <= clear[:, None] + 1e-12).all()
    assert (trace.values.sum(axis=0) < clear.sum()).all()
    assert not np.array_equal(trace.values[:, 0], trace.values[:, 1])


def test_solar_power_belongs_to_the_seed():
    first, again, other = (make_solar_by_formula(seed, 2, Panel(5.0, shade=0.5), **DAYS) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.values, again.values)
    assert not np.array_equal(first.values, other.values)


def test_days_of_weather_last_longer_than_chance():
    daily = make_solar_by_formula(0, 1, Panel(1.0), latitude=0.0, first_day=1, days=365)
    energy = daily.values.reshape(365, 24).sum(axis=1)
    assert np.corrcoef(energy[1:], energy[:-1])[0, 1] > 0.2


@pytest.mark.parametrize("site", SITES)
def test_a_measured_year_has_the_irradiance_of_its_site(site):
    if find_package_files(year_files(site), None) is None:
        pytest.skip("pvlib's data are not here: pip install --no-deps pvlib==0.16.1")
    trace = make_solar_of_site(0, 2, Panel(1.0, performance=1.0), site=site, first_day=1, days=365)
    # kWh/m², summed over the fifth column of the files with awk.
    assert trace.values[:, 0].sum() == pytest.approx({"greensboro": 1566.203, "sand-point": 829.243}[site])
    np.testing.assert_array_equal(trace.values[:, 0], trace.values[:, 1])


def test_a_year_that_is_not_here_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr("hatdfed.data.traces.solar.find_module_folder", lambda *_: [])
    monkeypatch.delenv("HATDFED_DATA", raising=False)
    with pytest.raises(MissingDependencyError, match="pip install --no-deps pvlib"):
        make_solar_of_site(0, 1, Panel(1.0), site="greensboro", first_day=1, days=1, data_dir=tmp_path)


@pytest.mark.parametrize("content", ["", "site\nGHI (W/m^2)\n1\n", "site\nother\n1\n", "site\nGHI (W/m^2)\nx\n"])
def test_what_is_no_year_is_refused(tmp_path, content):
    path = tmp_path / "year.csv"
    path.write_text(content)
    with pytest.raises(DataError, match=r"year of weather|8760 hours"):
        read_irradiance(path)


def test_a_trace_file_is_written_once_and_read_for_every_server(tmp_path):
    path = tmp_path / "solar.csv"
    trace = make_solar_by_formula(0, 1, Panel(5.0), **DAYS)
    write_trace(path, trace, ["all"], ["a comment"])
    read = read_trace("supply.harvest_trace", str(path), 3)
    np.testing.assert_array_equal(read.values, trace.values.repeat(3, axis=1))
    with pytest.raises(HatdfedError, match="is there already"):
        write_trace(path, trace, ["all"], [])


def test_a_trace_that_was_changed_since_it_was_named_is_refused(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("seconds constant once, all\n0, 1\n")
    named = with_digest("supply.harvest_trace", str(path))
    assert split_digest(named)[0] == str(path)
    assert with_digest("supply.harvest_trace", named) == named
    assert read_trace("supply.harvest_trace", named, 2).at(0).tolist() == [1, 1]
    path.write_text("seconds constant once, all\n0, 2\n")
    with pytest.raises(ConfigError, match="was changed since the run began"):
        read_trace("supply.harvest_trace", named, 2)


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "cannot be read"), (b"\xff\xfe", "not text in UTF-8"), (b"no trace", "header that begins with 'no trace'")],
)
def test_an_unusable_file_is_refused_by_the_name_of_its_setting(tmp_path, content, said):
    path = tmp_path / "t.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"supply\.harvest_trace: .*t\.csv .*{said}"):
        read_trace("supply.harvest_trace", str(path), 2)
