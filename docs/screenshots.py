"""Pictures of every page of the dashboard and of a report, light and dark, in docs/dashboard/.

    python docs/screenshots.py

Everything in them is real: methods compared on the embedded digits, a run that is being played, a deployment with
certificates whose last edge was switched off, a report of two of the runs. Needs Chromium with its driver, and the
package selenium.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from PIL import Image
from selenium import webdriver

import hatdfed

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "examples" / "three_machines"))
import cluster  # noqa: E402 (an example, which is not installed)

METHODS = ("hat-dfed", "hat-dfed-plus", "rnd", "d-psgd", "full", "local")
WIDE, PHONE = 1200, 390
EDGES = 4
RUN_HEAD, REPORT_HEAD = 1000, 2450  # pixels of pages that are longer than a picture should be
SHADES = 256


def main() -> None:
    """Play, serve, photograph."""
    target = ROOT / "docs" / "dashboard"
    target.mkdir(exist_ok=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        runs = folder / "runs"
        hatdfed.compare(METHODS, seeds=3, out=runs / "compare-digits")
        port, edges = deploy(stack, folder)
        cluster.start(stack, folder / "run.log", "run", "--rounds", "100000", "--out", str(runs / "live"))
        wait_for_rounds(runs / "live" / "run.sqlite")
        edges[-1].terminate()
        address = serve(stack, folder, port)
        reported = (f"runs/compare-digits/{method}-seed{seed}" for method in METHODS[:2] for seed in range(3))
        cluster.hatdfed("report", *reported, "-o", "report.html")
        time.sleep(15)  # until the coordinator knows that an edge is away
        for theme in ("light", "dark"):
            photograph(address, folder / "report.html", target, theme)


def deploy(stack: ExitStack, folder: Path) -> tuple[int, list[subprocess.Popen[bytes]]]:
    """A coordinator and a few edges; the coordinator's port."""
    ca, (port, desk) = folder / "ca", cluster.free_ports(2)
    cluster.hatdfed("ca", "init", str(ca))
    coordinator = cluster.start(
        stack,
        folder / "coordinator.log",
        *("coordinator", str(ROOT / "examples/three_machines/run.yaml"), "--state", str(folder / "runs" / "deployed")),
        *("--ca", str(ca), "--listen", f"127.0.0.1:{port}", "--desk", f"127.0.0.1:{desk}"),
        *("--set", f"servers={EDGES}", "--set", "rounds=2000"),
    )
    cluster.wait_for_port(desk, coordinator)
    edges = []
    for number in range(EDGES):
        cluster.join(f"edge-{number}", ca, desk, folder)
        where = ("--coordinator", f"127.0.0.1:{port}", "--desk", f"127.0.0.1:{desk}", "--threads", "1")
        kept = ("--identity", str(folder / f"edge-{number}"), "--store", str(folder / f"store-{number}"))
        edges.append(cluster.start(stack, folder / f"edge-{number}.log", "edge", *where, *kept))
    wait_for_rounds(folder / "runs" / "deployed" / "run.sqlite")
    return port, edges


def wait_for_rounds(database: Path) -> None:
    """Until a run has played a few."""
    from hatdfed.runs.records.reading import reading

    end = time.monotonic() + 120
    while time.monotonic() < end:
        if database.exists():
            with reading(database) as reader:
                if reader.progress()["rounds"] > 20:
                    return
        time.sleep(0.5)
    raise SystemExit(f"{database.parent.name} plays no rounds.")


def serve(stack: ExitStack, folder: Path, port: int) -> str:
    """The dashboard's address."""
    os.chdir(folder)  # so that the list is headed by a short name, and runs of the report have one
    where = ("--runs", "runs", "--coordinator", f"127.0.0.1:{port}", "--ca", str(folder / "ca"))
    cluster.start(stack, folder / "dashboard.log", "dashboard", "--port", "0", *where)
    said = folder / "dashboard.out"
    while not (found := re.search(r"http://[\d.:]+", said.read_text(encoding="utf-8"))):
        time.sleep(0.2)
    return found[0]


def photograph(address: str, report: Path, target: Path, theme: str) -> None:
    """All pages in one theme."""
    with urlopen(f"{address}/api/runs") as answer:  # noqa: S310 (our own address)
        cards = json.load(answer)
    done = {card["name"]: card["id"] for card in cards if card["state"] == "done"}
    run = done["compare-digits/hat-dfed-seed0"]
    chosen = "&".join(f"run={run_id}" for run_id in done.values())
    pages = {"runs": "/", "run": f"/runs/{run}", "comparison": f"/compare?{chosen}", "deployment": "/deployment"}
    with browser(theme) as window:
        taken = {name: take(window, address + page, WIDE) for name, page in pages.items()}
        taken["report"] = head(take(window, report.as_uri(), WIDE), REPORT_HEAD)
        phone = [take(window, address + pages[name], PHONE, height=1700) for name in ("runs", "run")]
    taken |= {"run-head": head(taken["run"], RUN_HEAD), "phone": beside(phone)}
    for name, picture in taken.items():
        small = picture.quantize(SHADES, kmeans=2, dither=Image.Dither.NONE)  # flat colours: a third of the size
        small.save(target / f"{name}-{theme}.png", optimize=True)


def head(picture: Image.Image, height: int) -> Image.Image:
    """The upper part of a picture."""
    return picture.crop((0, 0, picture.width, min(height, picture.height)))


def beside(pictures: list[Image.Image]) -> Image.Image:
    """Pictures of one size in a row, with a gap as wide as a thumb between them."""
    width, height = pictures[0].size
    gap = 40
    row = Image.new("RGB", (len(pictures) * (width + gap) - gap, height), (128, 128, 128))
    for index, picture in enumerate(pictures):
        row.paste(picture, (index * (width + gap), 0))
    return row


@contextmanager
def browser(theme: str) -> Iterator[Any]:
    """Chromium without a screen, and without any network but this machine."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    blocked = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", blocked):
        options.add_argument(argument)
    window = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    wish = [{"name": "prefers-color-scheme", "value": theme}]
    window.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": wish})
    try:
        yield window
    finally:
        window.quit()


def take(window: Any, address: str, width: int, height: int | None = None) -> Image.Image:
    """One page, as long as it is."""

    def shape(tall: int) -> None:
        metrics = {"width": width, "height": tall, "deviceScaleFactor": 1, "mobile": width == PHONE}
        window.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    shape(900)
    window.get(address)
    time.sleep(3)
    shape(height or window.execute_script("return document.body.scrollHeight"))
    time.sleep(1)
    with Image.open(io.BytesIO(window.get_screenshot_as_png())) as picture:
        return picture.convert("RGB")


if __name__ == "__main__":
    main()
