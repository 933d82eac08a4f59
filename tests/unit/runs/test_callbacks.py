"""Callbacks see rounds and results, and may end a run."""

import re
from pathlib import Path

import pytest
from tests.small_runs import SMALL

import hatdfed
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


def test_the_example_in_the_documents_ends_a_run_early(capsys):
    words = (Path(__file__).parents[3] / "docs" / "python.md").read_text(encoding="utf-8")
    example = re.search(r"```python\n(class EarlyStopping.*?)\n\n\nresult", words, re.DOTALL)
    names = {"hatdfed": hatdfed}
    exec(example.group(1), names)  # noqa: S102 (our own text)
    fast = {**SETTINGS, "learner": {"learning_rate": 3.0}, "rounds": 40}
    result = hatdfed.run(fast, callbacks=[names["EarlyStopping"](2)])
    assert len(result.rounds) < 40
    assert f"{len(result.rounds)} rounds" in capsys.readouterr().out
