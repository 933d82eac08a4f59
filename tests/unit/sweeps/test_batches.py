"""Runs that are played together: what is done is kept, whatever happens to the others."""

import multiprocessing
import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hatdfed.fleets.mailbox import MailboxFleet
from hatdfed.runs.play import Job, play
from hatdfed.runs.records import database
from hatdfed.setup.build.placement import Placement
from hatdfed.setup.layers import resolve
from hatdfed.sweeps.batches import PlayOptions, make_batches, play_jobs
from hatdfed.sweeps.workers import WorkerDiedError, Workers

CPU = Placement("stacked", "cpu")


def config(**settings):
    options = {"train": 300, "validation": 60, "test": 30}
    fixed = {"dataset": "synthetic", "dataset_options": options, "network": "linear", "servers": 3}
    return resolve({**fixed, "validation_images": 50, "method": "rnd", "rounds": 4, **settings})


def test_a_run_that_is_done_is_kept_when_its_batch_is_stopped(tmp_path):
    jobs = [Job(config(rounds=2), tmp_path / "short"), Job(config(rounds=6, seed=1), tmp_path / "long")]

    def stop(config, record):
        if record.t == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play(jobs, CPU, on_round=stop)
    assert (tmp_path / "short" / "results.json").is_file()
    assert not (tmp_path / "long" / "results.json").exists()


def test_no_part_of_an_interrupted_round_stays_behind(tmp_path, monkeypatch):
    real = database._link_rows

    def interrupted(record):
        if record.t == 2:
            raise KeyboardInterrupt
        return real(record)

    monkeypatch.setattr(database, "_link_rows", interrupted)
    with pytest.raises(KeyboardInterrupt):
        play([Job(config(), tmp_path / "run")], CPU)
    connection = sqlite3.connect(tmp_path / "run" / "run.sqlite")
    for table in ("rounds", "servers", "links", "ledger"):
        assert connection.execute(f"SELECT max(t) FROM {table}").fetchone() == (1,), table  # noqa: S608
    connection.close()


def test_records_that_another_process_writes_are_a_sentence(tmp_path, monkeypatch):
    real = sqlite3.connect
    play([Job(config(), tmp_path / "run")], CPU)
    other = real(tmp_path / "run" / "run.sqlite")
    other.execute("BEGIN IMMEDIATE")
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **named: real(*args, **{**named, "timeout": 0.1}))
    with pytest.raises(database.RunFolderError, match="cannot be used"):
        database.RunDatabase(tmp_path / "run" / "run.sqlite").forget_from(1)
    other.close()


def test_mailboxes_are_made_one_fleet_at_a_time(monkeypatch):
    made, seen = [], []
    real = MailboxFleet.__init__
    monkeypatch.setattr(MailboxFleet, "__init__", lambda self, *a, **k: made.append(1) or real(self, *a, **k))
    jobs = [Job(config(seed=seed, rounds=1)) for seed in range(3)]
    play(jobs, Placement("mailbox", "cpu"), on_round=lambda *_: seen.append(len(made)))
    assert seen == [1, 2, 3]


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.processes)])
def test_all_jobs_are_played_and_their_rounds_are_counted(processes):
    jobs = {number: Job(config(seed=number, network=("linear", "small-cnn")[number % 2])) for number in range(6)}
    done, told = {}, []
    how = PlayOptions(CPU, on_rounds=lambda *progress: told.append(progress))
    play_jobs(jobs, processes, how, lambda number, result: done.update({number: result}))
    assert {number: result.config for number, result in done.items()} == {n: job.config for n, job in jobs.items()}
    assert told[-1] == (24, 24)
    assert [count for count, _ in told] == sorted(count for count, _ in told)


def _slow(one_more, seconds, fails=False):
    """What a worker may do; at the top of the module, where a process finds it."""
    time.sleep(seconds)
    if fails:
        raise ValueError("a worker's own trouble")
    return "done"


def _play_until_one_fails():
    """Raises what the bad task ended with, while a long one is in play."""
    with Workers(2, "cpu") as workers:
        workers.start("bad", _slow, 0, True)
        workers.start("good", _slow, 0)
        while not all(worker.line.poll(0.05) for worker in workers._all):
            pass
        good, bad = workers.finished()
        assert (good.task, good.result, good.error) == ("good", "done", None)
        assert bad.task == "bad"
        assert workers.busy == 0
        workers.start("long", _slow, 60)
        raise bad.error


def test_what_is_done_comes_before_what_failed_and_an_error_ends_the_others_at_once():
    start = time.monotonic()
    with pytest.raises(ValueError, match="own trouble") as caught:
        _play_until_one_fails()
    assert time.monotonic() - start < 40
    assert not multiprocessing.active_children()
    assert "in _slow" in caught.value.__notes__[0]  # where it happened, there


def _slow_and_counting(one_more, seconds):
    one_more()
    time.sleep(seconds)


@pytest.mark.processes
def test_a_worker_that_is_killed_takes_only_its_own_task():
    with Workers(2, "cpu") as workers:
        workers.start("killed", _slow_and_counting, 60)
        workers.start("spared", _slow, 3)
        while workers.count == 0:
            time.sleep(0.05)
        workers._all[0].process.kill()
        ended = {}
        while workers.busy:
            ended |= {end.task: end for end in workers.finished()}
        assert ended["spared"].result == "done"
        assert isinstance(ended["killed"].error, WorkerDiedError)
        assert "SIGKILL" in str(ended["killed"].error)
        workers.start("next", _slow, 0)  # somebody is there for it
        while workers.busy:
            ended |= {end.task: end for end in workers.finished()}
        assert ended["next"].result == "done"


@pytest.mark.processes
def test_workers_end_with_the_process_that_started_them():
    script = (
        "import multiprocessing, os, signal, sys, time\n"
        "from hatdfed.sweeps.workers import Workers\n"
        "if __name__ == '__main__':\n"
        "    workers = Workers(1, 'cpu')\n"
        "    workers.start('long', time.sleep, 1)\n"
        "    while not multiprocessing.active_children():\n"
        "        time.sleep(0.05)\n"
        "    print(multiprocessing.active_children()[0].pid, flush=True)\n"
        "    time.sleep(5)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    pid = int(done.stdout.split()[0])
    for _ in range(200):
        if not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split(")")[1][:3]:
            return
        time.sleep(0.1)
    os.kill(pid, 9)
    pytest.fail("a worker outlived its parent")


def test_whoever_stops_early_has_played_the_first_jobs_of_all_kinds():
    """Jobs of fleets of 3 and of 30, seed by seed: the larger ones fill their batches sooner."""
    settings = [{"servers": servers, "seed": seed, "dataset": "digits"} for seed in range(4) for servers in (3, 30, 3)]
    batches = make_batches({n: Job(resolve(each)) for n, each in enumerate(settings)}, 1, 30)
    assert sorted(n for batch in batches for n in batch) == list(range(len(settings)))
    for count in range(1, len(batches)):
        played = {n for batch in batches[:count] for n in batch}
        assert set(range(min(n for batch in batches[count:] for n in batch))) <= played
    first = [min(batch) for batch in batches]
    assert first == sorted(first)
