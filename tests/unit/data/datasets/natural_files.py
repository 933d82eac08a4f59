"""Makers of small but valid files of the data sets that come in packages."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import shutil
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import matplotlib
import pytest

from hatdfed.data.datasets import flights, speeches, vowels

FONTS_AT_HAND = Path(matplotlib.get_data_path()) / "fonts" / "ttf"  # matplotlib brings DejaVu


def accept(monkeypatch: pytest.MonkeyPatch, module: ModuleType, folder: Path) -> None:
    """Let the data set take the files in `folder` for its own, and find none installed."""
    checksums = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in module.FILES.sha256}
    mine = dataclasses.replace(module.FILES, sha256=checksums, folders=lambda: [])
    monkeypatch.setattr(module, "FILES", mine)


def write_vowels(folder: Path, train: Sequence[vowels.Utterance], test: Sequence[vowels.Utterance]) -> Path:
    for name, utterances in ((vowels.TRAIN_FILE, train), (vowels.TEST_FILE, test)):
        lines = [
            ":".join([*(",".join(map(str, series)) for series in frames.T.tolist()), str(speaker)])
            for frames, speaker in utterances
        ]
        (folder / name).write_text("\n".join(["#A comment: with a colon", "@timeStamps false", "@data", *lines]) + "\n")
    return folder


def write_speeches(folder: Path, spoken: Sequence[speeches.Speech]) -> Path:
    path = folder / speeches.ARCHIVE.name
    with tarfile.open(path, "w:gz") as tar:
        for number, speech in enumerate(spoken):
            content = json.dumps({"year": speech.year, "name": speech.president, "text": speech.text}).encode()
            _add(tar, f"package/data/{number}.json", content)
        _add(tar, "package/data/readme.txt", b"not a speech")
        _add(tar, "package/package.json", b"{}")
    return path


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))


FLIGHT = {
    "year": 2013, "month": 1, "day": 1, "dep_time": 517, "sched_dep_time": 515, "dep_delay": 2, "arr_time": 830,
    "sched_arr_time": 819, "arr_delay": 11, "carrier": "UA", "flight": 1545, "tailnum": "N1", "origin": "EWR",
    "dest": "IAH", "air_time": 227, "distance": 1400, "hour": 5, "minute": 15, "time_hour": "2013-01-01T10:00:00Z",
}  # fmt: skip
HOUR = {
    "origin": "EWR", "year": 2013, "month": 1, "day": 1, "hour": 4, "temp": 39, "dewp": 26, "humid": 59, "wind_dir": 90,
    "wind_speed": 10, "wind_gust": "NA", "precip": 0, "pressure": 1012, "visib": 10, "time_hour": "-",
}  # fmt: skip


def write_flights(folder: Path, changes: Sequence[dict[str, object]], weather: Sequence[dict[str, object]]) -> Path:
    """Tables whose rows are `FLIGHT` and `HOUR`, changed."""
    with zipfile.ZipFile(folder / "flights.csv.zip", "w") as archive:
        archive.writestr("flights.csv", _table([FLIGHT | change for change in changes]))
    (folder / "weather.csv").write_text(_table([HOUR | change for change in weather]))
    (folder / "planes.csv").write_text("tailnum,year,seats\nN1,2004,55\nN2,NA,NA\n")
    (folder / "airports.csv").write_text("faa,lat,lon\nIAH,29.98,-95.34\n")
    assert set(flights.FILES.sha256) == {path.name for path in folder.iterdir()}
    return folder


def _table(rows: Sequence[dict[str, object]]) -> str:
    return "\n".join([",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]) + "\n"


def copy_fonts(folder: Path, names: Sequence[str] = ("DejaVuSans", "DejaVuSerif")) -> Path:
    folder.mkdir(exist_ok=True)
    for name in names:
        shutil.copy(FONTS_AT_HAND / f"{name}.ttf", folder)
    return folder
