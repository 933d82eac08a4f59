"""A private run on real edges: noise that nobody can repeat, and every trained round counted before it is trained."""

import json

import pytest
import torch
from safetensors import safe_open
from tests.deploy.deployment import Deployment, settings
from typer.testing import CliRunner

from hatdfed.cli.app import app
from hatdfed.data.own.function import UserSource
from hatdfed.data.own.source import SlowMachine
from hatdfed.deploy.edge.private_rounds import FILE, PrivateRounds
from hatdfed.deploy.edge.setup import make_edge_setup, refuse_uncounted
from hatdfed.errors import ConfigError, RunFolderError
from hatdfed.runs.privacy_loss import compute_epsilon
from hatdfed.server.work import Batch

PRIVATE = {"network": "linear", "privacy": {"clip": 1.0, "noise": 4.0}}


async def private_run(folder):
    async with Deployment(folder, settings(**PRIVATE), secure=False) as deployment:
        await deployment.start_edges(3)
        return await deployment.run


def test_a_deployment_tells_the_epsilon_of_every_edge(play, tmp_path, one_thread):
    summary = play(private_run(tmp_path))
    expected = compute_epsilon(2 * 4, 4.0, 1e-5)
    assert summary["privacy"]["rounds_trained_by_server"] == [4, 4, 4]
    assert summary["privacy"]["epsilon_by_server"] == [expected] * 3
    model = tmp_path / "model.safetensors"
    done = CliRunner().invoke(
        app, ["export", str(tmp_path / "stores" / "edge-1"), "--config", str(tmp_path / "run"), "--out", str(model)]
    )
    assert done.exit_code == 0, done.output
    with safe_open(model, framework="pt") as file:
        assert json.loads(file.metadata()["privacy"])["epsilon"] == expected


def test_two_edges_with_the_same_settings_draw_other_noise():
    config = settings(**PRIVATE)
    one, other = (make_edge_setup(config, 0) for _ in range(2))
    work, server = one.source.work(0), one.program.start(one.initial_seed)
    trained = [setup.program.train(server, work, 0).params for setup in (one, other)]
    assert not torch.equal(*trained)


def test_rounds_are_counted_by_run_and_survive_a_restart(tmp_path):
    counted = PrivateRounds(tmp_path)
    assert counted.read("run") == 0
    for _ in range(3):
        counted.add("run")
    counted.add("other")
    assert (PrivateRounds(tmp_path).read("run"), PrivateRounds(tmp_path).read("other")) == (3, 1)


@pytest.mark.parametrize("content", [b"", b"[1]", b'{"run": -1}', b'{"run": "3"}', b"\xff", b"[" * 100_000])
def test_damaged_counts_never_pass_for_none(tmp_path, content):
    (tmp_path / FILE).write_bytes(content)
    for use in (PrivateRounds(tmp_path).read, PrivateRounds(tmp_path).add):
        with pytest.raises(RunFolderError, match="nobody knows what this edge has given away"):
            use("run")


def test_a_source_that_chooses_its_own_batches_is_refused(tmp_path):
    class Own:
        validation = Batch(torch.zeros(1, 1, 8, 8), torch.zeros(1, dtype=torch.int64))

        def work(self, t, *_):
            raise NotImplementedError

    source = UserSource("my.camera:source", Own(), (1, 8, 8))
    for each in (source, SlowMachine(source, 0.5)):
        with pytest.raises(ConfigError, match=r"my\.camera:source chooses its batches itself"):
            refuse_uncounted("my.camera:source", each)
