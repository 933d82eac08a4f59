"""Which fleet, on which device, and whether it fits."""

import platform

import pytest
import torch
from torch import nn

import hatdfed
from hatdfed.core import loop
from hatdfed.data.datasets import load_dataset
from hatdfed.errors import ConfigError, HatdfedError
from hatdfed.fleets.stacked import memory
from hatdfed.fleets.stacked.choose_model import choose_model
from hatdfed.fleets.stacked.memory import Footprint, Sizes, compute_footprint, predicted_bytes
from hatdfed.fleets.stacked.rows import Execution
from hatdfed.runs.play import Job, play
from hatdfed.runs.process_memory import keep_freed_memory
from hatdfed.server.networks import NETWORKS
from hatdfed.setup.build.placement import Placement
from hatdfed.setup.build.program import make_program
from hatdfed.setup.build.simulation import make_batch
from hatdfed.setup.build.world import make_pools
from hatdfed.setup.layers import resolve

DATASET = load_dataset("synthetic", options={"train": 400, "validation": 100, "test": 30})
SMALL = {"dataset": "synthetic", "network": "linear", "servers": 3, "rounds": 1, "validation_images": 50}
WITHOUT_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")


def batch(*configs, fleet="auto", device="auto"):
    return make_batch(
        configs or [resolve(SMALL)], DATASET, Placement(fleet, device), names=["x"] * max(1, len(configs))
    )


@WITHOUT_GPU
def test_stacked_on_the_cpu_unless_told_otherwise():
    assert batch().placement == Placement("stacked", "cpu")
    assert batch(fleet="mailbox").placement == Placement("mailbox", "cpu")


def test_any_network_is_stacked_and_the_run_says_how(monkeypatch):
    def normed(shape, num_classes):
        size = shape[0] * shape[1] * shape[2]
        return nn.Sequential(nn.Flatten(), nn.LayerNorm(size), nn.Linear(size, num_classes))

    monkeypatch.setitem(NETWORKS.built_in, "normed", normed)
    config = resolve({**SMALL, "network": "normed"})
    assert batch(config, device="cpu").placement == Placement("stacked", "cpu")
    assert batch(config, fleet="mailbox").placement == Placement("mailbox", "cpu")
    result = hatdfed.run(config, device="cpu", dataset_options={"train": 400, "validation": 100})
    assert result.summary["computed_by"]["kernels"] == "lifted"
    (told,) = [note for note in result.summary["notes"] if note.startswith("Computed by")]
    assert told == (
        "Computed by the stacked fleet on cpu: lifted, because torch.vmap lifts it: every sample is treated by itself."
    )


@WITHOUT_GPU
def test_a_gpu_that_is_not_there_is_missed():
    with pytest.raises(ConfigError, match=r"torch finds no CUDA device here. Use --device cpu"):
        batch(device="cuda")


def test_unknown_names_are_refused():
    with pytest.raises(ConfigError, match="--fleet"):
        Placement("stakced")
    with pytest.raises(ConfigError, match="--device"):
        Placement(device="tpu")


def test_results_say_how_they_were_computed():
    result = hatdfed.run(**SMALL, fleet="mailbox", device="cpu", dataset_options={"train": 400, "validation": 100})
    assert result.summary["computed_by"] == {"fleet": "mailbox", "device": "cpu", "kernels": "one by one"}


def test_a_fleet_that_does_not_fit_is_refused_before_it_is_made(monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda device: 100_000)
    with pytest.raises(HatdfedError, match=r"3 servers need .* GB, but of .* About \d+ would fit"):
        batch()


def test_runs_that_do_not_fit_together_are_played_in_parts(monkeypatch):
    seen, fits = [], 450_000
    monkeypatch.setattr(memory, "free_memory", lambda device: fits)
    options = {"train": 400, "validation": 100, "test": 30}
    jobs = [Job(resolve({**SMALL, "dataset_options": options, "seed": seed})) for seed in range(6)]
    results = play(jobs, Placement("stacked", "cpu"), on_note=seen.append)
    assert [result.config.seed for result in results] == list(range(6))
    assert seen
    assert all("do not fit at once" in text for text in seen)


def run_out_of_memory(monkeypatch, most):
    """A GPU on which no more than `most` runs can be played together, which shows in the second round."""
    play_all = loop.run

    def run(runs, fleets):
        if len(runs) > most:
            play_all([each._replace(rounds=1) for each in runs], fleets)
            raise torch.OutOfMemoryError("CUDA out of memory")
        return play_all(runs, fleets)

    monkeypatch.setattr(loop, "run", run)


def test_runs_that_exhaust_the_memory_in_the_middle_are_played_again_in_parts(monkeypatch):
    options = {"train": 400, "validation": 100, "test": 30}
    jobs = [Job(resolve({**SMALL, "dataset_options": options, "seed": seed})) for seed in range(4)]
    expected = play(jobs, Placement("stacked", "cpu"))
    run_out_of_memory(monkeypatch, 2)
    seen = []
    results = play(jobs, Placement("stacked", "cpu"), on_note=seen.append)
    for result, wanted in zip(results, expected, strict=True):
        assert result.links == wanted.links
        assert [row["t"] for row in result.rounds] == [row["t"] for row in wanted.rounds]
        assert result.summary["accuracy_by_server"] == wanted.summary["accuracy_by_server"]
    assert seen
    assert "ran out of memory" in seen[0]


@pytest.mark.parametrize("number", [1, 2])
def test_a_single_run_and_runs_with_folders_that_exhaust_the_memory_fail(monkeypatch, tmp_path, number):
    run_out_of_memory(monkeypatch, 0)
    options = {"train": 400, "validation": 100, "test": 30}
    configs = [resolve({**SMALL, "dataset_options": options, "seed": seed}) for seed in range(number)]
    jobs = [Job(config, out=tmp_path / str(n) if number > 1 else None) for n, config in enumerate(configs)]
    with pytest.raises(torch.OutOfMemoryError):
        play(jobs, Placement("stacked", "cpu"))


def test_less_memory_means_less_at_once():
    program = make_program(resolve({**SMALL, "network": "small-cnn"}), DATASET)
    model = choose_model(program.learner, make_pools(DATASET).train, torch.device("cpu"))
    need = compute_footprint(program.learner, model.bytes_per_sample, Sizes(64, 100, 500))
    assert need.a_server == 4 * 4 * -(-program.learner.num_params // 64) * 64
    assert need.total(10, Execution(torch.device("cpu"), 10, 10)) > need.total(10, Execution(torch.device("cpu"), 1, 1))
    assert Footprint(1, 10, 100, 1000).total(3, Execution(torch.device("cpu"), 2, 2)) == 1000 + 3 + 200


def test_links_in_half_precision_take_a_copy_of_every_model():
    plain, half = (
        batch(resolve({**SMALL, "codec": codec}), device="cpu").fleets.rows for codec in ("float32", "float16")
    )
    row = 4 * -(-plain.model.num_params // 64) * 64
    assert predicted_bytes(half.members, half.how) - predicted_bytes(plain.members, plain.how) == 3 * row


def test_freed_memory_is_kept_where_the_c_library_can_do_that():
    assert keep_freed_memory() is (platform.libc_ver()[0] == "glibc")
