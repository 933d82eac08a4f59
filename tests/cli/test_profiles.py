"""hatdfed profiles, and simulated time as a user sees it."""

import json

import pytest
from tests.cli.test_cli import SMALL, hatdfed, refused  # noqa: F401 (a fixture)

OWN = """
name: my-board
idle_watts: 2.5
training_watts: {value: 9.1, how: measured, source: wall meter}
sample_seconds: 0.004
upload_mbit_per_second: 50
uplink_mbit_per_second: 20
latency_seconds: 0.01
"""
pytestmark = pytest.mark.usefixtures("blank_pictures")


def test_profiles_are_a_list_with_sources(hatdfed, tmp_path):  # noqa: F811
    found = json.loads(hatdfed("profiles", "--json", cwd=tmp_path).stdout)
    assert isinstance(found, list)
    assert {"raspberry-pi-4", "jetson-orin", "server-gpu"} <= {each["name"] for each in found}
    assert all(each["training_watts"]["source"] for each in found)
    assert all(each["joules_per_gflop"] > 0 for each in found)


def test_profiles_are_a_table_and_one_of_them_has_its_sources(hatdfed, tmp_path):  # noqa: F811
    assert "intel-nuc" in hatdfed("profiles", cwd=tmp_path).stdout
    assert "data sheet" in hatdfed("profiles", "jetson-nano", cwd=tmp_path).stdout
    assert refused(hatdfed("profiles", "jetson-nan", cwd=tmp_path, check=False), "Did you mean jetson-nano?")


def test_a_profile_of_ones_own_is_shown_and_used(hatdfed, tmp_path):  # noqa: F811
    (tmp_path / "board.yaml").write_text(OWN)
    assert "wall meter" in hatdfed("profiles", "board.yaml", cwd=tmp_path).stdout
    asked = ["--method", "rnd", "--rounds", "2", "--set", "machines.profiles=[board.yaml, phone]", "--out", "r"]
    done = json.loads(hatdfed("run", *SMALL, *asked, "--json", cwd=tmp_path).stdout)
    assert done["simulated_seconds"] > 0
    assert done["config"]["machines"]["profiles"][0]["sample_seconds"]["value"] == 0.004
    shown = json.loads(hatdfed("show", "r", "--json", cwd=tmp_path).stdout)
    assert shown["simulated_seconds"] == done["simulated_seconds"]
    assert shown["last_round"]["simulated_seconds"] > 0


def test_a_comparison_has_seconds_beside_joules(hatdfed, tmp_path):  # noqa: F811
    asked = ["--methods", "rnd,local", "--seeds", "1", "--rounds", "2", "--out", "c"]
    done = hatdfed("compare", *SMALL, *asked, cwd=tmp_path)
    assert "Simulated time, mean over seeds" in " ".join(done.stdout.split())
    rows = json.loads((tmp_path / "c" / "comparison.json").read_text())
    assert all(row["simulated_seconds"] > 0 for row in rows)
    assert all("simulated_seconds_to_target" in row for row in rows)
