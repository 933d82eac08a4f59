"""Files that come in packages: where they are looked for, and that only the right ones are read."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pytest

from hatdfed.data.datasets.packages import (
    PackageFiles,
    describe_place,
    find_module_folder,
    require_package_files,
)
from hatdfed.errors import DataError, MissingDependencyError

RIGHT = hashlib.sha256(b"right").hexdigest()


def files_in(*folders: Path) -> PackageFiles:
    return PackageFiles("pears", "pip install pears==1.0", {"a.csv": RIGHT, "b.csv": RIGHT}, lambda: folders)


def write(folder: Path, *names: str, content: bytes = b"right") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture(autouse=True)
def _no_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HATDFED_DATA", raising=False)


def test_a_missing_package_is_one_sentence_with_the_line_that_installs_it(tmp_path: Path) -> None:
    with pytest.raises(MissingDependencyError) as caught:
        require_package_files(files_in(tmp_path), None)
    assert "pears is not on this machine: run `pip install pears==1.0`, or put a.csv, b.csv into one folder" in str(
        caught.value
    )
    assert describe_place(files_in(tmp_path), None) is None


def test_a_package_that_lacks_one_of_the_files_counts_as_missing(tmp_path: Path) -> None:
    with pytest.raises(MissingDependencyError):
        require_package_files(files_in(write(tmp_path, "a.csv")), None)


def test_files_are_found_where_the_package_puts_them(tmp_path: Path) -> None:
    one, two = write(tmp_path / "one", "a.csv"), write(tmp_path / "two", "b.csv")
    found = require_package_files(files_in(one, two), None)
    assert found == {"a.csv": one / "a.csv", "b.csv": two / "b.csv"}
    assert describe_place(files_in(one, two), None) == str(tmp_path)


def test_a_named_folder_comes_before_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package, mine = write(tmp_path / "package", "a.csv", "b.csv"), write(tmp_path / "mine", "a.csv", "b.csv")
    assert describe_place(files_in(package), mine) == str(mine)
    monkeypatch.setenv("HATDFED_DATA", str(mine))
    assert describe_place(files_in(package), None) == str(mine)


def test_the_package_is_used_if_the_named_folder_has_other_data(tmp_path: Path) -> None:
    package = write(tmp_path / "package", "a.csv", "b.csv")
    assert describe_place(files_in(package), tmp_path / "elsewhere") == str(package)


def test_another_version_is_refused_by_its_checksum(tmp_path: Path) -> None:
    write(tmp_path, "a.csv")
    write(tmp_path, "b.csv", content=b"wrong")
    with pytest.raises(DataError, match=r"b\.csv is not the file .*: pip install pears==1\.0"):
        require_package_files(files_in(tmp_path), None)


def test_a_python_package_is_found_without_being_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = write(tmp_path / "pearpackage", "__init__.py", content=b"raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    assert find_module_folder("pearpackage", "data") == [package / "data"]
    assert "pearpackage" not in sys.modules
    assert find_module_folder("no_such_pearpackage", "data") == []
