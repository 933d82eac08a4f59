"""hatdfed calibrate: what it measures, what it writes, and what it refuses."""

import json
import threading
from itertools import chain, cycle, repeat
from types import SimpleNamespace

import pytest
import torch
import yaml
from typer.testing import CliRunner

from hatdfed.cli.app import app
from hatdfed.data.datasets import load_dataset
from hatdfed.errors import ConfigError, EnergyMeterError
from hatdfed.meters.base import Reading
from hatdfed.meters.choose import Choice
from hatdfed.meters.throughput import measure_throughput, serve_throughput
from hatdfed.runs.calibration import PRECISION, Works, make_profile, measure_cost
from hatdfed.setup.build.program import make_program
from hatdfed.setup.layers import read_profile, resolve

QUICK = ["--network", "linear", "--dataset", "synthetic", "--seconds", "0.02", "--repeats", "2", "--limit", "0"]


class SteadyMeter:
    """A machine that draws so many watts above idle, by a clock of its own."""

    source, domains, idle_watts = "external", ("machine",), 0.0

    def __init__(self, watts, seconds=2.0):
        self._watts, self._seconds = watts, seconds
        self.uncertainty = 0.1

    def start(self):
        return self

    def stop(self):
        joules = self._watts * self._seconds
        return Reading(joules, self.uncertainty, self._seconds, self.source, self.domains, joules)

    def with_idle(self, watts):
        return self


def call(*arguments):
    return CliRunner().invoke(app, ["calibrate", *map(str, arguments)])


def test_a_machine_without_a_meter_needs_its_watts_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("hatdfed.cli.calibrate.choose_meter", lambda *_: Choice(None, {"rapl": "There is none."}))
    refused = call(*QUICK, "--out", tmp_path / "here.yaml")
    assert isinstance(refused.exception, EnergyMeterError)
    assert "--watts" in str(refused.exception)
    assert list(tmp_path.iterdir()) == []
    done = call(*QUICK, "--out", tmp_path / "here.yaml", "--watts", 7, "--name", "box")
    assert done.exit_code == 0, done.output
    profile = read_profile(tmp_path / "here.yaml")
    assert (profile.name, profile.training_watts.value, profile.training_watts.how) == ("box", 7.0, "not stated")
    assert profile.sample_seconds.how == "measured"
    assert "not measured" in done.output, "no joule of it is called measured"


def test_a_meter_gives_joules_with_their_source(tmp_path, monkeypatch):
    monkeypatch.setattr("hatdfed.cli.calibrate.choose_meter", lambda *_: Choice(SteadyMeter(30.0), {}))
    done = call(*QUICK, "--out", tmp_path / "here.yaml", "--json", "--idle-seconds", 0.01)
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    profile = yaml.safe_load((tmp_path / "here.yaml").read_text())
    assert told["profile"] == profile
    assert profile["training_watts"]["how"] == "measured"
    assert "external (machine)" in profile["training_watts"]["source"]
    assert profile["idle_watts"]["value"] == pytest.approx(30.0)
    windows = told["readings"]["training"]
    assert len(windows) == 2
    seconds = [each["seconds"] / each["units"] for each in windows]
    joules = [each["reading"]["joules"] / each["units"] for each in windows]
    assert profile["sample_seconds"]["value"] == pytest.approx(sum(seconds) / 2)
    assert profile["training_watts"]["value"] == pytest.approx(sum(joules) / sum(seconds))


def test_a_run_takes_the_profile_that_was_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert call(*QUICK, "--out", "here.yaml", "--watts", 7, "--meter", "rapl").exit_code == 0
    settings = ["--set", "network=linear", "--dataset", "synthetic", "--rounds", "1", "--servers", "2"]
    done = CliRunner().invoke(app, ["run", *settings, "--set", "machines.profiles=[here.yaml]", "--json"])
    assert done.exit_code == 0, done.output
    profile = read_profile(tmp_path / "here.yaml")
    told = json.loads(done.stdout)
    assert told["simulated_seconds"] > 0
    spent = told["energy_by_cause_mj"]["training"] * 1e6
    per_sample = 2 * 7 * profile.sample_seconds.value  # two passes
    assert spent / per_sample == pytest.approx(round(spent / per_sample), abs=1e-6), "a whole number of samples"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--out", "x.json", "--watts", "1"], "not a YAML file"),
        (["--meter", "nvml,hwmon"], "nvml measures GPUs, but this work is done by the processor"),
        (["--meter", "rapl", "--device", "cuda"], "rapl measures the processor, but this work is done by a GPU"),
        (["--meter", "rappel"], "Did you mean rapl?"),
        (["--peer", "nowhere", "--watts", "1"], "Write HOST:PORT"),
        (["--peer", "127.0.0.1:9", "--watts", "1"], "hatdfed calibrate --serve"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    done = call(*QUICK, *arguments)
    assert sentence in str(done.exception)
    assert list(tmp_path.iterdir()) == []


def test_work_is_repeated_and_its_interval_covers_the_windows():
    cost = measure_cost(lambda: 4, SteadyMeter(10.0, seconds=0.5), repeats=3, seconds=0.001)
    assert len(cost.windows) == 3
    assert cost.seconds.low <= cost.seconds.mean <= cost.seconds.high
    assert all(each.reading.joules == 5.0 for each in cost.windows)
    assert cost.joules.mean == pytest.approx(sum(5.0 / each.units for each in cost.windows) / 3)


class TimedWork:
    """Work of one unit whose seconds are known, by a clock that nobody waits for."""

    def __init__(self, monkeypatch, *seconds):
        self.now, self._seconds = 50.0, cycle(seconds)
        played = SimpleNamespace(perf_counter=lambda: self.now)
        monkeypatch.setattr("hatdfed.runs.calibration.time", played)

    def __call__(self):
        self.now += next(self._seconds)
        return 1


def test_windows_are_repeated_until_the_mean_is_known(monkeypatch):
    steady = measure_cost(TimedWork(monkeypatch, 1.0), None, repeats=2, seconds=1.0, limit=100.0)
    assert len(steady.windows) == 2
    assert steady.uncertainty == 0.0
    uneven = measure_cost(TimedWork(monkeypatch, 1.0, 1.3), None, repeats=2, seconds=1.0, limit=100.0)
    assert len(uneven.windows) > 10
    assert 0.02 < uneven.uncertainty <= PRECISION
    assert uneven.seconds.mean == pytest.approx(1.15, rel=PRECISION)


def test_the_limit_ends_what_would_take_too_long(monkeypatch):
    work = TimedWork(monkeypatch, 1.0, 2.0)
    cost = measure_cost(work, None, repeats=2, seconds=1.0, limit=7.5)
    assert cost.uncertainty > PRECISION
    assert sum(window.seconds for window in cost.windows[:-1]) + 1.0 <= 7.5
    assert len(measure_cost(work, None, repeats=3, seconds=1.0, limit=0.0).windows) == 3, "as many as were asked for"


def test_what_a_meter_does_not_see_is_part_of_the_uncertainty(monkeypatch):
    def measure(joules):
        meter, work = SteadyMeter(10.0, seconds=1.0), TimedWork(monkeypatch, 1.0)
        meter.uncertainty = joules
        return measure_cost(work, meter, repeats=2, seconds=1.0, limit=60.0)

    assert len(measure(0.1).windows) == 2
    blurred = measure(1.0)  # of 10 J in each window
    assert len(blurred.windows) == 12
    assert blurred.uncertainty == pytest.approx(0.1 / 12**0.5)


def test_the_first_window_does_not_count(monkeypatch):
    work = TimedWork(monkeypatch, 1.0)
    work._seconds = chain([9.0], repeat(1.0))
    assert measure_cost(work, None, repeats=2, seconds=5.0).seconds.mean == 1.0


def test_rounds_are_those_of_a_run(monkeypatch):
    config = resolve({"network": "linear", "dataset": "synthetic", "batch_size": 16, "samples_per_round": 60})
    data, trained, finished = load_dataset("synthetic"), [], []
    program = make_program(config, data)

    def train(self, server, work, t, *, spend):
        trained.append([batch.x for batch in work.batches])
        return server

    monkeypatch.setattr(type(program), "train", train)
    monkeypatch.setattr("hatdfed.runs.calibration._finish", finished.append)
    works = Works(config, data, program, "cpu")
    assert works.train() == works.train() == 60 * config.local_passes
    for batches in trained:
        assert [len(batch) for batch in batches] == config.local_passes * [16, 16, 16, 12]
        half = len(batches) // config.local_passes
        first, second = (torch.cat(part).sort(dim=0).values for part in (batches[:half], batches[half:]))
        assert first.equal(second), "every pass has the same samples"
    assert not trained[0][0].equal(trained[1][0])
    assert len(finished) == 2, "the device is waited for once a round"


def test_a_round_has_a_batch_at_least(tmp_path):
    for given, samples in [((), 60), (("--batch-size", 80), 80), (("--batch-size", 8, "--samples", 24), 24)]:
        done = call(*QUICK, *given, "--out", tmp_path / "here.yaml", "--watts", 7, "--meter", "rapl")
        assert done.exit_code == 0, done.output
        source = read_profile(tmp_path / "here.yaml").sample_seconds.source
        assert f"rounds of {samples} samples in batches of {given[1] if given else 64}," in source


def test_a_mean_that_is_not_known_well_is_told(tmp_path, monkeypatch):
    meter = SteadyMeter(30.0)
    meter.uncertainty = 30.0
    monkeypatch.setattr("hatdfed.cli.calibrate.choose_meter", lambda *_: Choice(meter, {}))
    done = call(*QUICK, "--out", tmp_path / "here.yaml", "--idle-seconds", 0.01)
    assert "The mean of training is uncertain by" in done.output
    assert "--limit" in done.output


def test_the_rate_between_two_machines_is_measured():
    port, ready = [], threading.Event()

    def tell(number):
        port.append(number)
        ready.set()

    server = threading.Thread(target=serve_throughput, args=("127.0.0.1:0", tell), kwargs={"connections": 1})
    server.start()
    assert ready.wait(10)
    assert measure_throughput(f"127.0.0.1:{port[0]}", seconds=0.05) > 1.0
    server.join(10)
    assert not server.is_alive()


def test_an_address_that_cannot_be_listened_on_is_refused():
    with pytest.raises(EnergyMeterError, match="cannot be listened on"):
        serve_throughput("203.0.113.1:7", lambda port: None)
    with pytest.raises(ConfigError, match="Write HOST:PORT"):
        serve_throughput("7070", lambda port: None)


def test_a_profile_by_an_estimate_is_not_measured():
    meter = SteadyMeter(10.0)
    meter.source = "estimate"
    cost = measure_cost(lambda: 4, meter, repeats=2, seconds=0.001)
    profile = make_profile("box", "a network", cost, meter.stop(), watts=5.0)
    assert profile.sample_seconds.how == "measured"
    assert (profile.training_watts.value, profile.training_watts.how) == (5.0, "not stated")
    assert profile.idle_watts.how == "not stated"
