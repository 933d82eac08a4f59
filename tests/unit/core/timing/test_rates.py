"""Rates that change with time, and what is counted when a server trains on after a deadline."""

import numpy as np
import pytest
from tests.small_runs import SMALL

import hatdfed
from hatdfed.core.timing.machines import Machines, RateTraces
from hatdfed.core.timing.round_time import RoundClock
from hatdfed.core.traces import Trace
from hatdfed.errors import ConfigError
from hatdfed.setup.layers import resolve

MACHINES = Machines(np.ones(2), np.full(2, 100.0), np.full(2, 10.0), np.zeros(2))
SLOWER = Trace(np.array([0.0, 50.0]), np.array([[10.0, 20.0], [1.0, 2.0]]))


def test_a_round_has_the_rates_of_its_beginning():
    clock = RoundClock(MACHINES, 1, RateTraces(uplink=SLOWER))
    sender, bits = np.array([0, 1]), np.full(2, 100.0)
    assert clock.at(49.9).find_sending(sender, bits).tolist() == [10.0, 5.0]
    assert clock.at(50.0).find_sending(sender, bits).tolist() == [100.0, 50.0]
    assert clock.at(50.0).find_upload(bits).tolist() == [1.0, 1.0]  # which no trace is for


def test_a_clock_without_traces_is_the_same_at_all_times():
    clock = RoundClock(MACHINES, 1)
    assert clock.at(1e6) is clock


def write(folder, name, *rows):
    path = folder / name
    path.write_text("\n".join(["seconds constant once, all", *rows]) + "\n")
    return str(path)


def play(**settings):
    return hatdfed.run("rnd", **{**SMALL, "rounds": 4, **settings})


def seconds_of(result):
    return [row["simulated_seconds"] for row in result.rounds]


def test_a_constant_trace_is_the_same_run_as_the_rate_itself(tmp_path):
    traces = {"uplink_trace": write(tmp_path, "a.csv", "0, 0.5"), "upload_trace": write(tmp_path, "b.csv", "0, 2")}
    traced = play(time=traces)
    plain = play(time={"uplink_mbit_per_second": 0.5, "upload_mbit_per_second": 2.0})
    assert seconds_of(traced) == seconds_of(plain)


def test_rounds_take_longer_once_links_are_slower(tmp_path):
    fast = play()
    first = seconds_of(fast)[0]
    slow = play(time={"uplink_trace": write(tmp_path, "a.csv", "0, 10", f"{first}, 0.001")})
    assert seconds_of(slow)[0] == first
    assert min(seconds_of(slow)[1:]) > 5 * max(seconds_of(fast)[1:])
    assert [row["avg_accuracy"] for row in slow.rounds] == [row["avg_accuracy"] for row in fast.rounds]


@pytest.mark.parametrize("fleet", ["stacked", "mailbox"])
def test_a_deadline_is_missed_when_links_become_slow(tmp_path, fleet):
    first = seconds_of(play())[0]
    settings = {"deadline_seconds": 100.0, "uplink_trace": write(tmp_path, "a.csv", "0, 10", f"{first}, 1e-6")}
    received = [(row["t"], row["importance"]) for row in play(time=settings, fleet=fleet).links]
    assert all(importance is not None for t, importance in received if t == 0)
    assert len([t for t, _ in received if t > 0]) > 0
    assert all(importance is None for t, importance in received if t > 0)


def test_a_run_with_a_rate_trace_goes_on_at_the_time_at_which_it_stopped(tmp_path):
    trace = write(tmp_path, "a.csv", "0, 10", "5, 0.01", "30, 0.001")
    whole = play(rounds=6, horizon=6, time={"uplink_trace": trace})
    play(rounds=3, horizon=6, time={"uplink_trace": trace}, out=tmp_path / "run", checkpoint_every=1)
    resumed = hatdfed.resume(tmp_path / "run", {"rounds": 6}, show_progress=False)
    assert seconds_of(resumed) == seconds_of(whole)


def test_a_rate_of_zero_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"time.uplink_trace: .*value 0 in line 2.*at least 1e-09"):
        play(time={"uplink_trace": write(tmp_path, "a.csv", "0, 0")})


def test_asynchronous_servers_have_rates_that_do_not_change(tmp_path):
    with pytest.raises(ConfigError, match=r"time.upload_trace and time.asynchronous are both set"):
        resolve({"time": {"upload_trace": write(tmp_path, "a.csv", "0, 1"), "asynchronous": True}})


@pytest.mark.parametrize("fleet", ["stacked", "mailbox"])
def test_the_accuracy_of_a_late_server_counts_once_it_has_trained(fleet):
    # Weak machines train for about one and a half deadlines, strong ones are in time. Nobody receives a model.
    speeds = {"weak_seconds_per_sample": 0.22, "strong_seconds_per_sample": 1e-4}
    small = {**SMALL, "rounds": 2, "servers": 6, "learner": {"learning_rate": 0.1}, "fleet": fleet}
    in_time, late = (
        hatdfed.run("local", **small, time={**speeds, **more}) for more in ({}, {"deadline_seconds": 10.0})
    )
    shown, counted = ({(row["t"], row["server"]): row for row in each.servers} for each in (in_time, late))
    busy = [server for server in range(6) if not counted[1, server]["num_samples"]]
    assert 0 < len(busy) < 6
    for server in range(6):
        when = 1 if server in busy else 0  # the round at whose end the training of round 0 is over
        assert counted[when, server]["accuracy"] == shown[0, server]["accuracy"]
    assert any(counted[0, server]["accuracy"] != shown[0, server]["accuracy"] for server in busy)
