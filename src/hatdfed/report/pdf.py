"""Prints an HTML page as PDF by the Chromium of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from hatdfed.errors import HatdfedError, MissingDependencyError

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_TIMEOUT_SECONDS = 180.0
_OPTIONS = (
    *("--headless=new", "--disable-gpu", "--no-first-run", "--no-pdf-header-footer"),
    "--host-resolver-rules=MAP * ~NOTFOUND",  # the page needs no network, so there is none
)


def find_browser() -> str:
    """Find the Chromium of this machine."""
    found = next((path for name in _BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        raise MissingDependencyError(
            "A PDF is printed by Chromium, which is not on this machine. Install it (Debian: apt-get install chromium) "
            "or write --format html and print that from any browser."
        )
    return found


def print_pdf(page: str, browser: str) -> bytes:
    """Print a self-contained HTML page as PDF."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "report.html", Path(folder) / "report.pdf"
        source.write_text(page, encoding="utf-8")
        command = [browser, *_OPTIONS, *_for_root(), f"--user-data-dir={folder}/profile", f"--print-to-pdf={target}"]
        try:
            done = subprocess.run(  # noqa: S603 (our own words)
                [*command, source.as_uri()], capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_SECONDS
            )
            said = done.stderr.strip().splitlines()[-1:]
        except subprocess.TimeoutExpired:
            said = [f"it was not done after {_TIMEOUT_SECONDS:.0f} s"]
        if not target.is_file():
            reason = said[0] if said else "it did not say why"
            raise HatdfedError(
                f"{browser} printed no PDF: {reason}. Write --format html and print that from a browser."
            )
        return target.read_bytes()


def _for_root() -> list[str]:
    """Return the option for root, for whom Chromium's sandbox does not work; the page has no scripts."""
    return ["--no-sandbox"] if os.geteuid() == 0 else []
