import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx2
from typer.testing import CliRunner

import hatdfed.dashboard
from hatdfed.cli.app import app
from hatdfed.report.style import CAUSE_COLOURS, INK, PALETTE

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
    assert "--ca FOLDER, or --insecure" in refused("--runs", here, "--coordinator", "127.0.0.1:7444")
    assert "plain text" in refused("--runs", here, "--coordinator", "10.0.0.1:7444", "--insecure")
    assert "none is named" in refused("--runs", here, "--insecure")
    assert "has no folder coordinator" in refused("--runs", here, "--coordinator", "127.0.0.1:7444", "--ca", here)


def test_the_browser_has_the_colours_of_the_printed_figures():
    script, styles = (STATIC / "charts.js").read_text(), (STATIC / "style.css").read_text()
    on_paper = re.search(r"ON_PAPER = \[(.*?)\]", script)[1]
    assert tuple(re.findall(r"#\w{6}", on_paper)) == PALETTE
    light = styles.split('[data-theme="dark"]')[0]
    for name, cause in (("upload", "upload_joules"), ("training", "training_joules"), ("links", "link_joules")):
        assert f"--cause-{name}: {CAUSE_COLOURS[cause]}" in light
    assert f"--ink: {INK}" in light


def test_static_files_load_nothing_from_elsewhere():
    for file in STATIC.iterdir():
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text, file.name
        assert "https://" not in text, file.name
        assert "url(" not in text, file.name
