"""A machine without data sets, and a web server to download them from."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.unit.data.datasets.datasets_website import Website, handler_for

from hatdfed.data.datasets import files


@pytest.fixture
def website() -> Iterator[Website]:
    site = Website()
    with ThreadingHTTPServer(("127.0.0.1", 0), handler_for(site)) as server:
        site.address = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield site
        server.shutdown()
        thread.join()


@pytest.fixture
def clean_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with no data set on it, no proxy and no waiting; gives the cache folder for data sets."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.delenv("HATDFED_DATA", raising=False)
    monkeypatch.delenv("HATDFED_MIRROR", raising=False)
    monkeypatch.setattr(files, "PAUSE_SECONDS", 0.0)
    return tmp_path / "cache" / "hatdfed" / "datasets"
