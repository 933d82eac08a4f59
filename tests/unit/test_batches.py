"""Runs that are played together: what is done is kept, whatever happens to the others."""

import sqlite3

import pytest

from hatdfed.batches import How, play_jobs
from hatdfed.build.placement import Placement
from hatdfed.experiment import Job, play
from hatdfed.fleets.mailbox import MailboxFleet
from hatdfed.records import database
from hatdfed.resolve import resolve

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


@pytest.mark.parametrize("processes", [1, 2])
def test_all_jobs_are_played_and_their_rounds_are_counted(processes):
    jobs = {number: Job(config(seed=number, network=("linear", "small-cnn")[number % 2])) for number in range(6)}
    done, told = {}, []
    how = How(CPU, on_rounds=lambda *progress: told.append(progress))
    play_jobs(jobs, processes, how, lambda number, result: done.update({number: result}))
    assert {number: result.config for number, result in done.items()} == {n: job.config for n, job in jobs.items()}
    assert told[-1] == (24, 24)
    assert [count for count, _ in told] == sorted(count for count, _ in told)
