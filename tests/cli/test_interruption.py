"""What Ctrl-C says about going on is true."""

import signal
from pathlib import Path

import pytest
import typer

from hatdfed.cli.console import format_resume_hint, interruptible
from hatdfed.sweeps.workers import Workers


def _interrupted(how_to_go_on, capsys):
    with pytest.raises(typer.Exit) as caught, interruptible(how_to_go_on):
        raise KeyboardInterrupt
    assert caught.value.exit_code == 130
    return capsys.readouterr().err


def test_a_run_with_a_checkpoint_can_be_resumed(tmp_path, capsys):
    (tmp_path / "checkpoint.safetensors").touch()
    assert f"hatdfed run --resume {tmp_path}" in _interrupted(lambda: format_resume_hint(tmp_path), capsys)


def test_a_run_without_a_checkpoint_cannot_be_resumed(tmp_path, capsys):
    said = _interrupted(lambda: format_resume_hint(tmp_path), capsys)
    assert "nothing can be resumed" in said
    assert "--resume" not in said


def test_a_sentence_is_said_as_it_stands(capsys):
    assert "Interrupted. Nothing was written." in _interrupted("Nothing was written.", capsys)


def test_ctrl_c_does_not_reach_a_worker_process_that_is_still_starting():
    with Workers(1, "cpu") as workers:
        workers.start("task", print)
        (worker,) = workers._all
        status = Path(f"/proc/{worker.process.pid}/status").read_text()
        blocked = int(next(line for line in status.splitlines() if line.startswith("SigBlk")).split()[1], 16)
        assert blocked >> (signal.SIGINT - 1) & 1
        assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
        while not (ended := workers.finished()):
            pass
    assert [end.task for end in ended] == ["task"]
