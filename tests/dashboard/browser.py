"""Headless Chromium that can reach this machine alone, and what it has to say afterwards."""

import json
import shutil
import time

import pytest

SIZE, PHONE = (1360, 900), (390, 844)


def open_browser(*, dark=False, size=SIZE):
    """A browser; skips the test where there is none."""
    selenium = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("there is no Chromium: apt-get install chromium chromium-driver")
    options = selenium.ChromeOptions()
    options.binary_location = program
    blocked = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", blocked):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = selenium.Chrome(options=options, service=selenium.ChromeService(driver))
    shape(browser, size, dark=dark)
    return browser


def shape(browser, size, *, dark=False):
    """Width, height and the reader's query for light or dark."""
    metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size[0] < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    query = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": query})


def wait_for(look, seconds=30):
    """What `look` gives, as soon as that is something."""
    end = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)
    return found


def complaints(browser):
    """Errors in the console since the last look."""
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


def requests(browser):
    """Addresses that were asked for since the last look."""
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
