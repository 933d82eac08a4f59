import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
from typer.testing import CliRunner

import hatdfed.dashboard
from hatdfed.cli.app import app
from hatdfed.report.style import CAUSE_COLOURS, INK, PALETTE
from hatdfed.runs.round_row import JOULES

STATIC = Path(hatdfed.dashboard.__file__).parent / "static"


def refused(*words):
    done = CliRunner().invoke(app, ["dashboard", *words])
    assert done.exit_code != 0
    return str(done.exception)


def test_the_command_serves_until_it_is_told_to_stop(runs):
    command = [sys.executable, "-m", "hatdfed", "dashboard", "--runs", str(runs), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        line = process.stdout.readline()
        address = re.search(r"http://127\.0\.0\.1:\d+/", line)[0]
        assert "hat-dfed-seed0" in httpx2.get(address).text
        process.send_signal(signal.SIGINT)
        _, complaints = process.communicate(timeout=20)
    assert process.returncode == 0
    assert complaints == ""


def test_what_cannot_work_is_refused_in_a_sentence(tmp_path):
    here = str(tmp_path)
    assert "does not exist" in refused("--runs", str(tmp_path / "nowhere"))
    assert "--ca FOLDER; or with --insecure" in refused("--runs", here, "--coordinator", "127.0.0.1:7444")
    assert "plain text" in refused("--runs", here, "--coordinator", "10.0.0.1:7444", "--insecure")
    assert "none is named" in refused("--runs", here, "--insecure")
    assert "has no folder coordinator" in refused("--runs", here, "--coordinator", "127.0.0.1:7444", "--ca", here)


def test_the_browser_has_the_colours_of_the_printed_figures():
    script, styles = (STATIC / "charts.js").read_text(), (STATIC / "style.css").read_text()
    on_paper = re.search(r"ON_PAPER = \[(.*?)\]", script)[1]
    assert tuple(re.findall(r"#\w{6}", on_paper)) == PALETTE
    light = styles.split('[data-theme="dark"]')[0]
    for cause, column in JOULES.items():
        assert f"--cause-{cause}: {CAUSE_COLOURS[column]}" in light
    assert f"--ink: {INK}" in light


def test_static_files_load_nothing_from_elsewhere():
    for file in STATIC.iterdir():
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text, file.name
        assert "https://" not in text, file.name
        assert "url(" not in text, file.name


def test_the_dark_palette_is_the_same_without_scripts():
    styles = (STATIC / "style.css").read_text()
    chosen, system = (
        re.search(rf"{re.escape(selector)} {{(.*?)}}", styles, re.DOTALL)[1]
        for selector in (':root[data-theme="dark"]', ":root:not([data-theme])")
    )
    assert re.findall(r"--[\w-]+: [^;]+", chosen) == re.findall(r"--[\w-]+: [^;]+", system)


def _contrast(one, other):
    """The ratio that WCAG asks for: 4.5 for text."""

    def brightness(colour):
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((brightness(one), brightness(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("selector", [":root", ':root[data-theme="dark"]'])
@pytest.mark.parametrize("text", ["ink", "muted", "accent", "warning", "good"])
def test_text_stands_out_from_its_ground(selector, text):
    block = re.search(rf"{re.escape(selector)} {{(.*?)}}", (STATIC / "style.css").read_text(), re.DOTALL)[1]
    colours = dict(re.findall(r"--([\w-]+): (#\w{6})", block))
    for ground in ("page", "paper"):
        assert _contrast(colours[text], colours[ground]) >= 4.5
