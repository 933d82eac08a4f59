"""How a coordinator ends when something goes wrong: what may pass is 3, so that it is started again."""

import asyncio
import errno
import resource
import signal
import sqlite3
import subprocess
import sys

import pytest
from tests.deploy.deployment import QUICK, settings
from tests.deploy.processes import HATDFED, Processes, ended

from hatdfed.cli.app import main
from hatdfed.deploy.coordinator.journal import Journal
from hatdfed.deploy.coordinator.process import CoordinatorOptions, CoordinatorProcess, mark_transient_errors
from hatdfed.deploy.transport.endpoints import Endpoints
from hatdfed.errors import RunFolderError, TroubleError
from hatdfed.runs.records.checkpoint import write_atomically


def small_disk(size):
    """Like a disk that is full after so many bytes of a file; for the process that is about to begin."""

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return limit


def begun(folder, log, size, *arguments):
    with log.open("wb") as err:
        command = [*HATDFED, "coordinator", *arguments, "--insecure"]
        return subprocess.Popen(command, cwd=folder, stdout=err, stderr=err, preexec_fn=small_disk(size))


def test_a_disk_that_is_full_at_the_start_is_trouble_that_may_pass(tmp_path):
    (tmp_path / "run.yaml").write_text("dataset: synthetic\nnetwork: linear\nservers: 2\nrounds: 2\n")
    log = tmp_path / "log"
    coordinator = begun(tmp_path, log, 8192, "run.yaml", "--state", "run", "--listen", "127.0.0.1:0")
    assert coordinator.wait(60) == 3, log.read_text()
    assert "Traceback" not in log.read_text()


async def full_in_the_middle(folder, config):
    with Processes(folder, config) as processes:
        where = ("--state", str(processes.state), "--listen", f"127.0.0.1:{processes.port}")
        log = folder / "coordinator.log"
        coordinator = begun(folder, log, 150_000, str(processes.config_file), *where)
        processes.started.append(coordinator)
        await processes.start_edges(3)
        code = await ended(coordinator)
        waiting = [name for name, task in processes.tasks.items() if not task.done()]
        for task in processes.tasks.values():
            task.cancel()
        await asyncio.gather(*processes.tasks.values(), return_exceptions=True)
        return code, log.read_text(), waiting


def test_a_disk_that_fills_in_the_middle_is_trouble_said_in_one_sentence(play, tmp_path, one_thread, eager):
    code, log, waiting = play(full_in_the_middle(tmp_path, settings(rounds=10_000)))
    assert code == 3, log
    assert "round 0:" in log
    assert "Traceback" not in log, "the lines to the edges end in good order"
    assert log.splitlines()[-1].startswith("error: The")
    assert len(waiting) == 3, "the edges wait for the next start"


def raising(error):
    def fail(*_, **__):
        raise error

    return fail


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.ENOSPC, TroubleError), (errno.EMFILE, TroubleError), (errno.EACCES, RunFolderError)],
)
def test_what_may_pass_is_told_from_what_does_not(tmp_path, monkeypatch, number, kind):
    monkeypatch.setattr("pathlib.Path.open", raising(OSError(number, "said by the machine")))
    with pytest.raises(RunFolderError, match="said by the machine") as caught, mark_transient_errors():
        write_atomically(tmp_path / "config.yaml", b"")
    assert type(caught.value) is kind


def test_a_damaged_journal_does_not_pass(tmp_path):
    (tmp_path / "journal.sqlite").write_bytes(b"no database" * 1000)
    with pytest.raises(RunFolderError) as caught, mark_transient_errors():
        Journal(tmp_path / "journal.sqlite")
    assert not isinstance(caught.value, TroubleError)


@pytest.mark.parametrize(("error", "code"), [(TroubleError("no room"), 3), (RunFolderError("no run"), 2)])
def test_the_command_ends_with_the_code_of_its_error(monkeypatch, capfd, error, code):
    monkeypatch.setattr("typer.Typer.__call__", raising(error))
    monkeypatch.setattr(sys, "argv", ["hatdfed"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == code
    assert capfd.readouterr().err == f"error: {error}\n"


def process(folder, rounds):
    options = CoordinatorOptions(folder, "127.0.0.1:0", Endpoints(None))
    return CoordinatorProcess(settings(rounds=rounds), QUICK, options)


def played(folder, rounds):
    """As if so many rounds were done."""
    process(folder, rounds)._journal.close()
    with sqlite3.connect(folder / "journal.sqlite") as database:
        database.execute("INSERT INTO states VALUES (?, '')", (rounds,))
    database.close()


def test_fewer_rounds_than_were_played_are_refused(tmp_path):
    played(tmp_path / "run", 6)
    before = (tmp_path / "run" / "config.yaml").read_bytes()
    with pytest.raises(RunFolderError, match=r"run has 6 rounds already, but rounds is 5\. Set rounds to 6"):
        process(tmp_path / "run", 5)
    assert (tmp_path / "run" / "config.yaml").read_bytes() == before


@pytest.mark.parametrize("rounds", [6, 9])
def test_another_number_of_rounds_is_in_the_settings_of_the_run(tmp_path, rounds):
    played(tmp_path / "run", 6)
    again = process(tmp_path / "run", rounds)
    assert again.folder.config().rounds == rounds
    again._journal.close()
