"""Standard streams that are closed, full or know few characters."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

_MAIN = f'"{sys.executable}" -c "from hatdfed.cli.app import main; main()"'


def _shell(command, **environment):
    return subprocess.run(
        ["/bin/sh", "-c", command], capture_output=True, env={**os.environ, **environment}, check=False, timeout=60
    )


@pytest.mark.parametrize(("streams", "code"), [(">&-", 0), ("2>&-", 0), (">&- 2>&-", 0)])
def test_a_closed_stream_is_no_trouble(streams, code):
    done = _shell(f"{_MAIN} methods {streams}")
    assert done.returncode == code
    assert b"Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("verb", ["methods", "--version"])
def test_output_that_cannot_be_written_ends_in_one_sentence(verb):
    done = _shell(f"{_MAIN} {verb} >/dev/full")
    assert done.returncode == 3
    assert done.stderr.startswith(b"error: The output cannot be written (No space left on device).")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_neither_stream_can_be_written():
    assert _shell(f"{_MAIN} methods >/dev/full 2>/dev/full").returncode == 3


def test_characters_that_are_not_known_are_replaced():
    done = _shell(f"{_MAIN} methods", PYTHONIOENCODING="latin1")
    assert done.returncode == 0
    assert b"hat-dfed with an ?-greedy choice" in done.stdout
