"""What other programs read of a comparison."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hatdfed.core.fleet import FinalAccuracy
from hatdfed.report.comparison_files import csv_text, results_document, write_comparison_files
from hatdfed.runs.result import RunResult
from hatdfed.runs.statistics import Comparison, summarise_runs
from hatdfed.runs.summary import summarise
from hatdfed.setup.layers import resolve


def made_up_result(method: str, seed: int, accuracy: float) -> RunResult:
    config = resolve({"method": method, "seed": seed, "servers": 2})
    row: dict[str, Any] = {"t": 0, "links": 1, "avg_accuracy": accuracy, "seconds": 0.1}
    row |= {"upload_joules": 1.0, "training_joules": 2.0, "link_joules": 3.0}
    row |= {"regret_best_fixed": 0.5, "regret_best_each_round": 1.0}
    share = np.full(2, accuracy / 100)
    summary = summarise(config, FinalAccuracy(share, share, share), [row])
    return RunResult(config, summary, [row], [], [], [], np.zeros((2, 2)), None, None)


@pytest.fixture
def comparison() -> Comparison:
    accuracies = {"rnd": [50.0, 60.0], "local": [40.0, 55.0], "hat-dfed-released": [90.0, 90.0]}
    return summarise_runs(
        {name: [made_up_result(name, *seed) for seed in enumerate(values)] for name, values in accuracies.items()}
    )


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_json_holds_everything_and_the_table_alone(comparison: Comparison, tmp_path: Path) -> None:
    names = [path.name for path in write_comparison_files(comparison, tmp_path)]
    tables = ["comparison.json", "comparison.csv", "comparison.tex", "differences.tex", "runs.csv"]
    assert names == ["results.json", *tables]
    document = json.loads((tmp_path / "results.json").read_text())
    assert document["methods"] == comparison.summary == json.loads((tmp_path / "comparison.json").read_text())
    assert (document["reference"], document["target_accuracy"]) == ("rnd", comparison.target_accuracy)
    assert [(run["method"], run["seed"]) for run in document["runs"][:3]] == [("rnd", 0), ("rnd", 1), ("local", 0)]
    assert document["runs"][0]["config"]["method"] == "rnd"
    assert document["environment"]["packages"]["numpy"]


def test_csv_has_a_row_for_each_method_and_for_each_run(comparison: Comparison, tmp_path: Path) -> None:
    write_comparison_files(comparison, tmp_path)
    methods, runs = rows_of(tmp_path / "comparison.csv"), rows_of(tmp_path / "runs.csv")
    assert [row["method"] for row in methods] == ["rnd", "local", "hat-dfed-released"]
    assert float(methods[1]["avg_accuracy_difference"]) == comparison.summary[1]["avg_accuracy_difference"]
    assert methods[0]["seeds"] == "0 1"
    assert len(runs) == 6
    assert float(runs[2]["energy_by_cause_mj.link"]) == pytest.approx(3e-6)
    assert runs[0]["accuracy_by_server"].split() == ["50.0", "50.0"]


def test_a_run_that_saw_the_test_set_has_no_price(comparison: Comparison) -> None:
    prices = [run["joules_to_target"] for run in results_document(comparison)["runs"]]
    assert prices == [6.0, 6.0, None, 6.0, None, None]  # the target is 49.5 %


def test_commas_quotes_and_gaps_survive_csv(tmp_path: Path) -> None:
    rows = [{"name": 'a, "b"', "inner": {"x": 1}}, {"name": "c\nd", "more": None}]
    (tmp_path / "t.csv").write_text(csv_text(rows), encoding="utf-8", newline="")
    assert rows_of(tmp_path / "t.csv") == [
        {"name": 'a, "b"', "inner.x": "1", "more": ""},
        {"name": "c\nd", "inner.x": "", "more": ""},
    ]
