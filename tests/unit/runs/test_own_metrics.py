"""Metrics of the settings: built in, of a task or a user's own; in records, results, words and files."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient
from tests.dashboard.site_on_disk import id_of
from tests.small_runs import CPU, SMALL

import hatdfed
from hatdfed.core.metrics import METRICS, balanced_accuracy, calibration_error, macro_f1
from hatdfed.dashboard.app import make_app
from hatdfed.dashboard.catalogue import Catalogue
from hatdfed.dashboard.run_views import read_run_series
from hatdfed.dashboard.site import Site
from hatdfed.data.datasets import load_dataset
from hatdfed.data.standardise import standardise_inputs
from hatdfed.errors import ConfigError, HatdfedError
from hatdfed.report.sinks.figures import read_published_run
from hatdfed.runs.play import Job, play
from hatdfed.setup.layers import resolve

SETTINGS = {**SMALL, "method": "rnd", "validation_images": 60, "rounds": 2}  # all validation samples that there are
NAMES = ["macro_f1", "balanced_accuracy", "calibration_error"]
# Six samples of three classes: predicted 0 0 1 1 1 1, true 0 1 1 1 2 2; class 2 is never predicted.
OUTPUTS = np.log(np.array([[0.8, 0.1, 0.1], [0.6, 0.2, 0.2], *[[0.1, 0.8, 0.1]] * 4]))
TARGETS = np.array([0, 1, 1, 1, 2, 2])
X = np.random.default_rng(0).normal(size=(80, 3)).astype(np.float32)
REGRESSION = {"dataset": (X, 7 * X.sum(axis=1) + 30), "network": "linear", "servers": 2, "rounds": 2, "devices": 4}
OWN = """
import numpy as np
from hatdfed.core.metrics import METRICS

def top2(outputs, targets):
    return (np.argsort(outputs, axis=1)[:, -2:] == targets[:, None]).any(axis=1).mean()

METRICS.add("top2", top2)
"""


def test_macro_f1_is_that_computed_by_hand():
    # Class 0: 1 hit, 1 false alarm, 0 missed. Class 1: 2, 2, 1. Class 2: 0, 0, 2.
    assert macro_f1(OUTPUTS, TARGETS) == pytest.approx((2 / 3 + 4 / 7 + 0) / 3)


def test_balanced_accuracy_is_that_computed_by_hand():
    assert balanced_accuracy(OUTPUTS, TARGETS) == pytest.approx((1 + 2 / 3 + 0) / 3)


def test_the_calibration_error_is_that_computed_by_hand():
    # Confidence 0.8: five samples, three right. Confidence 0.6: one sample, wrong.
    assert calibration_error(OUTPUTS, TARGETS) == pytest.approx((abs(3 - 5 * 0.8) + 0.6) / 6)


def test_a_class_that_does_not_occur_counts_in_no_mean():
    outputs = np.c_[OUTPUTS, np.full(6, -99.0)]
    assert macro_f1(outputs, TARGETS) == macro_f1(OUTPUTS, TARGETS)
    assert balanced_accuracy(outputs, TARGETS) == balanced_accuracy(OUTPUTS, TARGETS)


@pytest.mark.parametrize("name", NAMES[:2])
def test_built_in_metrics_agree_with_scikit_learn(name):
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(1)
    outputs, targets = rng.normal(size=(200, 7)), rng.integers(0, 7, 200)
    said = outputs.argmax(axis=1)
    wanted = {
        "macro_f1": metrics.f1_score(targets, said, average="macro"),
        "balanced_accuracy": metrics.balanced_accuracy_score(targets, said),
    }
    assert METRICS[name](outputs, targets) == pytest.approx(wanted[name])


@pytest.fixture
def add(monkeypatch):
    """Register for the length of a test."""
    monkeypatch.setattr(METRICS, "_loaded", dict(METRICS._loaded))
    monkeypatch.setattr("hatdfed.registry._sources", {})  # worker processes of other tests do not look for it
    return METRICS.add


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    folder, settings = tmp_path_factory.mktemp("metrics"), {**SETTINGS, "metrics": NAMES}
    return {fleet: hatdfed.run(settings, fleet=fleet, out=folder / fleet) for fleet in ("mailbox", "stacked")}


def test_all_fleets_record_the_same_metrics(played):
    for name in NAMES:
        for table in ("rounds", "servers"):
            mailbox, stacked = ([row[name] for row in getattr(played[fleet], table)] for fleet in played)
            assert None not in mailbox
            assert stacked == pytest.approx(mailbox, abs=1e-5)
        mailbox, stacked = (played[fleet].summary["metrics_by_server"][name] for fleet in played)
        assert stacked == pytest.approx(mailbox, abs=1e-5)


def test_metrics_are_measured_on_validation_data_in_rounds_and_on_test_data_at_the_end(played):
    result = played["stacked"]
    dataset = load_dataset(result.config.dataset, options=result.config.dataset_options)
    told = [row for row in result.servers if row["t"] == result.config.rounds - 1]
    for server, model in enumerate(result.models()):
        for examples, found in (
            (dataset.validation, told[server]),
            (dataset.test, {name: result.summary["metrics_by_server"][name][server] for name in NAMES}),
        ):
            with torch.no_grad():
                outputs = model(standardise_inputs(examples.x, dataset.format)).double().numpy()
            for name in NAMES:
                assert found[name] == pytest.approx(METRICS[name](outputs, np.array(examples.y)), abs=1e-5)


def test_the_metric_of_a_round_is_the_mean_of_its_servers(played):
    result = played["stacked"]
    for row in result.rounds:
        mine = [server["macro_f1"] for server in result.servers if server["t"] == row["t"]]
        assert row["macro_f1"] == pytest.approx(np.mean(mine))
    by_server = result.summary["metrics_by_server"]["macro_f1"]
    assert result.summary["metrics"]["macro_f1"] == pytest.approx(np.mean(by_server))


def test_metrics_steer_nothing(played):
    without = hatdfed.run(SETTINGS, fleet="stacked")
    assert [row["avg_accuracy"] for row in without.rounds] == [row["avg_accuracy"] for row in played["stacked"].rounds]
    assert without.links == played["stacked"].links
    assert without.summary["metrics"] == {}


def test_what_is_loaded_and_published_has_the_metrics(played):
    result = played["stacked"]
    loaded = hatdfed.load(result.folder)
    assert (loaded.rounds, list(loaded.servers)) == (result.rounds, list(result.servers))
    published = read_published_run(result.folder)
    assert published.rounds[-1][1]["validation_metrics/macro_f1"] == result.rounds[-1]["macro_f1"]
    assert published.final["final/macro_f1"] == result.summary["metrics"]["macro_f1"]


def test_callbacks_see_metrics():
    class Watch(hatdfed.Callback):
        def on_round_end(self, record):
            seen.append(record["macro_f1"])

    seen = []
    result = hatdfed.run({**SETTINGS, "metrics": ["macro_f1"]}, callbacks=[Watch()])
    assert seen == [row["macro_f1"] for row in result.rounds]


def test_runs_of_one_fleet_have_their_own_metrics():
    jobs = [Job(resolve({**SETTINGS, "metrics": metrics})) for metrics in ([], ["macro_f1"], ["balanced_accuracy"])]
    found = [list(result.summary["metrics"]) for result in play(jobs, CPU)]
    assert found == [[], ["macro_f1"], ["balanced_accuracy"]]


def test_a_comparison_has_metrics_in_its_csv_file(tmp_path):
    comparison = hatdfed.compare(["rnd", "full"], seeds=[0], out=tmp_path / "c", **{**SMALL, "metrics": ["macro_f1"]})
    header, *rows = (tmp_path / "c" / "comparison.csv").read_text(encoding="utf-8").splitlines()
    place = header.split(",").index("metrics.macro_f1")
    assert [float(row.split(",")[place]) for row in rows] == [row["metrics"]["macro_f1"] for row in comparison.summary]
    assert "metrics_by_server.macro_f1" in (tmp_path / "c" / "runs.csv").read_text(encoding="utf-8")


def test_a_metric_of_a_regression_gets_values_in_the_units_of_the_data(add):
    seen = []
    add("largest", lambda outputs, targets: seen.append((outputs, targets)) or np.abs(outputs - targets).max())
    result = hatdfed.run("rnd", **REGRESSION, metrics=["largest", "mae"], fleet="mailbox")
    assert seen[-1][1].mean() == pytest.approx(30, abs=6)
    wanted = [np.abs(outputs - targets).mean() for outputs, targets in seen[-2:]]
    assert result.summary["metrics_by_server"]["mae"] == pytest.approx(wanted, rel=1e-5)
    assert all(row["mae"] < row["largest"] for row in result.rounds)


def test_the_mean_of_huge_values_is_one_of_them(add, tmp_path):
    add("huge", lambda outputs, targets: 1.7e308)
    result = hatdfed.run("rnd", **REGRESSION, metrics=["huge"], out=tmp_path / "run")
    assert [row["huge"] for row in result.rounds] == [1.7e308] * len(result.rounds)
    assert result.summary["metrics"]["huge"] == pytest.approx(1.7e308)
    written = json.loads((tmp_path / "run" / "results.json").read_text(), parse_constant=pytest.fail)
    assert written["metrics"] == result.summary["metrics"]


def test_a_function_that_changes_its_arguments_changes_nothing_else(add):
    def greedy(outputs, targets):
        outputs[:], targets[:] = 0, 0
        return 0.0

    add("greedy", greedy)
    metrics = {"metrics": ["greedy", "macro_f1"]}
    changed, plain = (hatdfed.run({**SETTINGS, **more}).rounds[-1] for more in (metrics, {"metrics": ["macro_f1"]}))
    assert changed["macro_f1"] == plain["macro_f1"]
    assert changed["avg_accuracy"] == plain["avg_accuracy"]


def test_a_metric_that_is_not_defined_is_unknown(add):
    add("never", lambda outputs, targets: None)
    result = hatdfed.run({**SETTINGS, "metrics": ["never"]})
    assert [row["never"] for row in result.rounds] == [None, None]
    assert result.summary["metrics"] == {"never": None}


def divide(outputs, targets):
    return 1 / 0


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (divide, r"Metric 'bad' failed on outputs of shape \[60, 10\].*ZeroDivisionError: division by zero"),
        (lambda outputs, targets: outputs.mean(axis=0), r"Metric 'bad' returned an array of shape \[10\], but must"),
        (lambda outputs, targets: float("nan"), "Metric 'bad' returned nan, which is not finite. Return None where"),
        (lambda outputs, targets: "good", "Metric 'bad' returned 'good', but must return one number"),
    ],
)
@pytest.mark.parametrize("fleet", ["mailbox", "stacked"])
def test_a_bad_metric_is_named_in_one_sentence(add, function, said, fleet):
    add("bad", function)
    with pytest.raises(HatdfedError, match=said):
        hatdfed.run({**SETTINGS, "metrics": ["bad"]}, fleet=fleet)


@pytest.mark.parametrize("thing", [3, dict, lambda outputs: 0.0])
def test_what_is_no_function_of_outputs_and_targets_is_not_registered(add, thing):
    with pytest.raises(ConfigError, match="must be a function of outputs and targets"):
        add("thing", thing)


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        (["macro-f1"], "metrics has 'macro-f1', but the name of a metric .* Did you mean macro_f1"),
        (["macro_f1", "macro_f1"], "metrics has 'macro_f1' twice"),
        ([f"m{i}" for i in range(17)], "metrics has 17 names, but a run records at most 16"),
    ],
)
def test_names_that_cannot_be_recorded_are_refused_with_the_settings(metrics, said):
    with pytest.raises(ConfigError, match=said):
        resolve({"metrics": metrics})


def test_names_that_nothing_has_are_refused(add):
    with pytest.raises(
        ConfigError, match=r"metrics is 'macro_f2', .* Did you mean macro_f1\? If it is one of your own"
    ):
        hatdfed.run({**SETTINGS, "metrics": ["macro_f2"]})
    add("seconds", lambda outputs, targets: 1.0)
    with pytest.raises(ConfigError, match="'seconds' is called like a column of the records"):
        hatdfed.run({**SETTINGS, "metrics": ["seconds"]})


def test_metrics_of_classes_are_refused_for_other_tasks(add):
    with pytest.raises(ConfigError, match="'macro_f1' is about class labels, and samples of regression have none"):
        hatdfed.run("rnd", **REGRESSION, metrics=["macro_f1"])
    add("mae", lambda outputs, targets: 0.0)
    with pytest.raises(ConfigError, match="'mae' is one that task regression has itself"):
        hatdfed.run("rnd", **REGRESSION, metrics=["mae"])


def hatdfed_command(folder, *words):
    command = [sys.executable, "-m", "hatdfed", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_a_metric_in_a_file_of_its_own_is_run_and_shown(tmp_path):
    (tmp_path / "own.py").write_text(OWN, encoding="utf-8")
    settings = ["--set", "dataset=digits", "--set", "rounds=2", "--set", "servers=3", "--set", "metrics=[top2]"]
    done = hatdfed_command(tmp_path, "run", "--import", "own.py", "--method", "rnd", *settings, "--out", "run")
    assert done.returncode == 0, done.stderr
    assert "On the test data, on average over servers: top2 0." in done.stderr
    shown = hatdfed_command(tmp_path, "show", "run").stdout  # without the file: records need no function
    assert "top2 0." in shown.partition("Last round")[2]
    told = json.loads(hatdfed_command(tmp_path, "show", "run", "--json").stdout)
    assert 0 < told["last_round"]["top2"] < 1
    assert len(told["metrics_by_server"]["top2"]) == 3
    bare = hatdfed_command(tmp_path, "run", "--method", "rnd", *settings, "--out", "other")
    assert bare.returncode == 2
    assert "metrics is 'top2'" in bare.stderr


def test_worker_processes_import_the_file_of_a_metric(tmp_path):
    (tmp_path / "own.py").write_text(OWN, encoding="utf-8")
    settings = ["--set", "dataset=digits", "--set", "rounds=2", "--set", "servers=3", "--set", "metrics=[top2]"]
    words = ["compare", "--import", "own.py", "--methods", "rnd,full", "--seeds", "1", "--jobs", "2", *settings]
    done = hatdfed_command(tmp_path, *words, "--out", "c", "--json")
    assert done.returncode == 0, done.stderr
    assert all(0 < row["metrics"]["top2"] < 1 for row in json.loads(done.stdout)["methods"])


def test_the_dashboard_draws_every_metric_of_a_run(played):
    result = played["stacked"]
    series = read_run_series(result.folder, result.config.servers)
    charts = {chart["name"]: chart for chart in series["more"]}
    assert charts["metric-macro_f1"]["values"] == pytest.approx([row["macro_f1"] for row in result.rounds])
    assert charts["metric-macro_f1"]["title"] == f"macro_f1 ends at {result.rounds[-1]['macro_f1']:.4g}"
    client = TestClient(make_app(Site(Catalogue(result.folder.parent))), base_url="http://127.0.0.1")
    page = client.get(f"/runs/{id_of(client, 'stacked')}").text
    assert all(f'id="metric-{name}-chart"' in page for name in NAMES)


def test_the_example_in_the_documents_is_a_metric(add):
    words = (Path(__file__).parents[3] / "docs" / "python.md").read_text(encoding="utf-8")
    example = re.search(r"```python\n(import numpy as np\nfrom hatdfed.core.metrics.*?)\nresult", words, re.DOTALL)
    exec(example.group(1), {"__name__": "example"})  # noqa: S102 (our own text)
    assert METRICS["top2_accuracy"](np.array([[3.0, 2.0, 1.0]] * 3), np.array([0, 1, 2])) == pytest.approx(2 / 3)
