"""What a careful reader notices: keys, paper, broken runs, lists that grow."""

import shutil

import pytest
from tests.dashboard.browser import PHONE, SIZE, complaints, shape, wait_for
from tests.dashboard.site_on_disk import serving, unfinish

from hatdfed.dashboard.catalogue import Catalogue
from hatdfed.dashboard.event_streams import EventStreams
from hatdfed.dashboard.site import Site
from hatdfed.report.document import make_document, render_html
from hatdfed.report.formatting import joules

pytestmark = pytest.mark.browser

ENERGIES = [0, 0.00123, 0.5, 7.0, 99.95, 999.4, 999.6, 1234.5, 15981, 999_499, 999_600, 12_345_678, 1.5e9]


@pytest.fixture
def address(runs, browser):
    with serving(Site(Catalogue(runs), streams=EventStreams(every_seconds=0.2))) as where:
        shape(browser, SIZE)
        browser.get(f"{where}/")
        complaints(browser)
        yield where
        browser.get("about:blank")


def ask(browser, script):
    return browser.execute_script(f"return {script}")


def open_run(browser, address, name):
    browser.get(f"{address}/")
    browser.get(
        ask(browser, f"[...document.querySelectorAll('#rows a')].find((a) => a.textContent.includes('{name}')).href")
    )


def test_the_keys_stay_at_a_server_when_the_round_changes(browser, address):
    open_run(browser, address, "hat-dfed-seed0")
    wait_for(lambda: ask(browser, "document.querySelectorAll('.server').length === 4"))
    browser.execute_script("document.querySelector('[data-server=\"2\"]').focus()")
    browser.execute_script(
        "const s = document.getElementById('slider'); s.value = 2; s.dispatchEvent(new Event('input'))"
    )
    wait_for(lambda: ask(browser, "document.getElementById('ledger-round').textContent === 'round 2'"))
    assert ask(browser, "document.activeElement.dataset.server") == "2"
    assert ask(browser, "document.querySelector('#topology svg').classList.contains('pointed')")
    assert complaints(browser) == []


def test_every_chart_has_a_name_and_every_wide_table_is_reached_by_keys(browser, address):
    open_run(browser, address, "hat-dfed-seed0")
    wait_for(lambda: ask(browser, "document.querySelectorAll('.js-plotly-plot').length >= 5"))
    title = "document.getElementById(chart.getAttribute('aria-labelledby')).textContent"
    named = f"[...document.querySelectorAll('.chart')].map((chart) => {title})"
    assert all(ask(browser, named))
    assert ask(browser, "document.querySelectorAll('.scroll:not([tabindex])').length") == 0


def test_paper_is_light(browser, address):
    shape(browser, SIZE, dark=True)
    open_run(browser, address, "hat-dfed-seed0")
    assert ask(browser, "document.documentElement.dataset.theme") == "dark"
    browser.execute_script("dispatchEvent(new Event('beforeprint'))")
    assert ask(browser, "document.documentElement.dataset.theme") == "light"
    browser.execute_script("dispatchEvent(new Event('afterprint'))")
    assert ask(browser, "document.documentElement.dataset.theme") == "dark"


def test_no_table_of_a_report_is_cut_on_paper(browser, runs, tmp_path):
    report = tmp_path / "report.html"
    report.write_text(render_html(make_document([runs / "both"], tmp_path / "pictures")))
    shape(browser, (690, 1000))  # an A4 page between its margins
    browser.get(report.as_uri())
    wide = "Math.max(...[...document.querySelectorAll('.scroll')].map((box) => box.scrollWidth - box.clientWidth))"
    assert ask(browser, wide) > 0, "on a screen it is scrolled"
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert ask(browser, wide) <= 0
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_a_run_whose_records_are_damaged_says_so_in_its_page(browser, runs, address):
    (runs / "both" / "rnd-seed0" / "run.sqlite").write_bytes(b"\0" * 5000)
    open_run(browser, address, "rnd-seed0")
    wait_for(lambda: "cannot be read" in ask(browser, "document.getElementById('trouble-sentence').textContent"))
    assert ask(browser, "document.getElementById('trouble').hidden") is False
    assert ask(browser, "document.getElementById('pictures').hidden") is True


def test_a_list_that_grows_counts_right_and_a_run_that_is_removed_leaves_it(browser, runs, address):
    count = "document.querySelector('.count').textContent.replace(/\\s+/g, ' ').trim()"
    assert ask(browser, count) == "4 of 4 runs"
    shutil.copytree(runs / "both" / "rnd-seed0", runs / "new")
    wait_for(lambda: ask(browser, count) == "5 of 5 runs")
    shutil.rmtree(runs / "new")
    wait_for(lambda: ask(browser, count) == "4 of 4 runs")
    assert complaints(browser) == []


def test_a_run_that_is_removed_while_it_is_watched_says_that_it_is_not_live(browser, runs, address):
    unfinish(runs / "both" / "rnd-seed0", 3)
    open_run(browser, address, "rnd-seed0")
    live = "document.getElementById('live').textContent"
    wait_for(lambda: ask(browser, live) == "Live")
    shutil.rmtree(runs / "both" / "rnd-seed0")
    wait_for(lambda: ask(browser, live).startswith("Not live any more"))
    assert "in round 3" in ask(browser, "document.getElementById('topology-title').textContent")


def test_a_phone_sorts_by_a_choice_where_there_are_no_headings(browser, address):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.select import Select

    shape(browser, PHONE)
    browser.get(f"{address}/")
    assert not browser.find_element(By.CSS_SELECTOR, ".runs thead").is_displayed()
    Select(browser.find_element(By.NAME, "sort")).select_by_visible_text("Accuracy")
    wait_for(lambda: "sort=accuracy" in browser.current_url)
    shape(browser, SIZE)
    assert not browser.find_element(By.NAME, "sort").is_displayed()


def test_energy_is_written_alike_by_scripts_and_by_pages(browser, address):
    script = "const done = arguments[1]; import('/static/dom.js').then((dom) => done(arguments[0].map(dom.joules)))"
    assert browser.execute_async_script(script, ENERGIES) == [joules(value) for value in ENERGIES]
