"""A figure of a round that is declared is everywhere: nothing but the declaration knows the columns."""

import importlib
import json
import sqlite3
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.small_runs import SMALL
from typer.testing import CliRunner

import hatdfed
from hatdfed.cli.app import app
from hatdfed.report.sinks.figures import figures_of_record, read_published_run
from hatdfed.runs.records.reading import reading
from hatdfed.runs.records.schema import current_version
from hatdfed.runs.round_row import ROUND_COLUMNS, RoundColumn, round_row

ROOT = Path(__file__).resolve().parents[2]
NAME = "most_samples"
SETTINGS = {**SMALL, "method": "rnd"}


@pytest.fixture
def declared(monkeypatch):
    """One more column: all that it takes."""
    column = RoundColumn(
        name=NAME,
        sql="INTEGER",
        since=current_version() + 1,
        label="most samples",
        meaning="Samples that the busiest server trained on.",
        value=lambda played: max(report.num_samples for report in played.record.report.servers if report is not None),
    )
    monkeypatch.setitem(ROUND_COLUMNS, NAME, column)
    return column


@pytest.fixture
def played(declared, tmp_path):
    records = []
    result = hatdfed.run(SETTINGS, out=tmp_path / "run", on_round=lambda _, record: records.append(record))
    return result, records


def expected(result):
    return [max(row["num_samples"] for row in result.servers if row["t"] == t) for t in range(len(result.rounds))]


def test_it_is_in_the_records_and_the_results(played, tmp_path):
    result, _ = played
    values = expected(result)
    assert min(values) > 0
    assert [row[NAME] for row in result.rounds] == values
    assert result.summary[NAME] == values[-1]
    with closing(sqlite3.connect(tmp_path / "run" / "run.sqlite")) as database:
        assert database.execute(f"SELECT {NAME} FROM rounds").fetchall() == [(value,) for value in values]  # noqa: S608
    with reading(tmp_path / "run" / "run.sqlite") as reader:
        assert reader.progress()[NAME] == values[-1]
        assert [point[NAME] for point in reader.curves(0, 2, 1)] == values


def test_it_is_shown_on_the_command_line(played, tmp_path):
    last = expected(played[0])[-1]
    assert f"most samples {last:,}" in CliRunner().invoke(app, ["show", str(tmp_path / "run")]).stdout
    told = json.loads(CliRunner().invoke(app, ["show", str(tmp_path / "run"), "--json"]).stdout)
    assert told[NAME] == told["last_round"][NAME] == last


def test_it_is_a_curve_in_tensorboard_and_mlflow(played, tmp_path):
    result, records = played
    values = expected(result)
    assert [figures[NAME] for _, figures in read_published_run(tmp_path / "run").rounds] == values
    assert [figures_of_record(record)[NAME] for record in records] == values


def test_it_is_in_the_table_of_a_comparison(declared):
    (row,) = hatdfed.compare(["rnd"], seeds=2, **{k: v for k, v in SETTINGS.items() if k != "method"}).summary
    assert row[NAME] > 0


def test_it_is_explained_in_the_documents(declared, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    generate = importlib.import_module("generate")
    assert f"| `{NAME}` | – | {declared.meaning} |" in generate.records_tables()
    assert f"`{NAME}`" in generate.last_figures()


def test_it_is_in_a_report(played, tmp_path):
    pytest.importorskip("jinja2")
    done = CliRunner().invoke(
        app, ["report", str(tmp_path / "run"), "--format", "md", "-o", str(tmp_path / "report.md")]
    )
    assert done.exit_code == 0, done.output
    assert f"| Most samples | {expected(played[0])[-1]:,} |" in (tmp_path / "report.md").read_text(encoding="utf-8")


@pytest.mark.skipif(find_spec("fastapi") is None, reason="the extra `dashboard` is not installed")
def test_it_has_a_chart_in_the_dashboard(played, tmp_path):
    from fastapi.testclient import TestClient

    from hatdfed.dashboard.app import make_app
    from hatdfed.dashboard.catalogue import Catalogue
    from hatdfed.dashboard.deployment import DeploymentMonitor
    from hatdfed.dashboard.event_streams import EventStreams
    from hatdfed.dashboard.site import Site

    async def ask():
        return {"figures": {NAME: 12}}

    site = Site(Catalogue(tmp_path), DeploymentMonitor("127.0.0.1:1", ask), EventStreams())
    client = TestClient(make_app(site), base_url="http://127.0.0.1")
    (card,) = client.get("/api/runs").json()
    series = client.get(f"/api/runs/{card['id']}/series").json()
    (chart,) = [metric for metric in series["more"] if metric["name"] == NAME]
    assert chart["values"] == expected(played[0])
    page = client.get(f"/runs/{card['id']}").text
    assert f'id="{NAME}-chart"' in page
    assert "Samples that the busiest server trained on." in page
    assert f'id="{NAME}"' in client.get("/deployment").text
    figures = client.get("/api/deployment").json()["figures"]
    assert (figures["consensus_distance"], figures[NAME]) == ("unknown", "12")


@pytest.mark.skipif(find_spec("grpc") is None, reason="the extra `deploy` is not installed")
def test_it_is_in_the_status_of_a_deployment(played):
    from hatdfed.deploy.coordinator.status import DeploymentProgress

    result, records = played
    progress = DeploymentProgress("run", 3)
    progress.take_over(result.rounds[:1], [])
    for record in records[1:]:
        progress.count(record, 1.0)
    assert progress.figures[NAME] == expected(result)[-1]
    assert progress.figures["links"] == sum(row["links"] for row in result.rounds)
    assert progress.figures["carbon_grams"] is None  # of a deployment, too


def test_a_run_from_before_goes_on_and_knows_it_from_there_on(monkeypatch, tmp_path, request):
    hatdfed.run(SETTINGS, out=tmp_path / "run")
    request.getfixturevalue("declared")
    result = hatdfed.resume(tmp_path / "run", {"rounds": 5})
    assert [row[NAME] is None for row in result.rounds] == [True] * 3 + [False] * 2
    assert "most samples unknown" not in CliRunner().invoke(app, ["show", str(tmp_path / "run")]).stdout


def test_a_row_has_plain_numbers_for_every_column_in_their_order(played):
    result, records = played
    for record, kept in zip(records, result.rounds, strict=True):
        row = round_row(record, kept["seconds"])
        assert list(row) == list(ROUND_COLUMNS)
        assert row == kept
        assert all(type(value) in (int, float) or ROUND_COLUMNS[name].may_be_unknown for name, value in row.items())


@pytest.mark.parametrize("column", ROUND_COLUMNS.values(), ids=list(ROUND_COLUMNS))
def test_every_column_says_in_a_sentence_what_it_is(column):
    assert column.meaning[0].isupper()
    assert column.meaning.endswith(".")
    assert column.label
    assert column.over_rounds is not None or not column.in_results
