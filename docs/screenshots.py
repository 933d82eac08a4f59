"""Pictures of every page of the dashboard and of a report, light and dark.

    python docs/screenshots.py                         # those that documents show, in docs/dashboard/
    python docs/screenshots.py --every build/look      # every page on a screen and on a phone, to be looked at

Everything in them is real. In documents: methods compared on the embedded digits, a run that is being played, a
deployment with certificates whose last edge was switched off, a report of two of the runs. With `--every`: a short
comparison, a sweep, a run with trust in a world of groups, a deployment while it runs and when it is finished, and
reports; a page that is wider than its window is an error. Needs Chromium with its driver, and the package selenium.
"""

from __future__ import annotations

import argparse
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
WIDE, SCREEN, PHONE = 1200, 1440, 390
EDGES = 4
DEPLOYED_ROUNDS = 300  # so many that the deployment still runs while its pictures are taken
THEMES = ("light", "dark")
RUN_HEAD, REPORT_HEAD = 1000, 2450  # pixels of pages that are longer than a picture should be
SHADES = 256


SWEEP = """\
base: {dataset: digits, rounds: 20}
grid:
  method: [hat-dfed, rnd]
  link_share: [0.2, 0.4]
seeds: 2
"""


def main() -> None:
    """Pictures for documents, or of every page."""
    parser = argparse.ArgumentParser(description="Pictures of the dashboard.")
    parser.add_argument("--every", type=Path, metavar="FOLDER", help="Every page on a screen and on a phone.")
    every = parser.parse_args().every
    if every is None:
        take_for_documents(ROOT / "docs" / "dashboard")
    else:
        take_every_page(every.resolve())


def take_for_documents(target: Path) -> None:
    """Play, serve, photograph."""
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
        for theme in THEMES:
            photograph(address, folder / "report.html", target, theme)


def take_every_page(target: Path) -> None:
    """Play short runs of every kind, serve, photograph each page in both widths and themes."""
    target.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        runs = folder / "runs"
        (folder / "sweep.yaml").write_text(SWEEP, encoding="utf-8")
        methods = ("--methods", "hat-dfed,rnd,d-psgd", "--seeds", "2", "--rounds", "40")
        cluster.hatdfed("compare", *methods, "--dataset", "digits", "--out", str(runs / "compared"))
        cluster.hatdfed("sweep", str(folder / "sweep.yaml"), "--out", str(runs / "sweep"))
        groups = ("--set", "servers=10", "--set", "world.groups=2", "--set", "world.differ=labels")
        cluster.hatdfed("run", "--method", "hat-dfed-trust", "--rounds", "40", *groups, "--out", str(runs / "trust"))
        port, edges = deploy(stack, folder, rounds=DEPLOYED_ROUNDS)
        address = serve(stack, folder, port)
        live = {"deployment-live": f"{address}/deployment"}
        too_wide = [name for theme in THEMES for name in photograph_both(live, target, theme)]
        watch_to_its_end(address, edges)
        cluster.hatdfed("report", "runs/compared", "-o", "report.html")
        cluster.hatdfed("report", "runs/trust", "-o", "report-of-trust.html")
        pages = list_pages(address) | {
            name: (folder / f"{name}.html").as_uri() for name in ("report", "report-of-trust")
        }
        too_wide += [name for theme in THEMES for name in photograph_both(pages, target, theme)]
    if too_wide:
        raise SystemExit(f"Wider than their window: {', '.join(too_wide)}.")


def watch_to_its_end(address: str, edges: list[subprocess.Popen[bytes]]) -> None:
    """Ask for the deployment as an open page does, until the dashboard knows that it is finished."""
    end = time.monotonic() + 180
    while time.monotonic() < end:
        with urlopen(f"{address}/api/deployment") as answer:  # noqa: S310 (our own address)
            if json.load(answer).get("state") == "done" and all(edge.poll() is not None for edge in edges):
                return
        time.sleep(0.2)
    raise SystemExit("The deployment does not end.")


def list_pages(address: str) -> dict[str, str]:
    """The address of every page, by the name of its picture."""
    with urlopen(f"{address}/api/runs") as answer:  # noqa: S310 (our own address)
        runs = {card["name"]: card["id"] for card in json.load(answer)}

    def compare(folder: str) -> str:
        return "/compare?" + "&".join(f"run={runs[name]}" for name in sorted(runs) if name.startswith(folder))

    pages = {
        "runs": "/",
        "runs-grouped": "/?group=sweep",
        "runs-none": "/?search=nothing-of-this-name",
        "run": f"/runs/{runs['compared/hat-dfed-seed0']}",
        "run-with-trust": f"/runs/{runs['trust']}",
        "run-deployed": f"/runs/{runs['deployed']}",
        "comparison": compare("compared/"),
        "comparison-of-sweep": compare("sweep/"),
        "comparison-empty": "/compare",
        "deployment": "/deployment",
        "trouble": "/runs/unknown",
    }
    return {name: address + page for name, page in pages.items()}


def photograph_both(pages: dict[str, str], target: Path, theme: str) -> list[str]:
    """Photograph pages on a screen and on a phone; the names of those that are wider than their window."""
    too_wide = []
    with browser(theme) as window:
        for name, page in pages.items():
            for width in (SCREEN, PHONE):
                picture = f"{name}-{width}-{theme}"
                take(window, page, width).save(target / f"{picture}.png")
                if window.execute_script("return document.documentElement.scrollWidth > window.innerWidth"):
                    too_wide.append(picture)
    return too_wide


def deploy(stack: ExitStack, folder: Path, rounds: int = 2000) -> tuple[int, list[subprocess.Popen[bytes]]]:
    """A coordinator and a few edges; the coordinator's port."""
    ca, (port, desk) = folder / "ca", cluster.free_ports(2)
    cluster.hatdfed("ca", "init", str(ca))
    coordinator = cluster.start(
        stack,
        folder / "coordinator.log",
        *("coordinator", str(ROOT / "examples/three_machines/run.yaml"), "--state", str(folder / "runs" / "deployed")),
        *("--ca", str(ca), "--listen", f"127.0.0.1:{port}", "--desk", f"127.0.0.1:{desk}"),
        *("--set", f"servers={EDGES}", "--set", f"rounds={rounds}"),
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
