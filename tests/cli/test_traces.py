"""hatdfed traces: files that the settings take, and one sentence where that is not possible."""

import pytest
from tests.cli.test_cli import hatdfed, refused

from hatdfed.core.traces import parse_trace

__all__ = ["hatdfed"]  # the fixture


@pytest.mark.parametrize("kind", ["diurnal", "office", "solar"])
def test_the_same_seed_writes_the_same_file(hatdfed, tmp_path, kind):
    for name, seed in (("a.csv", "3"), ("b.csv", "3"), ("c.csv", "4")):
        noisy = ["--noise", "0.1"] if kind == "diurnal" else []
        hatdfed("traces", kind, "-o", name, "--servers", "2", "--seed", seed, *noisy, cwd=tmp_path)
    first, again, other = ((tmp_path / name).read_text() for name in ("a.csv", "b.csv", "c.csv"))
    assert first == again != other
    assert parse_trace(first).num_columns == 2


def test_a_file_that_is_there_is_not_overwritten(hatdfed, tmp_path):
    (tmp_path / "mine.csv").write_text("mine")
    refused(hatdfed("traces", "office", "-o", "mine.csv", cwd=tmp_path, check=False), "mine.csv is there already")
    assert (tmp_path / "mine.csv").read_text() == "mine"


def test_an_unknown_site_is_refused(hatdfed, tmp_path):
    done = hatdfed("traces", "solar", "-o", "s.csv", "--site", "paris", cwd=tmp_path, check=False)
    refused(done, "--site is 'paris'")
