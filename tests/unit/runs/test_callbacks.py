"""Callbacks see rounds and results, and may end a run."""

import json
import re
import time
from pathlib import Path

import pytest
from tests.small_runs import SMALL
from typer.testing import CliRunner

import hatdfed
from hatdfed.cli.app import app
from hatdfed.dashboard.catalogue import make_card
from hatdfed.dashboard.comparison import select_comparable
from hatdfed.errors import HatdfedError
from hatdfed.runs.records.folder import RunFolder

SETTINGS = {**SMALL, "method": "rnd", "rounds": 6}


class StopAfter(hatdfed.Callback):
    def __init__(self, rounds):
        self.rounds, self.records, self.results = rounds, [], []

    def on_round_end(self, record):
        self.records.append(record)
        return len(self.records) == self.rounds

    def on_run_end(self, result):
        self.results.append(result)


def test_a_callback_sees_every_round_and_the_result():
    seen = StopAfter(None)
    result = hatdfed.run(SETTINGS, callbacks=[seen])
    wanted = [{**row, "seconds": None} for row in result.rounds]
    assert seen.records == wanted
    assert seen.results == [result]


@pytest.mark.parametrize("fleet", ["stacked", "mailbox"])
def test_a_run_that_is_ended_early_goes_on_to_the_same_result(tmp_path, fleet):
    whole = hatdfed.run(SETTINGS, fleet=fleet)
    early = hatdfed.run(SETTINGS, fleet=fleet, out=tmp_path / "run", callbacks=[StopAfter(2)])
    assert early.summary["rounds"] == len(early.rounds) == 2
    predicted = hatdfed.run({**SETTINGS, "rounds": 2, "horizon": 6}, fleet=fleet).summary["confusion_matrix"]
    assert early.summary["confusion_matrix"] == predicted
    resumed = hatdfed.resume(tmp_path / "run", fleet=fleet)
    assert [row["avg_accuracy"] for row in resumed.rounds] == [row["avg_accuracy"] for row in whole.rounds]
    assert resumed.summary["confusion_matrix"] == whole.summary["confusion_matrix"]


def test_a_callback_that_raises_is_named_and_loses_nothing(tmp_path):
    class Broken(hatdfed.Callback):
        def on_round_end(self, record):
            if record["t"] == 3:
                raise KeyError("lost")

    with pytest.raises(HatdfedError, match=r"on_round_end of the callback Broken failed after round 4 \(KeyError"):
        hatdfed.run(SETTINGS, out=tmp_path / "run", callbacks=[Broken()])
    assert len(RunFolder(tmp_path / "run").read_rounds()) == 4
    assert len(hatdfed.resume(tmp_path / "run").rounds) == 6


def test_a_run_that_is_interrupted_in_python_says_how_to_go_on(tmp_path):
    def interrupt(config, record):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as stopped:
        hatdfed.run(SETTINGS, out=tmp_path / "run", on_round=interrupt)
    again = f"hatdfed.resume({str(tmp_path / 'run')!r}) goes on from the last checkpoint, if any."
    assert stopped.value.__notes__ == [again]


def test_a_run_that_a_callback_ended_is_shown_as_such_until_it_is_gone_on_with(tmp_path):
    result = hatdfed.run(SETTINGS, out=tmp_path / "run", callbacks=[StopAfter(None), StopAfter(2)])
    ended = "Ended by the callback StopAfter after 2 of 6 rounds."
    assert result.summary["stopped_by"] == "StopAfter"
    assert ended in result.summary["notes"]
    assert "2 rounds (of 6, ended by StopAfter)" in repr(hatdfed.load(tmp_path / "run"))
    words = show(tmp_path / "run")
    assert ended in words
    assert "Test accuracy by class" in words
    assert "--resume" not in words
    told = json.loads(show(tmp_path / "run", "--json"))
    assert (told["stopped_by"], told["rounds"]) == ("StopAfter", 2)
    assert "finished" not in told
    assert (card(tmp_path / "run").state(), card(tmp_path / "run").accuracy_of) == ("stopped", "test")

    class Broken(hatdfed.Callback):
        def on_round_end(self, record):
            raise KeyError("lost")

    with pytest.raises(HatdfedError, match="Broken"):
        hatdfed.resume(tmp_path / "run", callbacks=[Broken()])
    assert "3 of 6 rounds completed" in show(tmp_path / "run")
    assert card(tmp_path / "run").state() == "running"
    assert "stopped_by" not in hatdfed.resume(tmp_path / "run").summary
    assert card(tmp_path / "run").state() == "done"


def test_a_callback_that_agrees_with_the_last_round_ends_nothing(tmp_path):
    result = hatdfed.run(SETTINGS, out=tmp_path / "run", callbacks=[StopAfter(6)])
    assert "stopped_by" not in result.summary
    assert card(tmp_path / "run").state() == "done"


def test_reports_and_comparisons_say_that_a_run_was_ended(tmp_path):
    hatdfed.run(SETTINGS, out=tmp_path / "run", callbacks=[StopAfter(2)])
    compared = select_comparable([(tmp_path / "run", card(tmp_path / "run"))])
    assert compared.worlds == []
    assert compared.left_out == ["run was ended by StopAfter after 2 of 6 rounds."]
    CliRunner().invoke(app, ["report", str(tmp_path / "run"), "--out", str(tmp_path / "report.html")])
    assert "Ended by StopAfter after 2 of 6 rounds." in (tmp_path / "report.html").read_text(encoding="utf-8")


def show(folder, *words):
    return CliRunner().invoke(app, ["show", str(folder), *words]).stdout


def card(folder):
    return make_card(folder, "id", "run", time.time())


def test_the_example_in_the_documents_ends_a_run_early(capsys):
    words = (Path(__file__).parents[3] / "docs" / "python.md").read_text(encoding="utf-8")
    example = re.search(r"```python\n(class EarlyStopping.*?)\n\n\nresult", words, re.DOTALL)
    names = {"hatdfed": hatdfed}
    exec(example.group(1), names)  # noqa: S102 (our own text)
    fast = {**SETTINGS, "learner": {"learning_rate": 3.0}, "rounds": 40}
    result = hatdfed.run(fast, callbacks=[names["EarlyStopping"](2)])
    assert len(result.rounds) < 40
    assert f"{len(result.rounds)} rounds" in capsys.readouterr().out
