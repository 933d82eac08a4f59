"""The comparison of calibrated joules with a GPU's counter: its arithmetic, with a driver that is played."""

import importlib.util
import json
import math
import os
import time
from pathlib import Path

import pytest
from tests.unit.meters.fakes import FakeNvml

from hatdfed.errors import EnergyMeterError
from hatdfed_bench.workload import WORKLOADS, Workload

_spec = importlib.util.spec_from_file_location(
    "benchmark_calibration", Path(__file__).resolve().parents[2] / "benchmarks/calibration.py"
)
calibration = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(calibration)

IDLE_WATTS, WORKING_WATTS = 60.0, 200.0
TIMES = [
    "--repeats",
    2,
    "--seconds",
    0.05,
    "--limit",
    0,
    "--windows",
    2,
    "--window-seconds",
    0.1,
    "--idle-seconds",
    0.1,
]


class WorkingNvml(FakeNvml):
    """A card that takes some power all the time, and more while this process computes."""

    def __init__(self, **options):
        super().__init__(0, **options)

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu):
        return round(1000 * (IDLE_WATTS * time.monotonic() + WORKING_WATTS * time.process_time()))


@pytest.fixture
def measure(tmp_path, monkeypatch):
    monkeypatch.setitem(WORKLOADS, "tiny", Workload("tiny", (1, 8, 8), "small-cnn", validation=20))
    monkeypatch.setitem(WORKLOADS, "tinier", Workload("tinier", (1, 8, 8), "linear", validation=20))

    def call(*arguments, nvml=None):
        path = tmp_path / "calibration.json"
        given = ["--device", "cpu", "--batches", "4,8", "--servers", 3, "--warm-up", 0.1, *TIMES, "--out", path]
        calibration.main([str(each) for each in (*given, *arguments)], nvml or WorkingNvml())
        return json.loads(path.read_text())

    return call


def test_every_figure_follows_from_readings_that_are_kept(measure):
    found = measure("--networks", "tiny")
    assert [(cell["network"], cell["batch"]) for cell in found["cells"]] == [("tiny", 4), ("tiny", 8)]
    assert len(found["stacked"]) == 1
    for cell in found["cells"]:
        idle = cell["idle"]
        assert idle["gross_joules"] / idle["seconds"] == pytest.approx(cell["profile"]["idle_watts"])
        joules = [each["reading"]["joules"] / each["units"] for each in cell["calibration"]]
        per_sample = cell["profile"]["training_watts"] * cell["profile"]["sample_seconds"]
        assert per_sample == pytest.approx(sum(joules) / 2)
        assert len(cell["held_out"]) == 2
        for window in cell["held_out"]:
            assert window["charged_joules"] == pytest.approx(per_sample * window["samples"] * cell["passes"])
            assert window["samples"] % cell["batch"] == 0
            (began, first), *_, (ended, last) = window["counter"]
            reading = window["reading"]
            assert reading["gross_joules"] == pytest.approx((last - first) / 1000)
            assert reading["seconds"] == pytest.approx(ended - began, abs=0.01)
            above_idle = reading["gross_joules"] - cell["profile"]["idle_watts"] * reading["seconds"]
            assert reading["joules"] == pytest.approx(above_idle)


def test_a_stacked_fleet_is_charged_for_every_server_by_the_same_profile(measure):
    found = measure("--networks", "tiny")
    cell, row = found["cells"][1], found["stacked"][0]
    per_sample = cell["profile"]["training_watts"] * cell["profile"]["sample_seconds"]
    assert (row["batch"], row["servers"]) == (8, 3)
    for window in row["windows"]:
        assert window["samples"] == 3 * 8 * window["rounds"]
        assert window["charged_joules"] == pytest.approx(per_sample * window["samples"] * cell["passes"])


def test_networks_that_were_measured_are_not_measured_again(measure):
    before = measure("--networks", "tiny")
    after = measure("--networks", "tiny,tinier")
    assert after["cells"][:2] == before["cells"]
    assert after["stacked"][0] == before["stacked"][0]
    assert [cell["network"] for cell in after["cells"]] == ["tiny", "tiny", "tinier", "tinier"]


def test_a_gpu_that_somebody_else_uses_is_not_measured_unless_the_user_knows_better(measure, tmp_path):
    shared = WorkingNvml(processes=[os.getpid() + 1])
    with pytest.raises(EnergyMeterError, match="is shared with process"):
        measure("--networks", "tinier", nvml=shared)
    assert not (tmp_path / "calibration.json").exists()
    found = measure("--networks", "tinier", "--alone", nvml=shared)
    assert found["asked"]["alone"] is True
    assert all(math.isfinite(cell["profile"]["training_watts"]) for cell in found["cells"])


def test_single_cells_are_measured_anew_and_replace_those_in_the_file(measure):
    before = measure("--networks", "tiny,tinier")
    after = measure("--only", "tiny:8,tinier:6")
    assert [(cell["network"], cell["batch"]) for cell in after["cells"]] == [
        ("tiny", 4),
        ("tiny", 8),
        ("tinier", 4),
        ("tinier", 6),
        ("tinier", 8),
    ]
    assert after["cells"][0] == before["cells"][0]
    assert after["cells"][1]["held_out"] != before["cells"][1]["held_out"]
    assert after["stacked"] == before["stacked"]


@pytest.mark.parametrize("cell", ["tiny", "tiny:", "elsewhere:16", "tiny:x"])
def test_a_cell_that_does_not_exist_is_refused(measure, cell):
    with pytest.raises(SystemExit, match="a cell is a network and a batch size"):
        measure("--only", cell)


def test_of_a_value_that_is_read_many_times_the_first_and_the_last_reading_are_kept():
    recorder = calibration.RecordingNvml(FakeNvml(5))
    for value in (5, 5, 5, 5, 7, 7, 9):
        recorder._nvml.millijoules = [value]
        recorder.nvmlDeviceGetTotalEnergyConsumption(0)
    times, values = zip(*recorder.take(), strict=True)
    assert values == (5, 5, 7, 7, 9)
    assert list(times) == sorted(times)
