"""From an empty machine to a loaded data set, over a web server of our own."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.data.datasets.datasets_files import records, write_fashion
from tests.unit.data.datasets.datasets_website import Website

from hatdfed.data.datasets import cifar10, fashion_mnist, load_dataset
from hatdfed.data.datasets.base import Dataset
from hatdfed.data.datasets.cifar10 import RECORD_BYTES
from hatdfed.data.datasets.files import unpack
from hatdfed.errors import DataError

PER_FILE = 20
MEMBERS = [f"cifar-10-batches-bin/{name}" for name in cifar10.LAYOUT.file_names]


def md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def tar_of(contents: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def cifar_tar() -> bytes:
    official = {name: records(PER_FILE, first=20 * place) for place, name in enumerate(MEMBERS)}
    return tar_of({"../x": b"hostile", "/x": b"hostile", **official})


@pytest.fixture
def cifar_site(website: Website, clean_machine: Path, monkeypatch: pytest.MonkeyPatch) -> Website:
    content = cifar_tar()
    website.files["cifar-10-binary.tar.gz"] = content
    monkeypatch.setenv("HATDFED_MIRROR", website.address)
    monkeypatch.setattr(cifar10, "ARCHIVE", replace(cifar10.ARCHIVE, md5=md5(content)))
    monkeypatch.setattr(cifar10, "OFFICIAL_RECORDS", PER_FILE)
    return website


@pytest.fixture
def fashion_site(tmp_path: Path, website: Website, clean_machine: Path, monkeypatch: pytest.MonkeyPatch) -> Website:
    for path in write_fashion(tmp_path / "origin").iterdir():
        website.files[path.name] = path.read_bytes()
    files = tuple(replace(file, md5=md5(website.files[file.name])) for file in fashion_mnist.REMOTE_FILES)
    monkeypatch.setenv("HATDFED_MIRROR", website.address)
    monkeypatch.setattr(fashion_mnist, "REMOTE_FILES", files)
    monkeypatch.setattr(fashion_mnist, "LAYOUT", replace(fashion_mnist.LAYOUT, system_folders=()))
    return website


def test_cifar_is_downloaded_unpacked_and_found_the_next_time(cifar_site: Website, clean_machine: Path) -> None:
    assert cifar10.locate(None) is None
    dataset = load_dataset("cifar-10")
    assert (dataset.train.count, dataset.validation.count, dataset.test.count) == (90, 10, 20)
    assert cifar10.locate(None) == str(clean_machine / "cifar-10-batches-bin")
    load_dataset("cifar-10")
    assert len(cifar_site.ranges) == 1


def test_only_the_six_expected_files_come_out_of_the_archive(cifar_site: Website, clean_machine: Path) -> None:
    load_dataset("cifar-10")
    found = sorted(path.relative_to(clean_machine).as_posix() for path in clean_machine.rglob("*"))
    assert found == [".lock", "cifar-10-batches-bin", *MEMBERS]
    assert not (clean_machine.parent / "x").exists()


def test_fashion_mnist_is_downloaded_file_by_file_and_only_what_is_missing(
    fashion_site: Website, clean_machine: Path
) -> None:
    name = f"{fashion_mnist.TEST_IMAGES}.gz"
    kept = fashion_site.files.pop(name)
    with pytest.raises(DataError, match="404"):
        load_dataset("fashion-mnist")
    assert len(fashion_site.bytes_sent) == 2
    fashion_site.files[name] = kept
    assert load_dataset("fashion-mnist").train.count == 50
    assert len(fashion_site.bytes_sent) == 4
    assert fashion_mnist.locate(None) == str(clean_machine / "fashion-mnist")


def test_several_askers_at_once_share_one_download(cifar_site: Website) -> None:
    loaded: list[Dataset] = []
    askers = [threading.Thread(target=lambda: loaded.append(load_dataset("cifar-10"))) for _ in range(4)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    assert len(loaded) == 4
    assert len(cifar_site.ranges) == 1


def test_without_a_network_the_sentence_names_the_files_the_folder_and_the_package(
    fashion_site: Website, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HATDFED_MIRROR", "http://127.0.0.1:1")
    with pytest.raises(DataError) as caught:
        load_dataset("fashion-mnist")
    assert str(caught.value) == (
        "Cannot download http://127.0.0.1:1/train-images-idx3-ubyte.gz (Connection refused): check the network, or "
        "put train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte into "
        "./data/fashion-mnist and pass --data-dir ./data, or on Debian and Ubuntu run "
        "`apt install dataset-fashion-mnist`."
    )


def refusal(tmp_path: Path, content: bytes, member_bytes: int = PER_FILE * RECORD_BYTES) -> str:
    archive = tmp_path / "some.tar.gz"
    archive.write_bytes(content)
    with pytest.raises(DataError) as caught:
        unpack(archive, MEMBERS, tmp_path / "out", member_bytes=member_bytes)
    sentence = str(caught.value)
    assert sentence.startswith(f"{archive} is damaged: ")
    assert sentence.endswith("Delete it and run the same command again.")
    assert list(tmp_path.glob("out/*.part")) == []
    return sentence


def test_a_truncated_archive_is_refused_and_leaves_no_part(tmp_path: Path) -> None:
    whole = cifar_tar()
    for length in (0, 3, 5, 100, len(whole) // 2):
        assert "cannot be unpacked" in refusal(tmp_path, whole[:length])


def test_an_archive_cut_inside_a_member_is_refused(tmp_path: Path) -> None:
    plain = gzip.decompress(cifar_tar())
    assert "cannot be unpacked" in refusal(tmp_path, gzip.compress(plain[:100_000]))


def test_something_else_than_an_archive_is_refused(tmp_path: Path) -> None:
    assert "cannot be unpacked" in refusal(tmp_path, b"<html>not here</html>" * 100)


def test_an_archive_without_one_of_the_files_is_refused(tmp_path: Path) -> None:
    official = {name: records(PER_FILE) for name in MEMBERS[:-1]}
    assert "it lacks cifar-10-batches-bin/test_batch.bin" in refusal(tmp_path, tar_of(official))


def test_a_member_of_another_size_is_refused(tmp_path: Path) -> None:
    assert "data_batch_1.bin has 61460 bytes, 30730000 were wanted" in refusal(tmp_path, cifar_tar(), 30_730_000)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE])
def test_a_member_that_is_no_regular_file_is_refused(tmp_path: Path, kind: bytes) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        member = tarfile.TarInfo(MEMBERS[0])
        member.type, member.linkname = kind, "/etc/passwd"
        tar.addfile(member)
    assert "data_batch_1.bin is not a regular file" in refusal(tmp_path, buffer.getvalue())
    assert not (tmp_path / "out").exists()
