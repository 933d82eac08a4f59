"""Trust on the run page and in a report: of runs whose policy believes something, and of no others."""

import json
import sqlite3
from contextlib import closing

import pytest
from fastapi.testclient import TestClient
from tests.dashboard.site_on_disk import ADDRESS, id_of
from tests.small_runs import SMALL

import hatdfed
from hatdfed.dashboard.app import make_app
from hatdfed.dashboard.catalogue import Catalogue
from hatdfed.dashboard.site import Site
from hatdfed.report.document import make_document, render_html, render_markdown

TRUSTING = {"method": "hat-dfed-trust", "servers": 4, "rounds": 12, "policy": {"latest": 0.2, "quiet": 1}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    hatdfed.run(**{**SMALL, **TRUSTING}, out=folder / "trusting")
    hatdfed.run(**SMALL, method="rnd", out=folder / "other")
    return folder


@pytest.fixture(scope="module")
def reader(folder):
    with TestClient(make_app(Site(Catalogue(folder))), base_url=ADDRESS) as client:
        yield client


def trust_of(client, name):
    return client.get(f"/api/runs/{id_of(client, name)}/trust").json()


def test_the_page_has_verdicts_groups_and_reasons(reader, folder):
    view = trust_of(reader, "trusting")
    results = json.loads((folder / "trusting" / "results.json").read_text())
    assert sorted(view["servers"]) == list(range(4))
    assert len(view["groups"]) == len(results["groups"])
    assert {span["server"] for span in view["spans"]} == set(range(4))
    assert max(span["to"] for span in view["spans"]) == 12
    assert min(span["from"] for span in view["spans"]) == 1
    assert len(view["verdicts"]["values"]) == 4
    assert all(view["verdicts"]["values"][i][i] is None for i in range(4))
    assert any("introduced" in event[3] for event in view["events"])
    page = reader.get(f"/runs/{id_of(reader, 'trusting')}").text
    assert 'id="trust" hidden' in page  # until the script has the data
    assert 'id="trust-table"' in page


def test_a_run_without_beliefs_shows_none(reader):
    assert trust_of(reader, "other") == {"servers": []}


def test_odd_rows_are_left_out(folder, tmp_path):
    hatdfed.run(**SMALL, method="rnd", out=tmp_path / "odd")
    with closing(sqlite3.connect(tmp_path / "odd" / "run.sqlite")) as file, file:
        file.execute("INSERT INTO trust VALUES (0, 'x', 'waiting', NULL, 'start', NULL, NULL)")
        file.execute("INSERT INTO trust VALUES (1, 0, '<b>', 'x', NULL, 'x', 1e999)")
        file.execute("INSERT INTO verdicts VALUES (0, 'x')")
    with TestClient(make_app(Site(Catalogue(tmp_path))), base_url=ADDRESS) as client:
        view = trust_of(client, "odd")
    assert view["servers"] == [0]
    assert view["verdicts"] is None


def test_a_report_has_the_pictures_and_the_reasons(folder, tmp_path):
    document = make_document([folder / "trusting"], tmp_path / "pictures")
    assert {"verdicts.png", "groups.png"} <= {picture.path.name for picture in document.runs[0].pictures}
    page, text = render_html(document), render_markdown(document, tmp_path / "pictures")
    for written in (page, text):
        assert "Verdicts of servers on each other" in written
        assert "Groups of servers over rounds" in written
        assert "Why groups changed" in written


def test_a_report_of_a_run_without_beliefs_has_neither(folder, tmp_path):
    page = render_html(make_document([folder / "other"], tmp_path / "pictures"))
    assert "Groups of servers over rounds" not in page
    assert "Why groups changed" not in page
