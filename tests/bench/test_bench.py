"""The benchmark's arithmetic, and that it can be run; how fast things are is not tested."""

import dataclasses
import importlib.util
import json
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from hatdfed.cli.app import app
from hatdfed.core.links import Topology
from hatdfed.server.networks import paper_cnn
from hatdfed.setup.build.world import make_world
from hatdfed_bench.machine import SIZE, at_most, forget_peak_memory, gemm_gflops, peak_memory_mb
from hatdfed_bench.measure import measure, read_lifting
from hatdfed_bench.plain_loop import PlainLoop
from hatdfed_bench.workload import W_CIFAR, WORKLOADS, W, Workload, count_flops, forward_flops

CPU = torch.device("cpu")
TINY = Workload("tiny", (1, 8, 8))
FLEETS = ("loop", "stacked", "lifted", "looped")


def load_script(name):
    path = Path(__file__).resolve().parents[2] / "benchmarks" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


networks = load_script("networks")


@pytest.fixture
def short_yardstick(monkeypatch):
    monkeypatch.setattr("hatdfed_bench.machine.SUSTAINED", 0.01)
    monkeypatch.setitem(SIZE, "cpu", 128)


def test_the_nominal_arithmetic_of_a_forward_pass_by_hand():
    conv_1, conv_2 = 2 * 9 * 1 * 32 * 28 * 28, 2 * 9 * 32 * 64 * 12 * 12
    connected = 2 * (2304 * 600 + 600 * 120 + 120 * 10)
    assert forward_flops(paper_cnn((1, 28, 28), 10), (1, 28, 28)) == conv_1 + conv_2 + connected
    # 120 trained samples at three passes each, 2.2 probes of 16 and 1,000 validation images.
    assert W.round_flops(5) == pytest.approx(5 * (conv_1 + conv_2 + connected) * (360 + 35.2 + 1000))
    assert W_CIFAR.round_flops(20) == pytest.approx(4 * W_CIFAR.round_flops(5))


@pytest.mark.parametrize("servers", [5, 20, 50, 350])
def test_the_workload_is_what_it_says(servers):
    config = W.config(servers, rounds=3)
    from hatdfed.setup.layers import config_budget

    assert config_budget(config) == round(1.2 * servers)
    assert (config.samples_per_round, config.local_passes, config.probe_size) == (60, 2, 16)
    assert (config.validation_images, config.device_online_probability) == (1000, 1.0)


def test_the_loop_learns_and_merges():
    """It is held against the fleets, so it must do their work: here on images that differ by label."""
    rng = np.random.default_rng(0)
    dataset = TINY.dataset()
    images = (dataset.train.y[:, None, None, None] * 25 + rng.integers(0, 20, (20_000, 1, 8, 8))).astype(np.uint8)
    known = (dataset.validation.y[:, None, None, None] * 25 + rng.integers(0, 20, (1000, 1, 8, 8))).astype(np.uint8)
    dataset = dataset._replace(train=dataset.train._replace(x=images), validation=dataset.validation._replace(x=known))
    sources = make_world(TINY.config(2, rounds=1), dataset).sources
    torch.manual_seed(0)
    loop = PlainLoop([paper_cnn((1, 8, 8), 10) for _ in range(2)], sources, CPU)
    both = Topology.from_pairs(2, [(0, 1), (1, 0)])
    accuracies = [np.mean(loop.run_round(t, both)) for t in range(12)]
    assert accuracies[-1] > accuracies[0] + 0.2


@pytest.mark.usefixtures("short_yardstick")
def test_every_fleet_is_measured():
    results = {result.fleet: result for result in measure(TINY, 2, CPU, fleets=("loop", "mailbox", "stacked"), turns=1)}
    assert results["loop"].speedup_over_loop == 1
    for result in results.values():
        assert result.seconds_per_round > 0
        assert result.server_rounds_per_second == pytest.approx(2 / result.seconds_per_round)
        assert result.achieved_gflops == pytest.approx(TINY.round_flops(2) / result.seconds_per_round / 1e9)
    (two,) = measure(TINY, 2, CPU, fleets=("stacked",), runs=3, turns=1)
    assert two.speedup_over_loop is None
    assert two.server_rounds_per_second == pytest.approx(6 / two.seconds_per_round)


@pytest.mark.usefixtures("short_yardstick")
@pytest.mark.parametrize(
    "workload",
    [Workload("lstm", (4, 3), "lstm", validation=20), Workload("decoder", (5,), "decoder", validation=20)],
)
def test_other_networks_are_measured_lifted_and_looped_over(workload):
    results = {result.fleet: result for result in measure(workload, 2, CPU, fleets=(*FLEETS, "mailbox"), turns=1)}
    assert [results[fleet].kernels for fleet in ("lifted", "looped", "loop")] == ["lifted", "looped", None]
    assert results["stacked"].kernels in ("lifted", "looped")
    for result in results.values():
        assert result.achieved_gflops == pytest.approx(workload.round_flops(2) / result.seconds_per_round / 1e9)


def test_counted_arithmetic_agrees_with_that_by_hand():
    assert count_flops(paper_cnn((1, 28, 28), 10), (1, 28, 28)) == forward_flops(
        paper_cnn((1, 28, 28), 10), (1, 28, 28)
    )


@pytest.mark.usefixtures("short_yardstick")
def test_a_benchmark_of_networks_goes_on_behind_the_last_one(tmp_path, monkeypatch, capsys):
    tiny = Workload("lstm", (4, 3), "lstm", validation=20)
    monkeypatch.setattr(networks, "FIELD", (tiny, dataclasses.replace(tiny, name="again")))
    arguments = ["networks.py", "--device", "cpu", "--servers", "2", "--turns", "1", "--out", str(tmp_path / "n.json")]
    monkeypatch.setattr("sys.argv", [*arguments, "--networks", "lstm"])
    networks.main()
    monkeypatch.setattr("sys.argv", [*arguments, "--networks", "lstm,again"])
    capsys.readouterr()
    networks.main()
    printed = capsys.readouterr().out
    assert "again" in printed
    assert "lstm   " not in printed
    rows = json.loads((tmp_path / "n.json").read_text())["networks"]
    assert [row["workload"] for row in rows] == ["lstm"] * 5 + ["again"] * 5


@pytest.mark.usefixtures("short_yardstick")
def test_a_way_that_fails_is_recorded_and_tried_again(tmp_path, monkeypatch, capsys):
    tiny = Workload("lenet-group-norm", (1, 8, 8), "lenet-group-norm", validation=20)
    monkeypatch.setattr(networks, "FIELD", (tiny,))
    arguments = ["networks.py", "--device", "cpu", "--servers", "2", "--turns", "1", "--out", str(tmp_path / "n.json")]
    monkeypatch.setattr("sys.argv", [*arguments, "--ways", "lifted+nonsense,lifted+each+graphs"])
    networks.main()
    rows = {row["fleet"]: row for row in json.loads((tmp_path / "n.json").read_text())["networks"]}
    assert "there is no way" in rows["lifted+nonsense"]["error"]
    assert rows["lifted+each+graphs"]["deviation"] < 1e-5
    assert rows["loop"]["speedup_over_loop"] == 1
    monkeypatch.setattr("sys.argv", [*arguments, "--ways", "lifted+nonsense,looped", "--limit-seconds", "0"])
    capsys.readouterr()
    networks.main()
    assert "no time left" in capsys.readouterr().out
    again = {row["fleet"]: row for row in json.loads((tmp_path / "n.json").read_text())["networks"]}
    assert again["lifted+each+graphs"] == rows["lifted+each+graphs"]
    assert again["looped"]["error"] == again["lifted+nonsense"]["error"] == "TimeoutError: there was no time left"


@pytest.mark.usefixtures("short_yardstick")
def test_what_a_run_would_choose_is_measured_first_and_has_its_reason(tmp_path, monkeypatch):
    tiny = Workload("lstm", (4, 3), "lstm", validation=20)
    monkeypatch.setattr(networks, "FIELD", (tiny,))
    arguments = ["networks.py", "--device", "cpu", "--servers", "2", "--turns", "1", "--out", str(tmp_path / "n.json")]
    monkeypatch.setattr("sys.argv", [*arguments, "--ways", "lifted,mailbox,stacked"])
    networks.main()
    rows = json.loads((tmp_path / "n.json").read_text())["networks"]
    assert [row["fleet"] for row in rows] == ["stacked", "lifted", "mailbox", "loop"]
    assert rows[2]["kernels"] == "one by one"
    assert "lstm" in rows[0]["because"].lower()
    assert rows[0]["deviation"] == 0


def test_a_gpu_gets_the_forms_of_convolutions_for_networks_that_have_some():
    gpu = torch.device("cuda")
    lenet, lstm = (WORKLOADS[name] for name in ("lenet-group-norm", "lstm"))
    assert networks._ways(lstm, None, gpu) == ["stacked", "lifted", "lifted+graphs"]
    assert "lifted+channels_last+graphs" in networks._ways(lenet, None, gpu)
    assert networks._ways(lenet, None, CPU) == ["stacked", "mailbox", "lifted", "looped"]
    assert networks._ways(lenet, "lifted,stacked", gpu) == ["stacked", "lifted"]
    for way in networks._ways(lenet, None, gpu)[1:]:
        assert read_lifting(way).name == way


@pytest.mark.usefixtures("short_yardstick")
def test_the_time_in_all_is_shared_out_among_networks(tmp_path, monkeypatch):
    limits = {}

    def measure_ways(workload, servers, device, ways, *, turns, seconds):
        limits[workload.name] = seconds
        yield from [TimeoutError("there was no time left")] * (len(ways) + 1)

    monkeypatch.setattr(networks, "measure_ways", measure_ways)
    arguments = ["networks.py", "--device", "cpu", "--servers", "2", "--out", str(tmp_path / "n.json")]
    monkeypatch.setattr("sys.argv", [*arguments, "--total-seconds", "60", "--limit-seconds", "25"])
    networks.main()
    assert limits["mlp"] == pytest.approx(10, abs=1)
    assert limits["lstm"] == pytest.approx(15, abs=1)
    assert limits["resnet-18-group-norm"] == 25


def test_a_time_limit_is_no_error_that_what_is_timed_can_handle():
    def handles_everything():
        with suppress(Exception):
            time.sleep(5)
        return "done"

    with pytest.raises(TimeoutError, match="no time left"), at_most(0.05):
        handles_everything()
    with pytest.raises(TimeoutError, match="no time left"), at_most(0):
        handles_everything()
    with at_most(60):
        pass


@pytest.mark.usefixtures("short_yardstick")
def test_the_yardsticks():
    assert gemm_gflops(CPU) > 0.1
    forget_peak_memory(CPU)
    before = peak_memory_mb(CPU)
    block = torch.ones(30_000_000)
    assert peak_memory_mb(CPU) > before + 60
    del block


@pytest.mark.usefixtures("short_yardstick")
def test_the_command_prints_one_json_object(monkeypatch, tmp_path):
    monkeypatch.setattr("hatdfed_bench.report.COORDINATOR_SIZES", (5, 50))
    arguments = ["bench", "--device", "cpu", "--servers", "2", "--turns", "1", "--fleets", "loop,stacked", "--json"]
    done = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "a" / "b.json")], catch_exceptions=False)
    assert done.exit_code == 0
    report = json.loads(done.stdout)
    assert report == json.loads((tmp_path / "a" / "b.json").read_text())
    assert report["gemm_gflops"] > 0
    assert [row["fleet"] for row in report["workloads"]] == ["loop", "stacked"]
    wanted = {"servers", "fleet", "device", "seconds_per_round", "server_rounds_per_second", "speedup_over_loop"}
    assert wanted | {"share_of_gemm", "peak_memory_mb"} <= report["workloads"][0].keys()
    assert [row["servers"] for row in report["coordinator"]] == [5, 50]
    assert all(row["milliseconds"] > 0 for row in report["coordinator"])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--servers", "five"], "--servers is 'five', but must be numbers"),
        (["--servers", "1"], "2 or more"),
        (["--workload", "imagenet"], "--workload"),
        (["--fleets", "remote"], "--fleets"),
    ],
)
def test_bad_input_is_refused_with_a_sentence(arguments, sentence):
    done = CliRunner().invoke(app, ["bench", "--device", "cpu", *arguments])
    assert done.exit_code != 0
    assert sentence in str(done.exception)


def test_phases_of_a_round_are_functions_that_exist():
    phases = load_script("phases").PHASES
    assert [phase for phase, (owner, name) in phases.items() if not callable(getattr(owner, name, None))] == []


def test_the_rounds_of_two_versions_are_timed_by_code_that_runs_with_the_present_one():
    code, _, _ = load_script("versions")._STACKED_ROUNDS.partition("keep_freed_memory()")
    found = {}
    exec(code, found)  # noqa: S102 (our own)
    assert callable(found["keep_freed_memory"])
    assert callable(found["measure"].one_turn)
