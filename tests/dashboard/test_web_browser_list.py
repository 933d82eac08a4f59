"""Searching, grouping and choosing in the list, pages on a phone, and a deployment that is over."""

import pytest
from tests.dashboard.browser import PHONE, SIZE, complaints, shape, wait_for
from tests.dashboard.site_on_disk import serving

from hatdfed.dashboard.catalogue import Catalogue
from hatdfed.dashboard.deployment import DeploymentMonitor
from hatdfed.dashboard.event_streams import EventStreams
from hatdfed.dashboard.site import Site

pytestmark = pytest.mark.browser

SERVER = {"index": 0, "name": "edge-0", "active": True, "doing": "waits", "round": 9, "address": "10.0.0.1:7445"}
FINISHED = {"run": "abc", "state": "done", "round": 9, "rounds": 9, "joules": {"link": 3.0}, "servers": [SERVER] * 4}


@pytest.fixture
def address(runs, browser):
    async def ask():
        return FINISHED

    monitor = DeploymentMonitor("127.0.0.1:7444", ask)
    with serving(Site(Catalogue(runs), monitor, EventStreams(every_seconds=0.2))) as where:
        shape(browser, SIZE)
        browser.get(f"{where}/")
        complaints(browser)
        yield where
        browser.get("about:blank")


def ask(browser, script):
    return browser.execute_script(f"return {script}")


def test_a_search_changes_the_rows_while_it_is_typed(browser, address):
    browser.execute_script("window.untouched = true")
    box = browser.find_element("id", "search")
    box.send_keys("rnd seed1")
    wait_for(lambda: ask(browser, "document.querySelectorAll('#rows a').length") == 1)
    assert ask(browser, "document.getElementById('count').textContent") == "1"
    assert ask(browser, "window.untouched && document.activeElement.id") == "search"
    assert "search=rnd" in browser.current_url
    assert complaints(browser) == []


def test_boxes_choose_a_group_and_everything(browser, address):
    browser.get(f"{address}/?group=method")
    chosen = "document.getElementById('chosen').textContent"
    browser.find_element("css selector", "[data-group='1']").click()
    assert ask(browser, chosen) == "2 runs chosen."
    assert ask(browser, "document.getElementById('all').indeterminate")
    browser.find_element("id", "all").click()
    assert ask(browser, chosen) == "4 runs chosen."
    browser.find_element("id", "all").send_keys(" ")
    assert ask(browser, chosen).startswith("Tick two or more runs")
    assert ask(browser, "[...document.querySelectorAll('input, select')].every((e) => e.labels.length || e.ariaLabel)")


def test_no_page_is_wider_than_a_phone(browser, address):
    ids = ask(browser, "[...document.querySelectorAll('#rows input')].map((box) => box.value)")
    shape(browser, PHONE)
    chosen = "&".join(f"run={run}" for run in ids)
    for page in ("/", "/?group=sweep", f"/runs/{ids[0]}", f"/compare?{chosen}", "/compare", "/deployment", "/no"):
        browser.get(address + page)
        if "/runs/" in page:
            wait_for(lambda: ask(browser, "document.querySelectorAll('.js-plotly-plot').length >= 5"))
        if page == "/deployment":
            wait_for(lambda: ask(browser, "document.querySelectorAll('#servers tbody tr').length"))
        assert ask(browser, "document.documentElement.scrollWidth - innerWidth") <= 0, page
        fits = "(table) => table.scrollWidth <= table.parentNode.clientWidth"
        assert ask(browser, f"[...document.querySelectorAll('.cards, #ledger-table')].every({fits})"), page


def test_a_finished_deployment_says_so(browser, address):
    browser.get(f"{address}/deployment")
    wait_for(lambda: "Finished: all 9 rounds" in ask(browser, "document.getElementById('waits').textContent"))
    assert ask(browser, "document.getElementById('state').textContent") == "done"
    assert ask(browser, "document.querySelector('#servers td').textContent") == "server 0"


def test_rounds_of_servers_are_counted_from_one_as_those_of_a_run(runs, browser):
    async def tell():
        return FINISHED | {"state": "running", "round": 4, "servers": [SERVER | {"round": 4}]}

    site = Site(Catalogue(runs), DeploymentMonitor("127.0.0.1:7444", tell), EventStreams(every_seconds=0.2))
    with serving(site) as where:
        browser.get(f"{where}/deployment")
        wait_for(lambda: ask(browser, "document.getElementById('played').textContent") == "4")
        assert ask(browser, "document.querySelector('#servers td[data-label=\"Next round\"]').textContent") == "5"
        browser.get("about:blank")


@pytest.mark.parametrize(
    ("matrix", "places"),
    [
        ([[None, 0.30], [0.32, None]], [0, 1]),
        ([[None, 0.001], [0.1, None]], [0, 1]),
        ([[None, 0.3], [0.3, None]], [1, 1]),
    ],
)
def test_the_scale_of_probabilities_spans_what_there_is(browser, address, matrix, places):
    script = (
        "const done = arguments[1]; import('/static/chance_scale.js').then(({ makeChanceScale }) => {"
        "const scale = makeChanceScale(arguments[0]);"
        "done([arguments[0][0][1], arguments[0][1][0]].map(scale.place)); })"
    )
    assert browser.execute_async_script(script, matrix) == pytest.approx(places)
