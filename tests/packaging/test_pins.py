"""The pinned packages can be installed by every Python that is supported, from its first release on."""

from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

CONSTRAINTS = Path(__file__).resolve().parents[2] / "constraints.txt"


def read_pins():
    lines = [line.partition("#")[0].strip() for line in CONSTRAINTS.read_text(encoding="utf-8").splitlines()]
    return dict(line.split("==") for line in lines if line)


@pytest.mark.parametrize("python", ["3.11.0", "3.12.0"])
def test_installed_packages_of_the_pinned_version_admit_every_supported_python(python):
    pins = read_pins()
    installed = [each for each in distributions() if pins.get(canonicalize_name(each.name)) == each.version]
    assert installed
    refusing = [
        f"{each.name} {each.version} requires Python {needed}"
        for each in installed
        if (needed := each.metadata.get("Requires-Python")) and python not in SpecifierSet(needed)
    ]
    assert refusing == []
