"""Look-up order: the folder that was named, else the cache, else the system's folders."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hatdfed.data.datasets.files import Layout, cache_folder, find_files, find_folder
from hatdfed.errors import DataError

LAYOUT = Layout(title="Toys", file_names=("a", "b"), subfolders=("toys", "Toys/raw"), suffixes=("", ".gz"))


def put(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(b"")
    return folder


def refusal(data_dir: Path | None) -> str:
    with pytest.raises(DataError) as caught:
        find_files(LAYOUT, data_dir)
    return str(caught.value)


def test_the_given_folder_comes_before_the_environment_and_the_cache(
    tmp_path: Path, clean_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, named = put(tmp_path / "given", "a", "b"), put(tmp_path / "named", "a", "b")
    put(clean_machine, "a", "b")
    monkeypatch.setenv("HATDFED_DATA", str(named))
    assert find_files(LAYOUT, given) == {"a": given / "a", "b": given / "b"}
    assert find_folder(LAYOUT, None) == str(named)


def test_the_cache_comes_before_the_system_folders(tmp_path: Path, clean_machine: Path) -> None:
    layout = replace(LAYOUT, system_folders=(put(tmp_path / "system", "a", "b"),))
    assert find_folder(layout, None) == str(tmp_path / "system")
    put(clean_machine / "toys", "a", "b")
    assert find_folder(layout, None) == str(clean_machine / "toys")


def test_nothing_anywhere_means_a_download(clean_machine: Path) -> None:
    assert find_files(LAYOUT, None) is None
    assert find_folder(LAYOUT, None) is None
    assert cache_folder() == clean_machine
    assert not clean_machine.exists()


@pytest.mark.parametrize("place", [".", "toys", "Toys/raw"])
def test_the_files_may_lie_in_the_folder_or_in_a_usual_subfolder(
    tmp_path: Path, clean_machine: Path, place: str
) -> None:
    folder = put(tmp_path / "data" / place, "a", "b.gz")
    assert find_files(LAYOUT, tmp_path / "data") == {"a": folder / "a", "b": folder / "b.gz"}


def test_an_unpacked_file_is_preferred_to_a_packed_one(tmp_path: Path, clean_machine: Path) -> None:
    folder = put(tmp_path, "a", "a.gz", "b.gz")
    assert find_files(LAYOUT, folder) == {"a": folder / "a", "b": folder / "b.gz"}


def test_a_given_folder_that_does_not_exist_is_an_error_even_if_the_cache_has_the_files(
    tmp_path: Path, clean_machine: Path
) -> None:
    put(clean_machine, "a", "b")
    sentence = refusal(tmp_path / "typo")
    assert f"The data folder {tmp_path / 'typo'} (from --data-dir) is not a folder that can be read." in sentence
    assert find_folder(LAYOUT, tmp_path / "typo") is None


def test_a_given_folder_without_the_files_says_what_was_looked_for_and_where(
    tmp_path: Path, clean_machine: Path
) -> None:
    put(clean_machine, "a", "b")
    folder = put(tmp_path / "half", "a")
    assert refusal(folder) == (
        f"The data folder {folder} (from --data-dir) does not hold Toys. Looked for a, b (also ending in .gz) in "
        f"{folder}, {folder}/toys, {folder}/Toys/raw. "
        "Put all of them into one of these, or leave --data-dir out to have the data set downloaded."
    )


@pytest.mark.parametrize("exists", [False, True])
def test_the_folder_from_the_environment_is_meant_just_as_seriously(
    tmp_path: Path, clean_machine: Path, monkeypatch: pytest.MonkeyPatch, exists: bool
) -> None:
    put(clean_machine, "a", "b")
    folder = put(tmp_path / "empty") if exists else tmp_path / "typo"
    monkeypatch.setenv("HATDFED_DATA", str(folder))
    assert f"The data folder {folder} (from HATDFED_DATA)" in refusal(None)


def test_an_empty_environment_variable_counts_as_none(clean_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HATDFED_DATA", "")
    assert find_files(LAYOUT, None) is None


def test_a_tilde_is_the_home_folder_and_an_unknown_home_is_no_folder(
    tmp_path: Path, clean_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = put(tmp_path / "data", "a", "b")
    assert find_folder(LAYOUT, Path("~/data")) == str(folder)
    assert "is not a folder that can be read" in refusal(Path("~nobody-of-this-name/data"))


def test_a_folder_that_may_not_be_entered_counts_as_one_without_the_files(
    tmp_path: Path, clean_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = put(tmp_path / "data", "a", "b")

    def forbidden(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", forbidden)
    assert find_folder(LAYOUT, folder) is None
    assert "does not hold Toys" in refusal(folder)
    monkeypatch.setattr(Path, "is_dir", forbidden)
    assert "is not a folder that can be read" in refusal(folder)
