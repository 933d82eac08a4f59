"""All places that name the version agree, with each other and with a tag of the commit."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from hatdfed.version import __version__

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("package", ["paper", "benchmarks"])
def test_the_other_packages_have_the_same_version(package):
    project = tomllib.loads((ROOT / package / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == __version__


def test_the_citation_names_the_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == __version__


def test_a_tagged_commit_has_the_version_of_its_tag():
    asked = ["git", "tag", "--points-at", "HEAD", "--list", "v*"]
    try:
        done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no git")
    if done.returncode:
        pytest.skip("this is no git checkout")
    tags = [tag for tag in done.stdout.split() if re.fullmatch(r"v\d+\.\d+\.\d+.*", tag)]
    assert all(tag == f"v{__version__}" for tag in tags), tags
