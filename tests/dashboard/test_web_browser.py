import shutil
import subprocess
import sys

import pytest
import yaml
from tests.dashboard.browser import PHONE, SIZE, complaints, requests, shape, wait_for
from tests.dashboard.site_on_disk import HOSTILE, serving, unfinish

import hatdfed
from hatdfed.dashboard.catalogue import Catalogue
from hatdfed.dashboard.deployment import DeploymentMonitor
from hatdfed.dashboard.event_streams import EventStreams
from hatdfed.dashboard.site import Site
from hatdfed.errors import HatdfedError

pytestmark = pytest.mark.browser

STATUS = {
    "run": "abc", "state": "running", "round": 3, "rounds": 9, "accuracy_percent": 41.5, "links": 12, "undelivered": 1,
    "joules": {"link": 3.0}, "waits_for": "edge-2", "waits_seconds": 4.5, "refused": {"<b>too-late</b>": 2},
    "servers": [{"index": 0, "name": HOSTILE, "active": True, "doing": "trains", "round": 4, "seen_seconds_ago": 0.4}],
}  # fmt: skip


@pytest.fixture
def address(runs, browser):
    async def ask():
        return STATUS

    site = Site(Catalogue(runs), DeploymentMonitor("127.0.0.1:7444", ask), EventStreams(every_seconds=0.2))
    with serving(site) as where:
        shape(browser, SIZE)
        requests(browser)
        complaints(browser)
        yield where
        browser.get("about:blank")


def text(browser, selector):
    return browser.execute_script("return document.querySelector(arguments[0])?.textContent ?? ''", selector)


def ids(browser, address):
    browser.get(f"{address}/")
    return browser.execute_script("return [...document.querySelectorAll('#rows input')].map((box) => box.value)")


def drawn(browser, number):
    """Whether so many charts and, on a run page, the graph are there."""
    charts = "return document.querySelectorAll('.js-plotly-plot .main-svg').length"
    return wait_for(lambda: browser.execute_script(charts) >= number)


def open_run(browser, address, name="hat-dfed-seed0"):
    browser.get(f"{address}/")
    link = f"return [...document.querySelectorAll('#rows a')].find((a) => a.textContent.includes('{name}')).href"
    browser.get(browser.execute_script(link))
    drawn(browser, 5)
    wait_for(lambda: text(browser, "#topology-title"))


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("size", [SIZE, PHONE])
def test_every_page_is_whole_without_a_network_and_without_a_complaint(browser, address, dark, size):
    shape(browser, size, dark=dark)
    chosen = ids(browser, address)
    open_run(browser, address)
    browser.get(f"{address}/compare?{'&'.join(f'run={run}' for run in chosen)}")
    drawn(browser, 2)
    for page in ("/compare", "/deployment", "/"):
        browser.get(address + page)
        wide = browser.execute_script("return document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, page
        assert browser.execute_script("return document.documentElement.dataset.theme") == ("dark" if dark else "light")
    wait_for(lambda: text(browser, "#live") == "Live")
    assert complaints(browser) == []
    asked = [url for url in requests(browser) if not url.startswith("data:")]
    assert len(asked) > 20
    assert [url for url in asked if not url.startswith(address)] == []


def test_the_slider_moves_the_graph_by_keys_and_the_charts_by_clicks(browser, address):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    open_run(browser, address)
    assert text(browser, "#round") == "round 5 of 5"
    graph = "return [...document.querySelectorAll('#topology .link')].map((l) => l.dataset.from + l.dataset.to).join()"
    before = browser.execute_script(graph)
    slider = browser.find_element(By.ID, "slider")
    slider.send_keys(Keys.ARROW_LEFT)
    wait_for(lambda: "in round 4" in text(browser, "#topology-title"))
    assert browser.execute_script(graph) != before
    assert slider.get_attribute("aria-valuetext") == "round 4 of 5"
    slider.send_keys(Keys.HOME)
    wait_for(lambda: text(browser, "#ledger-round") == "round 1")
    slider.send_keys(Keys.PAGE_UP)
    wait_for(lambda: text(browser, "#ledger-round") == "round 2")
    click = "document.getElementById('accuracy-chart').emit('plotly_click', {points: [{x: 5}]})"
    browser.execute_script(click)
    wait_for(lambda: text(browser, "#ledger-round") == "round 5")
    assert complaints(browser) == []


def test_a_large_fleet_is_a_matrix_and_bands(browser, runs, address):
    hatdfed.run(servers=50, rounds=2, out=runs / "fifty")
    open_run(browser, address, "fifty")
    wait_for(lambda: text(browser, "#topology-note").startswith("Every coloured cell is a link"))
    assert browser.execute_script("return document.querySelectorAll('#topology .heatmaplayer image').length") == 1
    assert "Bands" in text(browser, "#accuracy-note")
    assert complaints(browser) == []


def test_pointing_at_things_breaks_no_rule_of_the_policy(browser, address):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By

    open_run(browser, address)
    for name in ("propensity", "accuracy-chart", "energy-chart"):
        chart = browser.find_element(By.ID, name)
        browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", chart)
        ActionChains(browser).move_to_element(chart).move_by_offset(20, 10).pause(0.2).perform()
        labels = f"return document.querySelectorAll('#{name} .hoverlayer text').length"
        if name != "propensity":  # which may have been met on its empty diagonal
            wait_for(lambda labels=labels: browser.execute_script(labels))
    browser.execute_script("document.querySelector('.server').focus()")
    assert browser.execute_script("return document.querySelector('#topology svg').classList.contains('pointed')")
    browser.find_element(By.ID, "theme").click()
    assert browser.execute_script("return document.documentElement.dataset.theme") == "dark"
    browser.refresh()
    assert browser.execute_script("return document.documentElement.dataset.theme") == "dark"
    browser.execute_script("localStorage.clear()")
    assert complaints(browser) == []


def test_an_experiment_that_runs_gains_rounds_without_a_reload(browser, runs, address):
    command = [
        sys.executable,
        "-m",
        "hatdfed",
        "run",
        "--rounds",
        "4000",
        "--servers",
        "3",
        "--out",
        str(runs / "live"),
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as experiment:
        try:
            browser.get(f"{address}/")
            wait_for(lambda: "live" in text(browser, "#rows"), 60)  # the list shows it by itself
            open_run(browser, address, "live")
            browser.execute_script("window.untouched = true")
            first = int(text(browser, "#played"))
            wait_for(lambda: int(text(browser, "#played")) >= first + 10, 60)
            wait_for(lambda: int(text(browser, "#ledger-round").split()[1]) > first)
            assert browser.execute_script("return window.untouched")
            assert text(browser, "#state") == "running"
        finally:
            experiment.kill()
    assert complaints(browser) == []


def test_the_list_filters_sorts_and_leads_to_a_comparison(browser, address):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.select import Select

    browser.get(f"{address}/")
    Select(browser.find_element(By.NAME, "method")).select_by_visible_text("rnd")
    wait_for(lambda: "method=rnd" in browser.current_url)
    browser.find_element(By.LINK_TEXT, "Accuracy").click()
    wait_for(lambda: "sort=accuracy" in browser.current_url)
    assert "method=rnd" in browser.current_url
    browser.get(f"{address}/")
    assert not browser.find_element(By.ID, "compare").is_enabled()
    for box in browser.find_elements(By.CSS_SELECTOR, "#rows input"):
        box.click()
    assert text(browser, "#chosen") == "4 runs chosen."
    browser.find_element(By.ID, "compare").click()
    drawn(browser, 2)
    assert "reference" in text(browser, "table")
    assert complaints(browser) == []


@pytest.mark.parametrize("name", ["<script>hacked=1<", "“löß” 日本 & <b>", "x" * 200])
def test_hostile_runs_are_shown_as_text(browser, runs, address, name):
    folder = runs / name
    shutil.copytree(runs / "both" / "rnd-seed0", folder)
    unfinish(folder, 5)
    settings = {"method": "<img src=x onerror=hacked=1>", "dataset": HOSTILE, "servers": 4, "rounds": 9, "x": HOSTILE}
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    wait_for(lambda: len(ids(browser, address)) == 5)
    assert name in text(browser, "#rows")
    browser.execute_script(
        "[...document.querySelectorAll('#rows a')].find((a) => !a.textContent.includes('both')).click()"
    )
    drawn(browser, 5)
    assert HOSTILE in text(browser, ".papers")
    assert "<img src=x" in text(browser, "h1")
    assert browser.execute_script("return typeof window.hacked") == "undefined"
    assert browser.execute_script("return document.documentElement.scrollWidth - innerWidth") <= 0
    assert complaints(browser) == []


def test_a_deployment_is_shown_as_text_with_whom_it_waits_for(browser, address):
    browser.get(f"{address}/deployment")
    wait_for(lambda: "Waits for edge-2. At most" in text(browser, "#waits"))
    assert HOSTILE in text(browser, "#servers")
    assert "<b>too-late</b>" in text(browser, "#refused")
    assert complaints(browser) == []


def test_a_coordinator_that_is_away_is_said_with_care(browser, runs):
    async def ask():
        raise HatdfedError("The coordinator at x does not answer: gone")

    with serving(Site(Catalogue(runs), DeploymentMonitor("x", ask))) as where:
        browser.get(f"{where}/deployment")
        wait_for(lambda: "does not answer: gone" in text(browser, "#trouble-sentence"))
        assert browser.execute_script("return document.getElementById('status').hidden")
        browser.get("about:blank")


def test_a_report_opens_from_the_disk(browser, runs, tmp_path):
    report = tmp_path / "report.html"
    command = [sys.executable, "-m", "hatdfed", "report", str(runs / "both"), "-o", str(report)]
    subprocess.run(command, check=True, capture_output=True)
    requests(browser)
    complaints(browser)
    for size in (SIZE, PHONE):
        shape(browser, size)
        browser.get(report.as_uri())
        widths = browser.execute_script("return [...document.images].map((image) => image.naturalWidth)")
        assert len(widths) == 5 + 4 * 7  # of the comparison, and of each run
        assert min(widths) > 500
        assert browser.execute_script("return document.documentElement.scrollWidth - innerWidth") <= 0
    assert complaints(browser) == []
    assert [url for url in requests(browser) if not url.startswith(("data:", "file:"))] == []
