"""A sweep that a script starts: its worker processes read the script again, and that must not start it all over."""

import multiprocessing
import os
import re
import runpy
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tests.unit.sweeps.small import SMALL

import hatdfed
from hatdfed.sweeps.sweep import SweepFailedError
from hatdfed.sweeps.workers import UnguardedScriptError

ROOT = Path(__file__).parents[3]
GUARD = 'put the work under `if __name__ == "__main__":`'
SWEEP = f"hatdfed.sweep({{'base': {SMALL}, 'seeds': 4}}, jobs=2)"
COMPARE = f"hatdfed.compare(['rnd'], seeds=4, jobs=2, **{SMALL})"


def play_script(folder, code):
    (folder / "script.py").write_text(code)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "script.py"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def small_snippet(jobs):
    """The script of the documentation with small runs, in so many processes."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "sweeps.md").read_text(), re.DOTALL)
    assert '{"rounds": 20}' in code
    return code.replace('{"rounds": 20}', repr(SMALL)).replace('"seeds": 3}', f'"seeds": 3}}, jobs={jobs}')


@pytest.mark.processes
def test_the_snippet_of_the_documentation_runs_as_a_script(tmp_path):
    ended = play_script(tmp_path, small_snippet(jobs=2))
    assert ended.returncode == 0, ended.stderr
    assert re.match(r"[\d.]+ runs/sweep-", ended.stdout)


def test_the_snippet_of_the_documentation_runs_here(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text(small_snippet(jobs=1))
    runpy.run_path("script.py", run_name="__main__")
    assert re.match(r"[\d.]+ runs/sweep-", capsys.readouterr().out)


@pytest.mark.parametrize("play", [hatdfed.sweep, hatdfed.compare], ids=["sweep", "compare"])
def test_a_process_that_reads_the_script_that_started_it_is_told_what_to_do(tmp_path, monkeypatch, play):
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)  # as spawning does
    what = {"base": SMALL, "seeds": 4} if play is hatdfed.sweep else ["rnd"]
    with pytest.raises(UnguardedScriptError, match=re.escape(GUARD)):
        play(what, out=tmp_path / "s", jobs=2)


@pytest.mark.processes
@pytest.mark.parametrize("call", [SWEEP, COMPARE], ids=["sweep", "compare"])
def test_an_unguarded_script_is_told_what_to_do_and_ends_in_an_error(tmp_path, call):
    code = f"import hatdfed\n{call}\nprint('went on')\n"
    ended = play_script(tmp_path, code)
    assert ended.returncode == 1
    assert "went on" not in ended.stdout
    assert "A worker process reads the script that started it, and there it came to this call." in ended.stderr
    *_, last = ended.stderr.splitlines()
    assert "A worker process ended (exit code 1) before its work began" in last
    assert GUARD in last
    assert ended.stderr.count("Error:") <= 3  # one for each worker and one at the end: it is not tried again


def test_a_process_of_ones_own_may_play(tmp_path):
    code = f"""
    import multiprocessing
    import hatdfed

    def work():
        hatdfed.compare(["rnd"], seeds=1, out="here", **{SMALL})

    if __name__ == "__main__":
        process = multiprocessing.get_context("spawn").Process(target=work)
        process.start()
        process.join()
        raise SystemExit(process.exitcode)
    """
    ended = play_script(tmp_path, textwrap.dedent(code))
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "here" / "rnd-seed0" / "results.json").is_file()


def test_a_sweep_of_which_every_run_fails_raises(tmp_path, monkeypatch):
    def failing(*_, **__):
        raise ValueError("bad luck")

    monkeypatch.setattr("hatdfed.sweeps.batches.play", failing)
    sentence = "All 2 runs failed. The first, seed=0: ValueError: bad luck"
    with pytest.raises(SweepFailedError, match=re.escape(sentence)) as caught:
        hatdfed.sweep({"base": SMALL, "seeds": 2}, out=tmp_path / "s", jobs=1)
    assert set(caught.value.result.failed) == {"seed=0", "seed=1"}
    assert "bad luck" in (tmp_path / "s" / "summary.json").read_text()
