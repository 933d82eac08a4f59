"""What the recorder promises to simulations and deployments alike."""

from contextlib import closing

import numpy as np
import pytest
from tests.alone import mailbox_simulation, run_alone
from tests.small_runs import config as small

from hatdfed.core.fleet import FinalAccuracy
from hatdfed.data.datasets import load_dataset
from hatdfed.errors import RunFolderError
from hatdfed.runs.recorder import Recorder, open_records
from hatdfed.runs.records.folder import RunFolder


class Store:
    """Keeps every second state, and notes which rounds others can read at that moment."""

    def __init__(self, folder):
        self.folder, self.seen = folder, {}

    def is_due(self, state):
        return state.t % 2 == 0

    def write(self, state):
        self.seen[state.t] = [row["t"] for row in self.folder.read_rounds()]


class Recorded:
    """A run of three rounds that is recorded in a folder."""

    def __init__(self, path, **settings):
        self.config = small(rounds=3, **settings)
        options = self.config.dataset_options
        self.coordinator, self.fleet = mailbox_simulation(self.config, load_dataset("synthetic", options=options))
        self.folder = RunFolder.create(path, self.config)
        self.store, self.told = Store(self.folder), []

    def play(self, rounds=3):
        with closing(open_records(self.folder, 0)) as database:
            recorder = Recorder(
                self.config,
                self.fleet,
                self.folder,
                database,
                store=self.store,
                watchers=[lambda record, seconds: self.told.append((record.t, seconds > 0))],
                notes=lambda: ["a note"],
            )
            state = recorder.begin(self.coordinator, None)
            run_alone(self.coordinator, self.fleet, rounds=rounds, sinks=[recorder.keep], state=state)
        return self


def test_a_state_is_kept_after_the_records_of_all_rounds_before_it(tmp_path):
    assert Recorded(tmp_path / "run").play().store.seen == {0: [], 2: [0, 1]}


def test_watchers_are_told_every_round_and_how_long_it_took(tmp_path):
    assert Recorded(tmp_path / "run").play().told == [(0, True), (1, True), (2, True)]


def test_results_are_there_as_soon_as_the_last_round_is_kept_and_not_before(tmp_path):
    assert Recorded(tmp_path / "some").play(rounds=2).folder.read_results() is None
    done = Recorded(tmp_path / "all").play().folder.read_results()
    assert (done["rounds"], done["notes"], done["accuracy_from"]) == (3, ["a note"], "test")
    assert done["computed_by"] == {"fleet": "mailbox", "device": "cpu", "kernels": "one by one"}


def test_figures_of_validation_data_are_called_so(tmp_path, monkeypatch):
    recorded = Recorded(tmp_path / "run")
    told = FinalAccuracy(*[np.array([0.5, 0.7])] * 3, "validation")
    monkeypatch.setattr(recorded.fleet, "final_accuracy", lambda: told)
    results = recorded.play().folder.read_results()
    assert (results["accuracy_from"], results["avg_accuracy"]) == ("validation", pytest.approx(60))


@pytest.mark.parametrize(("first", "is_measured"), [("zero", False), ("initial-models", True)])
def test_the_first_gain_counts_from_zero_or_from_the_initial_models(tmp_path, monkeypatch, first, is_measured):
    recorded, asked = Recorded(tmp_path / "run", first_gain_from=first), []
    real = recorded.fleet.validation_accuracy
    monkeypatch.setattr(recorded.fleet, "validation_accuracy", lambda: asked.append(1) or real())
    recorded.play()
    assert bool(asked) is is_measured


def test_a_run_whose_records_were_lost_cannot_go_on(tmp_path):
    folder = Recorded(tmp_path / "run").play(rounds=2).folder
    with pytest.raises(RunFolderError, match="stands at round 3, but not all rounds before it"):
        open_records(folder, 3)
    with closing(open_records(folder, 1)) as database:
        assert [row["t"] for row in database.records("rounds")] == [0]
