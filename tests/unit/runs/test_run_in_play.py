"""A run folder belongs to the command that plays its run, until that ends."""

import pytest
from tests.small_runs import SMALL

from hatdfed.errors import RunFolderError
from hatdfed.runs.calls import resume, run
from hatdfed.runs.play import Job, play
from hatdfed.runs.records.folder import RunFolder
from hatdfed.runs.records.lock import locked_folder
from hatdfed.setup.build.placement import Placement
from hatdfed.setup.layers import resolve
from hatdfed.sweeps.catalogue import prepare_to_resume


@pytest.mark.parametrize("every", [0, 1])
def test_a_run_in_play_is_left_to_the_command_that_plays_it(tmp_path, every):
    settings = {**SMALL, "rounds": 5, "checkpoint_every": every}
    refusals = []

    def meddle(config, record):
        for start in (lambda: resume(tmp_path / "run"), lambda: run(**settings, out=tmp_path / "run")):
            with pytest.raises(RunFolderError, match="Another command is writing into") as caught:
                start()
            refusals.append(caught)

    run(**settings, out=tmp_path / "run", on_round=meddle)
    assert len(refusals) == 10
    assert [row["t"] for row in RunFolder(tmp_path / "run").read_rounds()] == list(range(5))


def test_a_run_in_play_is_not_cleared_away_by_another_that_wants_its_folder(tmp_path):
    def meddle(config, record):
        with pytest.raises(RunFolderError, match="Another command is writing into"):
            prepare_to_resume(Job(config, tmp_path / "run"))

    run(**{**SMALL, "rounds": 2}, checkpoint_every=0, out=tmp_path / "run", on_round=meddle)
    assert len(RunFolder(tmp_path / "run").read_rounds()) == 2


def test_runs_of_one_batch_have_a_lock_each_and_give_it_back(tmp_path):
    jobs = [Job(resolve({**SMALL, "rounds": 2, "seed": seed}), tmp_path / str(seed)) for seed in range(3)]
    play(jobs, Placement())
    longer = [job._replace(config=job.config.model_copy(update={"rounds": 3}), resumed=True) for job in jobs]
    assert [result.summary["rounds"] for result in play(longer, Placement())] == [3, 3, 3]


def test_a_run_in_use_keeps_the_others_of_its_batch_untouched(tmp_path):
    jobs = [Job(resolve({**SMALL, "rounds": 2, "seed": seed}), tmp_path / str(seed)) for seed in range(2)]
    with locked_folder(tmp_path / "1", "--out"), pytest.raises(RunFolderError, match="Another command"):
        play(jobs, Placement())
    assert not (tmp_path / "0" / "config.yaml").exists()
