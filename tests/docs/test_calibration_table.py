"""The page on measuring: the table of calibrated joules against a GPU's counter, from a small file."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def block(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    monkeypatch.delitem(sys.modules, "bench_tables", raising=False)
    import bench_tables

    monkeypatch.setattr(bench_tables, "RESULTS", tmp_path)
    yield bench_tables.calibration_block
    del sys.modules["bench_tables"]


def make_window(charged, measured, samples):
    reading = {"joules": measured, "gross_joules": measured + 180.0, "seconds": 3.0}
    return {"samples": samples, "rounds": 2, "charged_joules": charged, "reading": reading}


def make_cell(batch, per_sample, windows):
    return {
        "network": "fashion-mnist",
        "batch": batch,
        "passes": 2,
        "rhythms": {"gpu-0": {"seconds": 0.1, "jitter": 0.001, "has_steps": True}},
        "idle": {"gross_joules": 600.0, "seconds": 10.0, "watts_while_held": 110.0},
        "profile": {"idle_watts": 60.0, "training_watts": 100.0, "sample_seconds": per_sample / 100},
        "held_out": windows,
    }


def write(folder, *cells, stacked=()):
    content = {"machine": {"name": "a GPU"}, "asked": {"alone": False}, "cells": cells, "stacked": [*stacked]}
    (folder / "calibration-h200.json").write_text(json.dumps(content))


def test_without_a_file_the_page_names_the_command(block):
    assert block().startswith("Not measured yet. `python benchmarks/calibration.py --out ")


def test_figures_are_sums_over_windows_and_their_ratio(block, tmp_path):
    small = make_cell(16, 0.5, [make_window(300.0, 310.0, 300), make_window(310.0, 300.0, 310)])
    large = make_cell(64, 0.25, [make_window(330.0, 300.0, 660), make_window(360.0, 300.0, 720)])
    stack = {"network": "fashion-mnist", "batch": 64, "servers": 20, "windows": [make_window(5000.0, 1000.0, 10_000)]}
    write(tmp_path, small, large, stacked=[stack])
    machine, table, verdict, about, stacked = block().split("\n\n")
    assert machine == "a GPU; idle 60 W, idle while a process holds it 110 W."
    assert table.splitlines()[2:] == [
        "| `paper-cnn` | 16 | 162 | 500 | 500 | 1.000 | 1.017 | 0.984 | 0.968 to 1.033 |",
        "| `paper-cnn` | 64 | 160 | 250 | 217 | 1.150 | 1.150 | 1.000 | 1.100 to 1.200 |",
    ]
    assert verdict.startswith("The ratio is 1.000 to 1.150: within 10 % in 1 of 2 rows.")
    assert verdict.endswith("it would be 0.5 to 2.3.")
    assert "not meant to be the same" in about
    assert stacked.splitlines()[2:] == ["| `paper-cnn` | 20 | 64 | 5,000 | 1,000 | 5.00 |"]


def test_that_all_rows_are_within_the_limit_is_said_only_if_they_are(block, tmp_path):
    cells = [make_cell(size, 0.5, [make_window(ratio * 300.0, 300.0, 300)]) for size, ratio in ((16, 0.91), (64, 1.09))]
    write(tmp_path, *cells)
    assert "0.910 to 1.090: within 10 % in all 2 rows" in block()


def test_the_factors_of_a_row_are_those_of_seconds_and_of_watts(block, tmp_path):
    cell = make_cell(16, 0.5, [make_window(600.0, 240.0, 600)])  # 5 ms a sample and pass: 6 s for what took 3 s
    write(tmp_path, cell)
    row = block().split("\n\n")[1].splitlines()[-1]
    assert row == "| `paper-cnn` | 16 | 140 | 500 | 200 | 2.500 | 2.000 | 1.250 | 2.500 to 2.500 |"


def test_rows_that_were_measured_in_another_way_say_so(block, tmp_path):
    old = make_cell(16, 0.5, [make_window(300.0, 300.0, 300)])
    del old["rhythms"]
    windows = [{"seconds": seconds, "joules": 100.0, "uncertainty": 25.0} for seconds in (2.0, 2.1)]
    old["calibration"] = [{"reading": each} for each in windows]
    old["calibration_counter"] = [[1.0, 5000], [1.06, 18_000], [2.1, 140_000], [2.12, 140_000]]
    old["held_out"][0]["counter"] = [[7.0, 1000], [7.02, 1000]]
    write(tmp_path, old, make_cell(64, 0.25, [make_window(330.0, 300.0, 660)]))
    told = block().split("\n\n")[-1]
    assert told.startswith("1 of 2 rows were measured when calibration waited for the GPU after every batch")
    assert "Of 3 readings of the counter less than 0.1 s after the one before, 2 showed the same value" in told
    assert "and 1 a step of 13 to 13 J: it was updated about every 0.1 s." in told
    assert told.endswith("of 2.0 to 2.1 s, were uncertain by 25% to 25% each.")
