import json
import shutil
import subprocess
import sys

import pytest
import yaml
from fastapi.testclient import TestClient
from tests.dashboard.site_on_disk import HOSTILE, id_of, look_again, unfinish

from hatdfed.dashboard.app import make_app
from hatdfed.dashboard.safety import HEADERS, is_allowed_name, is_local
from hatdfed.runs.records.cleaning import flat_settings, text
from hatdfed.runs.records.search import run_folders

EVERYWHERE = "0.0.0.0"  # noqa: S104
PAGES = ("/", "/compare", "/deployment", "/nowhere", "/api/runs", "/static/style.css", "/api/nowhere")


@pytest.mark.parametrize("address", PAGES)
def test_every_answer_has_the_headers(reader, address):
    answer = reader.get(address)
    assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS


def test_the_policy_allows_no_script_or_style_of_the_pages_own_text(client, run_id):
    policy = dict(part.split(" ", 1) for part in HEADERS["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert "unsafe-inline" not in HEADERS["Content-Security-Policy"]
    for address in ("/", "/compare", "/deployment", f"/runs/{run_id}"):
        page = client.get(address).text
        assert "<script>" not in page
        assert "style=" not in page
        assert "onclick" not in page
        assert "http://" not in page.replace("http://127.0.0.1", "")
        assert "https://" not in page


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8050", "127.0.0.1.evil.example", EVERYWHERE, "", "[::2]"]
)
def test_another_name_in_the_request_is_refused(reader, host):
    assert reader.get("/", headers={"Host": host}).status_code == 421


@pytest.mark.parametrize("host", ["localhost:8050", "127.0.0.1", "[::1]:8050", "LOCALHOST"])
def test_our_own_names_are_served(reader, host):
    assert reader.get("/", headers={"Host": host}).status_code == 200


def test_a_named_host_is_served_and_a_wildcard_takes_numbers_only(site):
    app = make_app(site, listens_at="lab.example")
    with TestClient(app, base_url="http://lab.example") as client:
        assert client.get("/").status_code == 200
    assert is_allowed_name("10.0.0.7", EVERYWHERE)
    assert not is_allowed_name("evil.example", EVERYWHERE)
    assert is_local("127.0.0.1")
    assert is_local("::1")
    assert not is_local(EVERYWHERE)
    assert not is_local("lab.example")


@pytest.mark.parametrize("method", ["post", "put", "patch", "delete", "options"])
def test_nothing_but_questions_is_taken(reader, method):
    run_id = id_of(reader, "both/hat-dfed-seed0")
    for address in ("/", f"/runs/{run_id}", "/api/runs", "/api/deployment"):
        assert reader.request(method, address).status_code == 405


def test_there_is_no_description_of_the_interface_that_loads_from_elsewhere(reader):
    for address in ("/docs", "/redoc", "/openapi.json"):
        assert reader.get(address).status_code == 404


@pytest.mark.parametrize(
    "address",
    [
        "/runs/..%2f..%2fetc%2fpasswd",
        "/runs/../../etc/passwd",
        "/api/runs/..%2f..%2f/series",
        "/api/runs/%2e%2e/ledger.csv",
        "/static/../app.py",
        "/static/..%2fapp.py",
        "/static/%2e%2e/%2e%2e/cli/app.py",
        "/runs/both%2fhat-dfed-seed0",
    ],
)
def test_a_path_leads_nowhere(reader, address):
    answer = reader.get(address)
    assert answer.status_code in (404, 405)
    assert "root:" not in answer.text
    assert "import" not in answer.text


def test_links_to_folders_elsewhere_are_not_followed(runs, played):
    (runs / "elsewhere").symlink_to(played)
    (runs / "ring").symlink_to(runs)
    assert len(run_folders(runs, most=100)) == 4


def _hostile_run(runs, name, settings):
    """A copy of a run with settings of somebody else's making."""
    folder = runs / name
    shutil.copytree(runs / "both" / "rnd-seed0", folder)
    unfinish(folder, 5)
    (folder / "config.yaml").write_text(settings if isinstance(settings, str) else yaml.safe_dump(settings))
    (folder / "environment.json").write_text(json.dumps({"processor": HOSTILE, "cores": [HOSTILE]}))
    return folder


@pytest.mark.parametrize("name", ["<script>alert(1)<", "“löß” 日本", "x" * 200, "a&b;c'd\"e", "a..b", "new\nline"])
def test_whatever_a_run_is_called_is_shown_as_text(client, site, runs, name):
    _hostile_run(runs, name, {"method": HOSTILE, "dataset": "<img src=x onerror=alert(1)>", "servers": 4, "rounds": 9})
    look_again(site)
    card = next(card for card in client.get("/api/runs").json() if not card["name"].startswith("both"))
    for address in ("/", f"/runs/{card['id']}", f"/?method={HOSTILE}", f"/compare?run={card['id']}"):
        page = client.get(address)
        assert page.status_code == 200
        assert "<script>alert" not in page.text
        assert "<img src=x" not in page.text
    assert "&lt;script&gt;alert" in client.get(f"/runs/{card['id']}").text


@pytest.mark.parametrize(
    "settings",
    [
        {"method": None, "servers": "many", "rounds": -1, "seed": 1e400},
        {"method": ["a"], "servers": 10**30, "rounds": True, "seed": {"a": 1}},
        {"servers": 10**9, "method": "x" * 100_000},
        "a: &a [x, x]\n" + "\n".join(f"k{i}: &k{i} [{', '.join([f'*k{i - 1}' if i else '*a'] * 9)}]" for i in range(9)),
        "just words",
        "{",
    ],
)
def test_settings_that_make_no_sense_break_no_page(client, site, runs, settings):
    _hostile_run(runs, "odd", settings)
    look_again(site)
    run_id = id_of(client, "odd")
    assert client.get("/").status_code == 200
    assert client.get(f"/runs/{run_id}").status_code == 200
    assert client.get(f"/api/runs/{run_id}/series").status_code in (200, 500)
    assert client.get(f"/api/runs/{run_id}/rounds/0").status_code in (200, 500)


def test_endless_settings_are_cut():
    deep = "x"
    for _ in range(50):
        deep = {"a": deep, "b": [deep]}
    assert len(flat_settings(deep)) <= 401
    assert len(flat_settings({str(i): i for i in range(10_000)})) == 401
    assert len(text("y" * 10**6)) == 300
    assert text(10**5000) == "a very large number"


def test_the_dashboard_runs_without_torch_and_matplotlib():
    code = (
        "import sys, hatdfed.dashboard.app; print([m for m in ('torch', 'matplotlib', 'plotly') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
