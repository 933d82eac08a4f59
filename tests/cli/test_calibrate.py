"""hatdfed calibrate: what it measures, what it writes, and what it refuses."""

import json
import threading

import pytest
import yaml
from typer.testing import CliRunner

from hatdfed.cli.app import app
from hatdfed.errors import ConfigError, EnergyMeterError
from hatdfed.meters.base import Reading
from hatdfed.meters.choose import Choice
from hatdfed.meters.throughput import measure_throughput, serve_throughput
from hatdfed.runs.calibration import make_profile, measure_cost
from hatdfed.setup.layers import read_profile

QUICK = ["--network", "linear", "--dataset", "synthetic", "--seconds", "0.02", "--repeats", "2"]


class SteadyMeter:
    """A machine that draws so many watts above idle, by a clock of its own."""

    source, domains, idle_watts = "external", ("machine",), 0.0

    def __init__(self, watts, seconds=2.0):
        self._watts, self._seconds = watts, seconds

    def start(self):
        return self

    def stop(self):
        joules = self._watts * self._seconds
        return Reading(joules, 0.1, self._seconds, self.source, self.domains, joules)

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
