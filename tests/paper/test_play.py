"""Experiments go on where they were, whatever stopped them, and say where they were computed."""

import json
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import pytest

from hatdfed.runs.play import Job
from hatdfed.setup.build.placement import Placement
from hatdfed.setup.layers import resolve
from hatdfed.setup.run_identity import run_key
from hatdfed.sweeps.batches import PlayOptions, TimeLimit
from hatdfed_paper.claims import Claims
from hatdfed_paper.experiments import EXPERIMENTS
from hatdfed_paper.plan import Scale
from hatdfed_paper.play import play_missing
from hatdfed_paper.results import ResultFile, Results, ResultsError, locked, read_all, read_sessions, run_name
from hatdfed_paper.todo import todo

CPU = Placement("stacked", "cpu")
SMALL = {"rounds": 2, "validation_images": 20, "images_per_server": 20, "network": "linear"}
TINY = Scale("tiny", ("digits",), seeds=2, servers=(3, 4), common=SMALL)


class Played(NamedTuple):
    """What a call found and brought."""

    played: int
    known: int
    missing: int
    stale: int


def play(folder, *names, processes=1, scale=TINY, **settings):
    with locked(folder):
        what = todo(names, scale, folder)
        outcome = play_missing(what, processes=processes, how=PlayOptions(CPU, **settings))
    return Played(outcome.played, what.known, outcome.missing, what.stale)


def test_what_is_done_is_not_played_again(tmp_path):
    first = play(tmp_path, "scalability")
    assert (first.played, first.known, first.missing) == (4, 0, 0)
    again = play(tmp_path, "scalability")
    assert (again.played, again.known) == (0, 4)
    more = play(tmp_path, "ablation", "scalability")
    assert (more.played, more.known) == (6, 4)


def test_runs_that_experiments_share_are_played_once(tmp_path):
    play(tmp_path, "ablation")
    what = todo(("readings",), TINY, tmp_path)
    assert what.known == 2
    assert not what.missing.keys() & ResultFile.read(tmp_path / "ablation.json", "tiny").records.keys()


@pytest.mark.processes
def test_several_processes_bring_the_same_as_one(tmp_path):
    play(tmp_path / "one", "scalability")
    play(tmp_path / "two", "scalability", processes=2)
    one, two = (ResultFile.read(tmp_path / name / "scalability.json", "tiny").records for name in ("one", "two"))
    assert one == two


def test_a_time_limit_stops_and_loses_nothing(tmp_path):
    over = TimeLimit(0.0)
    outcome = play(tmp_path, "scalability", limit=over)
    assert (outcome.played, outcome.missing) == (0, 4)
    assert play(tmp_path, "scalability").played == 4


def test_a_batch_that_would_take_too_long_is_not_started(tmp_path):
    limit = TimeLimit(1000.0)
    settings = resolve({"dataset": "digits", **SMALL})
    batch = {0: Job(settings)}
    assert limit.allows(batch)
    limit.learn(batch, 2000.0)
    assert not limit.allows(batch)


def test_an_interrupted_experiment_keeps_what_was_finished(tmp_path):
    seen = []

    def stop(done, total):
        seen.append(done)
        if done > 18:  # the second batch has begun
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play(tmp_path, "ablation", "sensitivity", on_rounds=stop)
    kept = read_all(tmp_path, ("ablation", "sensitivity"), "tiny")
    assert 0 < sum(len(file.records) for file in kept.values()) < 46
    play(tmp_path, "ablation", "sensitivity")
    kept = read_all(tmp_path, ("ablation", "sensitivity"), "tiny")
    assert sum(len(file.records) for file in kept.values()) == 46


def test_results_of_other_settings_are_played_anew_and_replaced(tmp_path):
    play(tmp_path, "scalability")
    path = tmp_path / "scalability.json"
    content = json.loads(path.read_text())
    content["runs"][0]["key"] = "made before a default changed"
    path.write_text(json.dumps(content))
    outcome = play(tmp_path, "scalability")
    assert (outcome.played, outcome.stale) == (1, 1)
    assert len(ResultFile.read(path, "tiny").records) == 4


def test_a_session_says_where_and_how_long(tmp_path):
    play(tmp_path, "scalability")
    (session,) = read_sessions(tmp_path)
    assert session["runs"] == 4
    assert session["server_rounds"] == 2 * (3 + 4) * 2
    assert session["seconds"] > 0
    assert session["device"]


def test_a_record_has_figures_curve_and_bandit(tmp_path):
    play(tmp_path, "scalability")
    results = Results(read_all(tmp_path, ("scalability",), "tiny"))
    record = next(iter(ResultFile.read(tmp_path / "scalability.json", "tiny").records.values()))
    point = {name: value for name, value in record["settings"].items() if name != "seed"}
    assert list(results.at(point)) == [0, 1]
    assert record["curve"]["round"] == [1, 2]
    assert len(record["curve"]["accuracy"]) == 2
    assert record["curve"]["total_mj"][-1] == pytest.approx(record["figures"]["total_energy_mj"], rel=1e-3)
    assert record["bandit"]["least"] <= record["bandit"]["mean"] <= record["bandit"]["most"]
    assert -1 <= record["bandit"]["correlation_with_price"] <= 1
    assert record["figures"]["leaks_test"] is False


RECORD = '{"key": "k", "settings": {"seed": 0}, "figures": {}, "curve": {}}'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1, 2]",
        '{"format": 1, "runs": [{}], "scale": "tiny"}',
        '{"format": 1, "scale": "tiny"}',
        '{"format": 99, "scale": "tiny", "runs": []}',
        *(
            f'{{"format": 1, "scale": "tiny", "runs": [{RECORD.replace(part, "x")}]}}'
            for part in ("key", "seed", "figures", "curve", "settings")
        ),
    ],
)
def test_a_file_that_is_no_result_is_a_sentence_and_is_not_overwritten(tmp_path, text):
    path = tmp_path / "scalability.json"
    path.write_text(text)
    with pytest.raises(ResultsError, match="holds no packed results"):
        play(tmp_path, "scalability")
    assert path.read_text() == text


def test_results_of_another_scale_are_refused(tmp_path):
    play(tmp_path, "scalability")
    with pytest.raises(ResultsError, match="scale tiny, wanted full"):
        ResultFile.read(tmp_path / "scalability.json", "full")


def test_a_key_forgets_what_does_not_decide_and_knows_what_does():
    one = resolve({"method": "hat-dfed", "seed": 1})
    assert run_key(one) == run_key(resolve({"method": "hat-dfed", "seed": 1, "checkpoint_every": 3}))
    assert run_key(one) != run_key(resolve({"method": "hat-dfed", "seed": 2}))
    assert run_key(one) != run_key(resolve({"method": "hat-dfed", "seed": 1, "local_passes": 3}))


def make_stale(path):
    content = json.loads(path.read_text())
    for record in content["runs"]:
        record["key"] = "made before a default changed"
    path.write_text(json.dumps(content))


def test_a_stale_run_that_another_file_keeps_is_replaced_there(tmp_path):
    play_one_seed = partial(play, tmp_path, scale=replace(TINY, seeds=1))
    play_one_seed("sparsity")
    make_stale(tmp_path / "sparsity.json")
    first = play_one_seed("table1")  # shares four points with the sparsity experiment
    assert (first.played, first.stale) == (28, 4)
    assert play_one_seed("table1") == (0, 28, 0, 0)
    Results(read_all(tmp_path, ("table1", "sparsity"), "tiny"))  # refuses what stands twice
    assert play_one_seed("sparsity").played == 16
    assert play_one_seed("sparsity", "table1").known == 44


def test_the_same_run_in_two_files_is_refused(tmp_path):
    play(tmp_path, "ablation")
    content = json.loads((tmp_path / "ablation.json").read_text())
    (tmp_path / "table1.json").write_text(json.dumps({**content, "experiment": "table1"}))
    with pytest.raises(ResultsError, match="another file has, too"):
        Results(read_all(tmp_path, ("table1", "ablation"), "tiny"))


def test_every_batch_is_on_the_disk_when_the_next_begins(tmp_path):
    seen = []

    def look(done, total):
        path = tmp_path / "sensitivity.json"
        records = json.loads(path.read_text())["runs"] if path.exists() else []
        seen.append((done, len(records)))

    play(tmp_path, "sensitivity", on_rounds=look)
    batch = 4  # runs of five servers in a batch on a CPU
    for done, kept in seen:
        assert kept == (done - 1) // (2 * batch) * batch


def test_a_folder_has_one_writer(tmp_path):
    with locked(tmp_path), pytest.raises(ResultsError, match="Another command is writing"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_played(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultsError, match="cannot be written"), locked(tmp_path / "file" / "results"):
        pass


def test_sessions_that_cannot_be_read_are_noticed_before_anything_is_played(tmp_path):
    (tmp_path / "sessions.json").write_text("5")
    with pytest.raises(ResultsError, match=r"sessions\.json"):
        play(tmp_path, "scalability")
    assert not (tmp_path / "scalability.json").exists()


def test_a_changed_default_changes_the_key(monkeypatch):
    before = run_key(resolve({"method": "rnd"}))
    changed = resolve({"method": "rnd", "batch_size": 32})
    monkeypatch.setattr(type(changed).model_fields["batch_size"], "default", 32)
    assert run_key(changed) != before


def test_a_setting_that_came_later_changes_no_key_at_its_neutral_value():
    plain = resolve({"method": "rnd"})
    assert run_key(plain) == run_key(
        resolve({"method": "rnd", "schedule": {"every": 1}, "loss": {"name": "cross-entropy"}})
    )
    assert run_key(plain) != run_key(resolve({"method": "rnd", "schedule": {"every": 2}}))
    assert run_key(plain) != run_key(resolve({"method": "rnd", "loss": {"name": "label-prior"}}))


@pytest.mark.parametrize("stopped_after", [50, 110])
def test_an_interrupted_plan_has_whole_seeds_of_what_decides_first_and_goes_on(tmp_path, stopped_after):
    """Of training_effort 24 of 160 runs decide; seeds that one side lacks are in no difference."""
    name = "training_effort"
    experiment = EXPERIMENTS[name]

    def stop(done, total):
        if done > stopped_after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play(tmp_path, name, on_rounds=stop)
    kept = set(read_all(tmp_path, (name,), "tiny")[name].records)
    order = [run_name(run) for run in experiment.runs(TINY)]
    decisive = experiment.decisive_runs(TINY)
    assert kept == set(order[: len(kept)])
    rows = experiment.tables[0].rows(Results(read_all(tmp_path, (name,), "tiny")), Claims.read(), TINY)
    for row in rows:
        assert row["accuracy_points"]["pairs"] == len(row["seeds"])
        assert row["holds"] is None or decisive <= kept
    if not decisive <= kept:
        assert {tuple(row["seeds"]) for row in rows} == {(0,)}
    first = len(kept)
    assert play(tmp_path, name).played == len(order) - first
    assert set(read_all(tmp_path, (name,), "tiny")[name].records) == set(order)
