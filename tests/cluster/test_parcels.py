"""A run comes home as bytes: whole, checked, and in one step."""

import json

import pytest
from tests.small_runs import CPU, config

from hatdfed.errors import RunFolderError
from hatdfed.runs.play import Job, play
from hatdfed.sweeps.catalogue import is_finished, prepare_to_resume
from hatdfed.sweeps.executors import run_archive as parcels
from hatdfed.sweeps.executors.run_archive import deliver, lay_out, pack


@pytest.fixture(scope="module")
def parcel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("there") / "run"
    play([Job(config(), folder)], CPU)
    return pack(folder)


def test_a_run_is_the_same_after_its_journey(parcel, tmp_path):
    job = Job(config(), tmp_path / "runs" / "home")
    deliver(parcel, job, job.out)
    assert is_finished(job)
    assert sorted(path.name for path in job.out.parent.iterdir()) == ["home"]  # no trace of the work
    assert pack(job.out).keys() == parcel.keys()
    assert (job.out / "run.sqlite").read_bytes() == parcel["run.sqlite"]
    here, there = (json.loads(text) for text in ((job.out / "results.json").read_text(), parcel["results.json"]))
    assert here.pop("run_folder") == str(job.out)
    there.pop("run_folder")
    assert here == there


def test_a_half_played_run_is_replaced(parcel, tmp_path):
    job = Job(config(checkpoint_every=1), tmp_path / "home")

    def stop(config, record):
        if record.t == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play([job], CPU, on_round=stop)
    (job.out / "mine.txt").write_text("kept")
    assert prepare_to_resume(job).resumed
    deliver(parcel, job, job.out)
    assert is_finished(job)
    assert (job.out / "mine.txt").read_text() == "kept"
    assert (job.out / "checkpoint.safetensors").read_bytes() == parcel["checkpoint.safetensors"]


@pytest.mark.parametrize("after", range(5))
def test_wherever_the_journey_ends_the_run_is_done_or_can_be_played(parcel, tmp_path, monkeypatch, after):
    job = Job(config(checkpoint_every=1), tmp_path / "home")
    play([job], CPU)
    (job.out / "results.json").unlink()
    real, moved = parcels.Path.replace, []

    def interrupted(self, target):
        if target.parent == job.out:
            moved.append(target)
            if len(moved) > after:
                raise KeyboardInterrupt
        return real(self, target)

    monkeypatch.setattr(parcels.Path, "replace", interrupted)
    try:
        deliver(parcel, job, job.out)
    except KeyboardInterrupt:
        monkeypatch.undo()
        assert not is_finished(job)
        play([prepare_to_resume(job)], CPU)
    assert is_finished(job)
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"../../elsewhere": b"x"}, "which none has"),
        ({"run.sqlite": b"no database"}, "cannot be read"),
        ({"results.json": b"{"}, "cannot be read"),
        ({"results.json": None}, "not finished"),
        ({"config.yaml": b"servers: 9"}, "asked for"),
    ],
)
def test_what_is_not_the_run_is_refused_and_leaves_nothing(parcel, tmp_path, change, reason):
    job = Job(config(), tmp_path / "home")
    changed = {name: content for name, content in {**parcel, **change}.items() if content is not None}
    with pytest.raises(RunFolderError, match=reason):
        deliver(changed, job, job.out)
    assert list(tmp_path.iterdir()) == []


def test_a_run_with_other_settings_is_refused(parcel, tmp_path):
    job = Job(config(seed=7), tmp_path / "home")
    with pytest.raises(RunFolderError, match="seed"):
        deliver(parcel, job, job.out)
    assert not job.out.exists()


def test_a_run_without_all_its_rounds_is_refused(parcel, tmp_path):
    shorter = tmp_path / "shorter"
    play([Job(config(rounds=2), shorter)], CPU)
    job = Job(config(), tmp_path / "home")
    with pytest.raises(RunFolderError, match="2 of its 3 rounds"):
        deliver({**parcel, "run.sqlite": (shorter / "run.sqlite").read_bytes()}, job, job.out)


def test_a_half_played_run_can_travel(tmp_path):
    folder = tmp_path / "run"
    play([Job(config(checkpoint_every=1, rounds=2), folder)], CPU)
    lay_out(pack(folder), tmp_path / "there")
    result = play([Job(config(checkpoint_every=1, rounds=2), tmp_path / "there", resumed=True)], CPU)[0]
    assert len(result.rounds) == 2
