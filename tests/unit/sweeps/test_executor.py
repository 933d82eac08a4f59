"""Runs that die: they are tried again, their neighbours are played, and who waits is told of each exactly once."""

import os
import signal

import pytest
from tests.small_runs import CPU, Told, config

from hatdfed.errors import ConfigError
from hatdfed.runs.play import Job, play
from hatdfed.sweeps.batches import one_line
from hatdfed.sweeps.executors import LocalExecutor
from hatdfed.sweeps.retries import Attempts


def test_a_batch_that_dies_comes_again_whole_then_run_by_run():
    line = Attempts([{0: "a", 1: "b"}, {2: "c"}], retries=2)
    first = line.take()
    assert line.died(first) == []
    assert line.take() == {2: "c"}  # others come before it
    assert line.take() == first
    assert line.died(first) == []
    assert line.take() == {0: "a"}
    assert line.died({0: "a"}) == [0]  # it died three times, and alone
    assert line.take() == {1: "b"}
    assert line.take() is None


def test_without_retries_neighbours_still_get_their_own_try():
    line = Attempts([{0: "a", 1: "b"}], retries=0)
    assert line.died(line.take()) == []
    assert line.died(line.take()) == [0]
    assert line.take() == {1: "b"}


def test_a_run_that_was_alone_is_tried_again_as_often_as_allowed():
    line, tries = Attempts([{7: "a"}], retries=3), 0
    while batch := line.take():
        tries += 1
        given_up = line.died(batch)
    assert (tries, given_up) == (4, [7])


def _deadly(result):
    """In a worker: some runs are the end of it."""
    if result.config.seed == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return result.config.seed


def test_one_run_that_kills_its_process_does_not_take_the_others():
    told = Told()
    told.play(LocalExecutor(2, retries=0), {n: Job(config(seed=n)) for n in range(4)}, keep=_deadly)
    assert told.done == {0: 0, 1: 1, 3: 3}
    assert list(told.failed) == [2]
    assert "SIGKILL" in told.failed[2]
    counts = [done for done, _ in told.rounds]
    assert counts == sorted(counts)
    assert told.rounds[-1] == (12, 12)


def test_what_fails_once_is_played_again_from_where_it_stood(tmp_path, monkeypatch):
    tries = []

    def stumbling(jobs, *rest, on_round, **more):
        tries.append([job.resumed for job in jobs])

        def watch(config, record):
            on_round(config, record)
            if len(tries) == 1 and record.t == 1:
                raise OSError("no space left on device")

        return play(jobs, *rest, on_round=watch, **more)

    monkeypatch.setattr("hatdfed.sweeps.batches.play", stumbling)
    told = Told()
    jobs = {n: Job(config(seed=n, checkpoint_every=1), tmp_path / f"seed{n}") for n in range(2)}
    told.play(LocalExecutor(1), jobs)
    assert tries == [[False, False], [True, True]]
    assert told.done.keys() == {0, 1}
    fresh = play([jobs[0]._replace(out=None)], CPU)[0]
    assert told.done[0].summary["accuracy_by_server"] == fresh.summary["accuracy_by_server"]


def test_a_run_that_had_ended_when_its_batch_died_is_kept(tmp_path, monkeypatch):
    played = []

    def dying(jobs, *rest, **more):
        played.append([job.config.seed for job in jobs])
        results = play(jobs, *rest, **more)
        if len(played) == 1:
            raise MemoryError
        return results

    monkeypatch.setattr("hatdfed.sweeps.batches.play", dying)
    told = Told()
    told.play(LocalExecutor(1), {n: Job(config(seed=n), tmp_path / f"seed{n}") for n in range(2)})
    assert played == [[0, 1]]
    assert told.done.keys() == {0, 1}


def test_a_run_that_raises_is_told_with_its_reason(monkeypatch):
    def refusing(jobs, *rest, **more):
        if any(job.config.seed == 1 for job in jobs):
            raise ConfigError("This run\ncannot work.")
        return play(jobs, *rest, **more)

    monkeypatch.setattr("hatdfed.sweeps.batches.play", refusing)
    told = Told()
    told.play(LocalExecutor(1), {n: Job(config(seed=n)) for n in range(3)})
    assert told.failed == {1: "This run cannot work."}
    assert told.done.keys() == {0, 2}


def test_a_folder_that_becomes_unusable_costs_its_own_run_only(tmp_path, monkeypatch):
    def spoiling(jobs, *rest, **more):
        if any(job.config.seed == 0 for job in jobs):
            folder = tmp_path / "seed0"
            folder.mkdir(exist_ok=True)
            (folder / "config.yaml").write_text("rounds: nonsense")
            raise ValueError("spoilt")
        return play(jobs, *rest, **more)

    monkeypatch.setattr("hatdfed.sweeps.batches.play", spoiling)
    told = Told()
    told.play(LocalExecutor(1), {n: Job(config(seed=n), tmp_path / f"seed{n}") for n in range(2)})
    assert told.done.keys() == {1}
    assert "rounds" in told.failed[0]


def test_ctrl_c_passes_through(monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("hatdfed.sweeps.batches.play", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Told().play(LocalExecutor(1), {0: Job(config())})


def test_a_reason_is_one_line_and_says_what_kind_it_is_of():
    assert one_line(ConfigError("Two\n  lines.")) == "Two lines."
    assert one_line(ValueError("odd")) == "ValueError: odd"
    assert one_line(MemoryError()) == "MemoryError: no reason given"
