"""Real runs, played once, and a dashboard over copies of them."""

import shutil
from importlib.util import find_spec

import pytest

import hatdfed
from hatdfed.report.comparison_files import write_comparison_files

IS_INSTALLED = all(find_spec(package) for package in ("fastapi", "httpx2", "jinja2", "plotly", "uvicorn"))
collect_ignore_glob = [] if IS_INSTALLED else ["*.py"]  # without the extra `dashboard` there is nothing to test

if IS_INSTALLED:
    from fastapi.testclient import TestClient
    from tests.dashboard.browser import open_browser
    from tests.dashboard.site_on_disk import ADDRESS, id_of

    from hatdfed.dashboard.app import make_app
    from hatdfed.dashboard.catalogue import Catalogue
    from hatdfed.dashboard.event_streams import EventStreams
    from hatdfed.dashboard.site import Site


def pytest_collection_modifyitems(config, items):
    if "browser" in config.option.markexpr:
        return
    for item in items:
        if "browser" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="browser tests run by `make test-browser`"))


@pytest.fixture(scope="session")
def played(tmp_path_factory):
    """Two methods in two worlds, as `hatdfed compare` keeps them; not to be changed."""
    folder = tmp_path_factory.mktemp("played") / "both"
    comparison = hatdfed.compare(["hat-dfed", "rnd"], seeds=2, rounds=5, servers=4, out=folder)
    write_comparison_files(comparison, folder)
    return folder


@pytest.fixture
def runs(played, tmp_path):
    """A folder of runs that a test may change."""
    shutil.copytree(played, tmp_path / "runs" / "both")
    return tmp_path / "runs"


@pytest.fixture
def site(runs):
    return Site(Catalogue(runs), streams=EventStreams(every_seconds=0.05))


@pytest.fixture
def client(site):
    with TestClient(make_app(site), base_url=ADDRESS) as client:
        yield client


@pytest.fixture(scope="module")
def reader(played):
    """A client for tests that change nothing: to make the site takes longer than to ask it."""
    with TestClient(make_app(Site(Catalogue(played.parent))), base_url=ADDRESS) as client:
        yield client


@pytest.fixture
def run_id(client):
    return id_of(client, "both/hat-dfed-seed0")


@pytest.fixture(scope="module")
def browser():
    opened = open_browser()
    yield opened
    opened.quit()
