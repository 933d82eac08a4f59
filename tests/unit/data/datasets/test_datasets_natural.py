"""The data sets that are split by speaker, carrier, president and typeface, from small files made here."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from tests.unit.data.datasets.natural_files import (
    accept,
    copy_fonts,
    write_flights,
    write_speeches,
    write_vowels,
)

from hatdfed.core.task import NEXT_TOKEN, REGRESSION
from hatdfed.data.datasets import flights, load_dataset, speeches, typefaces, vowels
from hatdfed.errors import ConfigError, DataError, MissingDependencyError
from hatdfed.runs.calls import run

pytestmark = pytest.mark.usefixtures("clean_machine")
TINY = {"servers": 2, "rounds": 1, "images_per_server": 20, "validation_images": 2, "samples_per_round": 8}


# Vowels


def say(length: int, number: int, speaker: int) -> vowels.Utterance:
    """Frames that say which utterance and which place they come from."""
    place = np.arange(length, dtype=np.float32)[:, None]
    return vowels.Utterance(1000 * number + place + np.arange(12, dtype=np.float32) / 16, speaker)


@pytest.fixture
def utterances(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    train = [say(10, number, 1 + number // 6) for number in range(12)]
    write_vowels(tmp_path, train, [say(9, 20, 1), say(6, 21, 2)])
    accept(monkeypatch, vowels, tmp_path)
    return tmp_path


def test_utterances_are_read_as_they_were_written(utterances: Path) -> None:
    first, second = vowels.read_utterances(utterances / vowels.TEST_FILE)
    assert (first.frames.shape, second.frames.shape, first.speaker, second.speaker) == ((9, 12), (6, 12), 1, 2)
    np.testing.assert_array_equal(first.frames, say(9, 20, 1).frames)


def test_a_window_predicts_the_frame_three_frames_after_its_last() -> None:
    windows = vowels.cut_windows(say(10, 0, 1).frames)
    assert windows.x.shape == (4, vowels.WINDOW, 12)
    assert windows.x[:, -1, 0].tolist() == [3, 4, 5, 6]
    assert windows.y[:, 0].tolist() == [6, 7, 8, 9]
    assert vowels.cut_windows(say(6, 0, 1).frames).count == 0


def test_whole_utterances_are_held_back_and_grouped_by_speaker(utterances: Path) -> None:
    dataset = load_dataset("vowels", data_dir=utterances)
    assert (dataset.task.name, dataset.task.num_outputs) == (REGRESSION, 12)
    said = [set((part.x[:, 0, 0] // 1000).astype(int)) for part in (dataset.train, dataset.validation, dataset.test)]
    assert said == [{1, 2, 3, 4, 7, 8, 9, 10}, {0, 5, 6, 11}, {20}]
    np.testing.assert_array_equal(dataset.groups, 1 + dataset.train.x[:, 0, 0] // 6000)


def test_a_file_with_another_number_of_coefficients_is_refused(tmp_path: Path) -> None:
    (tmp_path / "short.ts").write_text("@data\n1,2:3,4:1\n")
    with pytest.raises(DataError, match="2 coefficients instead of 12"):
        vowels.read_utterances(tmp_path / "short.ts")


def test_a_run_on_utterances_trains_its_default_network(utterances: Path) -> None:
    result = run(dataset="vowels", data_dir=utterances, **TINY)
    assert result.summary["metrics"]["rmse"] > 0


# Speeches


def load_speeches(folder: Path, monkeypatch: pytest.MonkeyPatch, *spoken: speeches.Speech) -> object:
    archive = write_speeches(folder, spoken)
    monkeypatch.setattr(speeches, "KEPT", 1)
    monkeypatch.setattr(speeches, "SHA256", hashlib.sha256(archive.read_bytes()).hexdigest())
    return load_dataset("speeches", data_dir=folder)


def test_a_target_is_the_character_after_each_character(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "We hold these truths; 1776! " * 100
    dataset = load_speeches(tmp_path, monkeypatch, speeches.Speech(1790, "One", text))
    assert dataset.task.name == NEXT_TOKEN
    np.testing.assert_array_equal(dataset.train.x[:, 1:], dataset.train.y[:, :-1])
    np.testing.assert_array_equal(dataset.train.x[1:, 0], dataset.train.y[:-1, -1])
    said = "".join(speeches.ALPHABET[token] for token in dataset.train.x.ravel())
    assert text.lower().startswith(said)
    assert dataset.train.y.max() < dataset.task.num_outputs


def test_a_speech_is_split_by_place_and_grouped_by_president(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "a" * 8000 + "b" * 1000 + "c" * 1000
    later, earlier = speeches.Speech(1801, "Two", text), speeches.Speech(1790, "One", text)
    dataset = load_speeches(tmp_path, monkeypatch, later, earlier, earlier._replace(year=1791))
    assert [set(np.unique(part.x)) for part in (dataset.train, dataset.validation, dataset.test)] == [{1}, {2}, {3}]
    assert np.bincount(dataset.groups).tolist() == [2 * 249, 249]  # One spoke first, and twice


def test_a_run_on_speeches_trains_its_default_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "the union is strong. " * 300
    load_speeches(tmp_path, monkeypatch, speeches.Speech(1790, "One", text), speeches.Speech(1801, "Two", text))
    result = run(dataset="speeches", data_dir=tmp_path, **TINY)
    assert 1 < result.summary["metrics"]["perplexity"] < 1000


def test_characters_outside_the_alphabet_share_one_token() -> None:
    assert speeches.encode("aZ\n€\x7f😀").tolist() == [1, 26, *[speeches.OTHER] * 4]
    assert speeches.cut_sequences(speeches.encode("short")).shape == (0, speeches.LENGTH + 1)


def test_another_archive_and_a_damaged_one_are_refused(tmp_path: Path) -> None:
    archive = write_speeches(tmp_path, [speeches.Speech(1790, "One", "text")])
    with pytest.raises(DataError, match=r"is not version 0\.2\.3"):
        load_dataset("speeches", data_dir=tmp_path)
    archive.write_bytes(archive.read_bytes()[:100])
    with pytest.raises(DataError, match="is damaged"):
        speeches.read_speeches(archive)
    with pytest.raises(DataError, match="holds no speeches"):
        speeches.read_speeches(write_speeches(tmp_path, []))


# Flights


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(flights, "LEAST_FLIGHTS", 3)
    monkeypatch.setattr(flights, "KEPT", 1)
    changes = [
        *({"carrier": carrier, "day": day} for carrier in ("UA", "HA") for day in (1, 2, 20, 25)),
        {"carrier": "OO"},
        {"air_time": "NA"},  # it never left, or did not arrive here
        {"day": 2, "tailnum": "N2", "dest": "BQN", "air_time": 300},
    ]
    write_flights(tmp_path, changes, [{}, {"day": 25, "temp": 90}])
    accept(monkeypatch, flights, tmp_path)
    return tmp_path


def test_minutes_in_the_air_are_predicted_and_days_of_a_month_split(tables: Path) -> None:
    dataset = load_dataset("flights", data_dir=tables)
    assert (dataset.task.name, dataset.task.num_outputs) == (REGRESSION, 1)
    assert (dataset.train.count, dataset.validation.count, dataset.test.count) == (5, 2, 2)
    assert dataset.train.y.tolist() == [227, 227, 227, 227, 300]
    assert dataset.task.target_mean == pytest.approx((241.6,))


def test_a_group_is_a_carrier_and_one_with_few_flights_is_left_out(tables: Path) -> None:
    groups = load_dataset("flights", data_dir=tables).groups
    assert groups.tolist() == [2, 2, 0, 0, 2]  # HA, OO, UA


def test_weather_is_that_of_the_hour_before_and_gaps_are_filled_with_training_means(tables: Path) -> None:
    dataset = load_dataset("flights", data_dir=tables)
    temperature, wind = 21, 27  # places of these features
    assert dataset.train.x[:, temperature].tolist() == [39] * 5  # day 2 has no weather
    assert dataset.test.x[:, temperature].tolist() == [90] * 2
    np.testing.assert_allclose(dataset.test.x[:, wind : wind + 3], [[10, 0, 10]] * 2, atol=1e-5)
    assert not np.isnan(dataset.train.x).any()
    assert dataset.train.x[4, 17:21].tolist() == pytest.approx([29.98, -95.34, 2004, 55])


def test_a_run_on_flights_trains_its_default_network(tables: Path) -> None:
    result = run(dataset="flights", data_dir=tables, **TINY)
    assert result.summary["metrics"]["rmse"] > 0


def test_tables_that_cannot_be_joined_are_refused(tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tables / "weather.csv").write_text("origin\nEWR\n")
    accept(monkeypatch, flights, tables)
    with pytest.raises(DataError, match="cannot be read"):
        load_dataset("flights", data_dir=tables)


# Typefaces


@pytest.fixture
def few_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typefaces, "CHARACTERS", "0AI")


@pytest.mark.usefixtures("few_characters")
def test_every_face_draws_every_character_equally_often(tmp_path: Path) -> None:
    dataset = load_dataset("typefaces", options={"fonts": str(copy_fonts(tmp_path / "fonts"))})
    assert (dataset.train.count, dataset.validation.count, dataset.test.count) == (2 * 3 * 28, 2 * 3 * 6, 2 * 3 * 6)
    assert dataset.train.x.shape[1:] == (1, 28, 28)
    assert np.bincount(dataset.groups * 3 + dataset.train.y).tolist() == [28] * 6
    ink = dataset.train.x.astype(float).mean(axis=(1, 2, 3))
    assert ink.min() > 5  # something was drawn
    assert ink[dataset.train.y == 0].mean() > ink[dataset.train.y == 2].mean()  # a 0 has more ink than an I
    assert (dataset.train.x[:, :, 0] == 0).mean() > 0.99  # and stays away from the border


@pytest.mark.usefixtures("few_characters")
def test_drawings_of_a_character_differ_and_are_the_same_every_time(tmp_path: Path) -> None:
    face = copy_fonts(tmp_path / "fonts") / "DejaVuSans.ttf"
    one, two = typefaces.draw_face("a", face, 16), typefaces.draw_face("a", face, 16)
    np.testing.assert_array_equal(one, two)
    assert len(np.unique(one[0].reshape(typefaces.DRAWINGS, -1), axis=0)) == typefaces.DRAWINGS
    assert (typefaces.draw_face("b", face, 16) != one).any()


@pytest.mark.usefixtures("few_characters")
def test_images_are_drawn_once(tmp_path: Path, clean_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"fonts": str(copy_fonts(tmp_path / "fonts"))}
    first = load_dataset("typefaces", options=options)
    assert len(list((clean_machine / "typefaces").glob("*.npy"))) == 1
    monkeypatch.setattr(typefaces, "draw_face", lambda *_: pytest.fail("drawn again"))
    np.testing.assert_array_equal(load_dataset("typefaces", options=options).test.x, first.test.x)


@pytest.mark.usefixtures("few_characters")
def test_drawings_that_were_damaged_are_drawn_again(tmp_path: Path, clean_machine: Path) -> None:
    options = {"fonts": str(copy_fonts(tmp_path / "fonts"))}
    first = load_dataset("typefaces", options=options)
    (drawn,) = (clean_machine / "typefaces").glob("*.npy")
    drawn.write_bytes(drawn.read_bytes()[:1000])
    np.testing.assert_array_equal(load_dataset("typefaces", options=options).test.x, first.test.x)


@pytest.mark.usefixtures("few_characters")
def test_images_can_be_drawn_smaller(tmp_path: Path) -> None:
    options = {"fonts": str(copy_fonts(tmp_path / "fonts")), "side": 16}
    assert load_dataset("typefaces", options=options).train.x.shape[1:] == (1, 16, 16)
    with pytest.raises(ConfigError, match=r"side is 4\. Use a whole number from 8 to 128"):
        load_dataset("typefaces", options={**options, "side": 4})


@pytest.mark.usefixtures("few_characters")
def test_a_run_on_typefaces_trains_its_default_network(tmp_path: Path) -> None:
    options = {"fonts": str(copy_fonts(tmp_path / "fonts")), "side": 16}
    result = run(dataset="typefaces", dataset_options=options, **TINY)
    assert 0 <= result.summary["avg_accuracy"] <= 100


def test_a_folder_without_fonts_and_a_file_that_is_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        load_dataset("typefaces", options={"fonts": str(tmp_path / "nowhere")})
    with pytest.raises(ConfigError, match="holds no fonts"):
        load_dataset("typefaces", options={"fonts": str(tmp_path)})
    (tmp_path / "broken.ttf").write_bytes(b"not a font")
    with pytest.raises(DataError, match=r"broken\.ttf cannot be used as a font"):
        load_dataset("typefaces", options={"fonts": str(tmp_path)})


def test_missing_fonts_are_named_with_the_packages_that_have_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(typefaces, "FONTS", tmp_path)
    with pytest.raises(MissingDependencyError, match=r"run `apt-get install fonts-breip .*`.* and 15 more files"):
        load_dataset("typefaces")
    assert typefaces.locate() is None
