"""Downloads: resumed, verified, atomic, and a sentence for everything that goes wrong."""

from __future__ import annotations

import hashlib
import socket
from http.client import HTTPResponse
from pathlib import Path

import pytest
from tests.unit.data.datasets.datasets_website import Website

from hatdfed.data.datasets.files import CHUNK_BYTES, RemoteFile, fetch
from hatdfed.errors import ConfigError, DataError

BODY = hashlib.shake_128(b"a file of some length").digest(300_000)
OTHERWISE = "put toys into ./data"

pytestmark = pytest.mark.usefixtures("clean_machine")


def md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


@pytest.fixture
def toys(website: Website) -> RemoteFile:
    website.files["toys.bin"] = BODY
    return RemoteFile("toys.bin", website.address, md5(BODY))


def refusal(remote: RemoteFile, folder: Path) -> str:
    with pytest.raises(DataError) as caught:
        fetch(remote, folder, otherwise=OTHERWISE)
    return str(caught.value)


def test_a_file_arrives_whole_and_leaves_no_part_behind(tmp_path: Path, website: Website, toys: RemoteFile) -> None:
    seen: list[tuple[int, int | None, str]] = []
    path = fetch(toys, tmp_path / "in", otherwise=OTHERWISE, progress=lambda *step: seen.append(step))
    assert path.read_bytes() == BODY
    assert [entry.name for entry in (tmp_path / "in").iterdir()] == ["toys.bin"]
    assert seen[-1] == (len(BODY), len(BODY), "toys.bin")
    assert len(seen) == -(-len(BODY) // CHUNK_BYTES)
    assert website.ranges == [None]


def test_a_file_that_is_there_is_not_downloaded_again(tmp_path: Path, website: Website, toys: RemoteFile) -> None:
    (tmp_path / "toys.bin").write_bytes(b"here already")
    assert fetch(toys, tmp_path, otherwise=OTHERWISE).read_bytes() == b"here already"
    assert website.ranges == []


def test_a_broken_connection_is_resumed_at_once(tmp_path: Path, website: Website, toys: RemoteFile) -> None:
    website.cuts = [100_000]
    assert fetch(toys, tmp_path, otherwise=OTHERWISE).read_bytes() == BODY
    assert website.ranges == [None, "bytes=100000-"]
    assert website.bytes_sent == [100_000, 200_000]


def test_a_connection_that_keeps_breaking_keeps_its_bytes_for_the_next_command(
    tmp_path: Path, website: Website, toys: RemoteFile
) -> None:
    website.cuts = [100_000, 50_000, 50_000]
    sentence = refusal(toys, tmp_path)
    part = tmp_path / "toys.bin.part"
    assert part.read_bytes() == BODY[:200_000]
    assert "broke off 3 times (the connection closed after 200000 of 300000 bytes)" in sentence
    assert f"The 200000 bytes so far are kept in {part}: run the same command again to resume" in sentence

    assert fetch(toys, tmp_path, otherwise=OTHERWISE).read_bytes() == BODY
    assert website.ranges[-1] == "bytes=200000-"
    assert website.bytes_sent[-1] == 100_000
    assert not part.exists()


def test_a_server_that_ignores_ranges_makes_it_start_over(tmp_path: Path, website: Website, toys: RemoteFile) -> None:
    (tmp_path / "toys.bin.part").write_bytes(b"old" * 1000)
    website.honours_range = False
    assert fetch(toys, tmp_path, otherwise=OTHERWISE).read_bytes() == BODY
    assert website.ranges == ["bytes=3000-"]


def test_a_part_longer_than_the_file_makes_it_start_over(tmp_path: Path, website: Website, toys: RemoteFile) -> None:
    (tmp_path / "toys.bin.part").write_bytes(BODY + b"more")
    assert fetch(toys, tmp_path, otherwise=OTHERWISE).read_bytes() == BODY
    assert website.ranges == ["bytes=300004-", None]


def test_a_server_that_sends_another_range_makes_it_start_over(
    tmp_path: Path, website: Website, toys: RemoteFile
) -> None:
    (tmp_path / "toys.bin.part").write_bytes(BODY[:500])
    website.content_range = "bytes 700-299999/300000"
    assert fetch(toys, tmp_path, otherwise=OTHERWISE).read_bytes() == BODY
    assert website.ranges == ["bytes=500-", None]


def test_a_complete_part_is_put_in_place_without_asking(tmp_path: Path, website: Website, toys: RemoteFile) -> None:
    (tmp_path / "toys.bin.part").write_bytes(BODY)
    assert fetch(toys, tmp_path, otherwise=OTHERWISE).read_bytes() == BODY
    assert website.ranges == []


def test_a_wrong_checksum_deletes_the_part(tmp_path: Path, website: Website, toys: RemoteFile) -> None:
    website.files["toys.bin"] = b"something else"
    sentence = refusal(toys, tmp_path)
    assert f"14 bytes with md5 {md5(b'something else')} came, md5 {toys.md5} was wanted" in sentence
    assert "run the same command again, or name another mirror in HATDFED_MIRROR" in sentence
    assert list(tmp_path.iterdir()) == []


def test_no_network_gives_one_sentence_that_says_what_to_do(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound and not listening: every connection is refused
        address = f"http://127.0.0.1:{closed.getsockname()[1]}"
        sentence = refusal(RemoteFile("toys.bin", address, ""), tmp_path)
    assert sentence == (
        f"Cannot download {address}/toys.bin (Connection refused): check the network, or put toys into ./data."
    )


def test_a_name_that_does_not_resolve_gives_the_same_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*arguments: object, **options: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    sentence = refusal(RemoteFile("toys.bin", "https://nowhere.example", ""), tmp_path)
    assert sentence.startswith("Cannot download https://nowhere.example/toys.bin (Name or service not known): ")


def test_a_missing_page_is_not_asked_for_again(tmp_path: Path, website: Website) -> None:
    assert "(it answered 404 Not Found)" in refusal(RemoteFile("none", website.address, ""), tmp_path)
    assert len(website.ranges) == 1


def test_a_server_in_trouble_is_asked_again(tmp_path: Path, website: Website, toys: RemoteFile) -> None:
    website.statuses = [503, 500]
    assert fetch(toys, tmp_path, otherwise=OTHERWISE).read_bytes() == BODY
    assert len(website.ranges) == 3


def test_a_peer_that_does_not_speak_http_gives_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def babble(*arguments: object, **options: object) -> None:
        raise ConnectionResetError(104, "Connection reset by peer")

    monkeypatch.setattr("urllib.request.urlopen", babble)
    sentence = refusal(RemoteFile("toys.bin", "http://127.0.0.1", ""), tmp_path)
    assert "broke off 3 times ([Errno 104] Connection reset by peer). The 0 bytes so far" in sentence


def test_a_reset_in_the_middle_is_resumed(
    tmp_path: Path, website: Website, toys: RemoteFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, calls = HTTPResponse.read, []

    def second_read_fails(response: HTTPResponse, amount: int | None = None) -> bytes:
        calls.append(amount)
        if len(calls) == 2:
            raise TimeoutError("timed out")
        return read(response, amount)

    monkeypatch.setattr(HTTPResponse, "read", second_read_fails)
    assert fetch(toys, tmp_path, otherwise=OTHERWISE).read_bytes() == BODY
    assert website.ranges == [None, f"bytes={CHUNK_BYTES}-"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_gives_one_sentence(tmp_path: Path, toys: RemoteFile) -> None:
    (tmp_path / "toys.bin.part").symlink_to("/dev/full")
    sentence = refusal(toys, tmp_path)
    assert sentence == (
        f"Cannot write under {tmp_path} (No space left on device): free up space there or set XDG_CACHE_HOME to "
        "another folder, then run the same command again."
    )


def test_a_folder_that_cannot_be_made_gives_one_sentence(tmp_path: Path, toys: RemoteFile) -> None:
    (tmp_path / "taken").write_bytes(b"")
    assert "Cannot write under" in refusal(toys, tmp_path / "taken" / "in")


def test_a_mirror_replaces_the_official_address(
    tmp_path: Path, website: Website, monkeypatch: pytest.MonkeyPatch
) -> None:
    website.files["mirror/toys.bin"] = BODY
    monkeypatch.setenv("HATDFED_MIRROR", f"{website.address}/mirror/")
    remote = RemoteFile("toys.bin", "http://official.invalid/", md5(BODY))
    assert fetch(remote, tmp_path, otherwise=OTHERWISE).read_bytes() == BODY


def test_a_mirror_must_be_a_web_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HATDFED_MIRROR", "file:///etc")
    with pytest.raises(ConfigError, match=r"HATDFED_MIRROR is 'file:///etc'\. Use an address that starts with http"):
        fetch(RemoteFile("passwd", "http://official.invalid", ""), tmp_path, otherwise=OTHERWISE)
