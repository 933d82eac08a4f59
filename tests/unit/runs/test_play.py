"""Runs, their folders, and going on where one stopped."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
import yaml
from safetensors import safe_open
from safetensors.numpy import save

import hatdfed
from hatdfed.cli.app import main
from hatdfed.core.links import LinkTable, all_links
from hatdfed.core.policies import POLICIES
from hatdfed.core.policies.base import Stateless, certain
from hatdfed.errors import ConfigError, RunFolderError
from hatdfed.runs.calls import resume, run
from hatdfed.runs.records.folder import RunFolder

SMALL = {
    "dataset": "synthetic",
    "dataset_options": {"train": 1000, "validation": 200, "test": 200},
    "network": "small-cnn",
    "validation_images": 60,
    "servers": 3,
}


class PowerCutError(Exception):
    """The power cut."""


def stop_after(rounds):
    def watch(config, record):
        if record.t + 1 == rounds:
            raise PowerCutError

    return watch


def without_clock(records):
    return [{key: value for key, value in row.items() if key != "seconds"} for row in records]


def same(mine, theirs):
    assert without_clock(mine.rounds) == without_clock(theirs.rounds)
    assert mine.servers == theirs.servers
    assert mine.links == theirs.links
    assert mine.ledger == theirs.ledger
    skip = ("seconds", "run_folder")
    assert {k: v for k, v in mine.summary.items() if k not in skip} == {
        k: v for k, v in theirs.summary.items() if k not in skip
    }


@cache
def seven_rounds(every):
    return run(**SMALL, rounds=7, checkpoint_every=every)


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """A run of three rounds with a checkpoint after each, not to be changed."""
    folder = tmp_path_factory.mktemp("played") / "run"
    run(**SMALL, rounds=3, checkpoint_every=1, out=folder)
    return folder


@pytest.fixture
def copy(played, tmp_path):
    return shutil.copytree(played, tmp_path / "run")


@pytest.mark.parametrize("stopped_at", range(1, 8))
@pytest.mark.parametrize("every", [1, 3])
def test_a_run_stopped_after_any_round_ends_like_one_that_was_not(tmp_path, stopped_at, every):
    settings, whole = {**SMALL, "rounds": 7, "checkpoint_every": every}, seven_rounds(every)
    with pytest.raises(PowerCutError):
        run(**settings, out=tmp_path / "run", on_round=stop_after(stopped_at))
    same(resume(tmp_path / "run"), whole)


@pytest.mark.parametrize("method", ["hat-dfed-literal", "hat-dfed-released", "d-psgd"])
def test_every_kind_of_state_survives_a_stop(tmp_path, method):
    settings = {**SMALL, "rounds": 4, "checkpoint_every": 1, "method": method, "codec": "float16"}
    with pytest.raises(PowerCutError):
        run(**settings, out=tmp_path / "run", on_round=stop_after(2))
    same(resume(tmp_path / "run"), run(**settings))


@pytest.mark.processes
def test_a_killed_process_goes_on_bit_for_bit(tmp_path):
    settings = {**SMALL, "rounds": 30, "checkpoint_every": 2}
    code = (
        "import json, sys, torch; torch.set_num_threads(1); from hatdfed.runs.calls import run; "
        "run(**json.loads(sys.argv[1]), out=sys.argv[2])"
    )
    folder = tmp_path / "run"
    process = subprocess.Popen([sys.executable, "-c", code, json.dumps(settings), str(folder)])
    deadline = time.monotonic() + 60
    while not (folder / "checkpoint.safetensors").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (folder / "results.json").exists()
    same(resume(folder), run(**settings))


def test_more_rounds_keep_the_horizon_of_the_first_start(tmp_path):
    settings = {**SMALL, "rounds": 3}
    run(**settings, out=tmp_path / "run")
    longer = resume(tmp_path / "run", {"rounds": 6})
    assert longer.config.horizon == 3
    same(longer, run(**{**settings, "rounds": 6, "horizon": 3}))


def test_a_run_that_cannot_go_on_keeps_its_settings(tmp_path):
    run(**SMALL, rounds=2, checkpoint_every=0, out=tmp_path / "run")
    with pytest.raises(RunFolderError, match="no checkpoint"):
        resume(tmp_path / "run", {"rounds": 9})
    assert RunFolder(tmp_path / "run").config().rounds == 2


def test_more_rounds_that_are_stopped_are_shown_as_not_finished(tmp_path, monkeypatch, capfd):
    run(**SMALL, rounds=2, checkpoint_every=1, out=tmp_path / "run")
    with pytest.raises(PowerCutError):
        resume(tmp_path / "run", {"rounds": 9}, on_round=stop_after(4))
    for option, expected in (("--json", '"finished": false'), ("", "4 of 9 rounds completed")):
        monkeypatch.setattr(sys, "argv", ["hatdfed", "show", str(tmp_path / "run"), *option.split()])
        with pytest.raises(SystemExit):
            main()
        assert expected in capfd.readouterr().out


def test_a_finished_run_can_be_resumed_and_stays_the_same(tmp_path):
    first = run(**SMALL, rounds=3, out=tmp_path / "run")
    same(resume(tmp_path / "run"), first)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seed": 5}, "has seed 0, but 5"),
        ({"method": "rnd"}, "has method 'hat-dfed'"),
        ({"rounds": 2}, "Ask for 3 or more"),
        ({"horizon": 9}, "has horizon 3, but 9"),
    ],
)
def test_resuming_with_other_settings_is_refused(copy, settings, message):
    with pytest.raises(RunFolderError, match=message):
        resume(copy, settings)


def test_a_damaged_checkpoint_is_refused_by_name(copy):
    (copy / "checkpoint.safetensors").write_bytes(b"nonsense")
    with pytest.raises(RunFolderError, match=r"checkpoint\.safetensors cannot be read"):
        resume(copy)


@pytest.mark.parametrize("t", [-1, 4, "x", None, True, 1.0])
def test_a_checkpoint_of_a_round_that_the_run_does_not_have_is_refused(copy, t):
    folder = RunFolder(copy)
    with safe_open(folder.checkpoint, framework="numpy") as file:
        metadata, arrays = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    metadata["state"] = json.dumps({**json.loads(metadata["state"]), "t": t})
    folder.checkpoint.write_bytes(save(arrays, metadata=metadata))
    with pytest.raises(RunFolderError, match=f"stands at round {t!r}, but the run has rounds 0 to 3"):
        resume(copy)
    assert len(folder.read_rounds()) == 3


def test_a_run_whose_models_became_no_numbers_can_go_on(tmp_path):
    settings = {**SMALL, "rounds": 3, "checkpoint_every": 1, "learner": {"optimiser": "sgd", "learning_rate": 1e30}}
    with np.errstate(all="ignore"):
        with pytest.raises(PowerCutError):
            run(**settings, out=tmp_path / "run", on_round=stop_after(2))
        assert resume(tmp_path / "run").summary["rounds"] == 3


def test_a_checkpoint_of_another_run_is_refused(copy, tmp_path):
    run(**SMALL, rounds=3, checkpoint_every=1, seed=1, out=tmp_path / "other")
    foreign = (tmp_path / "other" / "checkpoint.safetensors").read_bytes()
    (copy / "checkpoint.safetensors").write_bytes(foreign)
    with pytest.raises(RunFolderError, match="made with other settings"):
        resume(copy)


def test_lost_records_are_noticed(copy):
    with sqlite3.connect(copy / "run.sqlite") as connection:
        connection.execute("DELETE FROM rounds WHERE t = 1")
    with pytest.raises(RunFolderError, match="Records were lost"):
        resume(copy, {"rounds": 6})


def test_without_checkpoints_a_run_cannot_go_on_and_says_so(tmp_path):
    run(**SMALL, rounds=2, checkpoint_every=0, out=tmp_path / "run")
    with pytest.raises(RunFolderError, match="no checkpoint"):
        resume(tmp_path / "run")


def test_models_that_became_no_numbers_are_told():
    with np.errstate(all="ignore"):
        result = run(**SMALL, rounds=4, learner={"optimiser": "sgd", "learning_rate": 1e30})
    assert any("own model was not finite" in note for note in result.summary["notes"])


@pytest.mark.parametrize("fleet", ["stacked", "mailbox"])
def test_what_was_refused_before_a_stop_is_counted_after_it(fleet, tmp_path):
    how = {**SMALL, "rounds": 4, "learner": {"optimiser": "sgd", "learning_rate": 1e30}, "checkpoint_every": 1}
    with np.errstate(all="ignore"):
        whole = run(**how, fleet=fleet)
        with pytest.raises(PowerCutError):
            run(**how, fleet=fleet, out=tmp_path / "run", on_round=stop_after(2))
        resumed = resume(tmp_path / "run")
    same(resumed, whole)


@pytest.mark.parametrize(
    ("settings", "is_told"),
    [
        ({"method": "d-psgd", "link_share": 0.1}, True),
        ({"method": "d-psgd"}, False),
        ({"method": "rnd", "link_share": 0.1}, False),
    ],
)
def test_a_link_share_that_has_no_effect_is_told(tmp_path, settings, is_told):
    result = run(**SMALL, rounds=1, **settings, out=tmp_path / "run")
    sentence = "link_share has no effect: policy ring has its own number of links."
    assert (sentence in result.summary["notes"]) == is_told
    assert json.loads((tmp_path / "run" / "results.json").read_text())["notes"] == result.summary["notes"]


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda links: certain(links, links.from_dense(all_links(2))), "3 servers have a matrix of links of shape"),
        (lambda links: certain(links, all_links(3)), "one value for each of 6 links, not \\(3, 3\\)"),
        (lambda links: certain(links, links.from_dense(np.ones((3, 3), dtype=bool))), "server 0 has a link to itself"),
        (
            lambda links: certain(LinkTable.all_of(2), np.ones(2, dtype=bool)),
            "a draw for 2 servers and 2 links, but there are 3 and 6",
        ),
    ],
)
def test_a_policy_that_draws_for_other_servers_or_links_is_told_what_is_wrong(monkeypatch, draw, message):
    @dataclass(frozen=True)
    class Mistaken(Stateless):
        """Draws something else than it was asked for."""

        def propose(self, state, context, rng):
            return draw(context.links)

    monkeypatch.setitem(POLICIES._loaded, "mistaken", Mistaken)
    with pytest.raises(ConfigError, match=message):
        run(**SMALL, rounds=1, policy={"name": "mistaken"})


def test_a_folder_with_a_run_is_not_overwritten(copy):
    with pytest.raises(RunFolderError, match="already holds a run"):
        run(**SMALL, rounds=1, out=copy)


@pytest.mark.parametrize(
    ("name", "what"),
    [("results.json", "a comparison"), ("sweep.yaml", "a sweep"), ("rnd-seed0/run.sqlite", "other runs")],
)
def test_a_folder_with_something_else_than_a_run_is_not_overwritten(tmp_path, name, what):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    with pytest.raises(RunFolderError, match=f"already holds {what}, whose files would be written over"):
        run(**SMALL, rounds=1, out=tmp_path)
    assert [path.read_text() for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock"] == ["mine"]


def test_a_run_folder_holds_what_the_result_holds(tmp_path):
    result = run(**SMALL, rounds=3, out=tmp_path / "run")
    folder = RunFolder.open(tmp_path / "run")
    assert folder.config() == result.config
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["servers"] == 3
    assert folder.read().records("rounds") == result.rounds
    assert folder.read().records("ledger") == result.ledger
    written = folder.read_results()
    assert written is not None
    assert {key: written[key] for key in result.summary} == result.summary
    with sqlite3.connect(folder.database) as connection:
        (blob,) = connection.execute("SELECT propensity FROM matrices WHERE t = 0").fetchone()
    assert len(blob) == 3 * 3 * 4


def test_the_test_set_changes_no_decision():
    """Other test images, same everything else: only the final figures may differ."""
    base = run(**SMALL, rounds=4)
    options = {**SMALL["dataset_options"], "test": 150}
    other = run(**{**SMALL, "dataset_options": options}, rounds=4)
    assert without_clock(base.rounds) == without_clock(other.rounds)
    assert base.summary["accuracy_by_server"] != other.summary["accuracy_by_server"]


def test_a_leaking_run_is_marked():
    result = run(**SMALL, rounds=2, method="hat-dfed-released")
    assert result.summary["leaks_test"] is True
    assert result.rounds[-1]["avg_accuracy"] == pytest.approx(result.summary["avg_accuracy"])
    assert run(**SMALL, rounds=1).summary["leaks_test"] is False


def test_a_comparison_pairs_seeds_and_gives_a_row_for_each_method():
    comparison = hatdfed.compare(["rnd", "local"], seeds=[3, 5], rounds=2, **SMALL)
    assert [row["method"] for row in comparison.summary] == ["rnd", "local"]
    assert [result.config.seed for result in comparison.runs["local"]] == [3, 5]
    assert comparison.summary[1]["link_energy_mj"] == 0
    training = [[r.summary["energy_by_cause_mj"]["training"] for r in runs] for runs in comparison.runs.values()]
    assert training[0] == training[1], "a seed is a world: the same data came"


def test_a_comparison_in_processes_gives_the_same_figures(tmp_path):
    plain = hatdfed.compare(["rnd", "local"], seeds=2, rounds=2, **SMALL)
    spread = hatdfed.compare(["rnd", "local"], seeds=2, rounds=2, jobs=2, out=tmp_path, **SMALL)
    for row in (*plain.summary, *spread.summary):
        row.pop("seconds"), row.pop("seconds_sd")
    assert spread.summary == plain.summary
    assert (tmp_path / "rnd-seed1" / "results.json").exists()


def test_an_empty_comparison_is_refused():
    with pytest.raises(ConfigError, match="at least one method"):
        hatdfed.compare([])


def test_importing_hatdfed_and_its_coordinator_needs_no_torch():
    code = (
        "import sys; sys.modules['torch'] = None; import hatdfed, hatdfed.core.coordinator, hatdfed.core.loop, "
        "hatdfed.setup.build.coordinator, hatdfed.runs.records.folder, "
        "hatdfed.runs.records.checkpoint, hatdfed.cli.app; "
        "print(hatdfed.METHODS['rnd'].name)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "rnd"


def test_a_run_in_which_nobody_trained_says_why():
    away = run(**SMALL, rounds=2, supply={"battery_joules": 0})
    assert any(
        "No server trained in any of the 2 rounds: all of them were away" in note for note in away.summary["notes"]
    )
    poor = run(**SMALL, rounds=2, budget_joules=1e-6)
    assert any("budget_joules does not cover a single training" in note for note in poor.summary["notes"])
