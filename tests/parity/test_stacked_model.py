"""A stacked fleet knows of its models what the protocol says: any other implementation plays the same rounds."""

from typing import NamedTuple

import pytest
import torch
from tests.alone import mailbox_simulation, run_alone
from tests.parity.same_rounds import assert_same_rounds
from torch import nn

from hatdfed.data.datasets import load_dataset
from hatdfed.fleets.stacked.fleet import StackedFleet
from hatdfed.fleets.stacked.model import BytesPerSample, Samples
from hatdfed.fleets.stacked.rows import Execution, RunServers
from hatdfed.server.learner import Learner
from hatdfed.server.networks import NETWORKS
from hatdfed.server.optimisers import OptimiserState
from hatdfed.server.work import Batch
from hatdfed.setup.build.program import initial_seed, make_actors
from hatdfed.setup.build.world import make_world
from hatdfed.setup.layers import resolve

DATASET = load_dataset("synthetic", options={"train": 400, "validation": 80, "test": 30})
CPU = torch.device("cpu")


class OneByOne(NamedTuple):
    """S models that are evaluated one after another."""

    learner: Learner
    params: torch.Tensor

    def rows(self, servers):
        return OneByOne(self.learner, self.params[servers])

    def logits(self, x, *, exact=True):
        samples = x.expand(len(self.params), *x.shape[1:])
        return torch.stack([self.learner.logits(*pair) for pair in zip(self.params, samples, strict=True)])


class PlainModel:
    """The slowest stacked form there can be, of any network."""

    kernels = "plain"
    reason = None
    bytes_per_sample = BytesPerSample(1, 1, 1)

    def __init__(self, learner):
        self.learner = learner
        self.num_params = learner.num_params

    def samples(self, batch):
        return Samples(batch.x, batch.y)

    def fit(self, models, pool, plans, scale, offsets):
        means = torch.full((len(plans),), torch.nan)
        for row, plan in enumerate(plans):
            losses = []
            state = OptimiserState(int(models.steps[row]), models.first[row], models.second[row])
            models.params[row], state = self.learner.fit(
                models.params[row],
                state,
                [Batch(pool.x[index], pool.y[index]) for index in plan.batches],
                seed=plan.seed,
                step_scale=scale[row],
                offset=offsets[row],
                on_loss=losses.append,
            )
            models.steps[row], models.first[row], models.second[row] = state
            means[row] = torch.stack(losses).mean() if losses else torch.nan
        return means

    def ready(self, params):
        return OneByOne(self.learner, params)

    def similarity(self, own, others):
        return torch.stack([self.learner.similarity(torch.stack(pair))[1] for pair in zip(own, others, strict=True)])


def normed(shape, num_classes):
    size = shape[0] * shape[1] * shape[2]
    return nn.Sequential(nn.Flatten(), nn.LayerNorm(size), nn.Linear(size, 12), nn.Tanh(), nn.Linear(12, num_classes))


@pytest.mark.parametrize("method", ["hat-dfed", "sgp", "dac", "morph"])
@pytest.mark.parametrize("codec", ["float32", "float16"])
def test_another_implementation_plays_the_rounds_of_mailboxes(monkeypatch, method, codec):
    monkeypatch.setitem(NETWORKS.built_in, "normed", normed)
    sizes = {"servers": 5, "rounds": 3, "validation_images": 60, "device_online_probability": 0.1}
    config = resolve({"method": method, "dataset": "synthetic", "network": "normed", "codec": codec, **sizes})
    coordinator, program = make_actors(config, DATASET)
    world = make_world(config, DATASET)
    seeds = [initial_seed(config, server) for server in range(config.servers)]
    member = RunServers(program, world.sources, coordinator.prices, seeds, world.test)
    (fleet,) = StackedFleet([member], Execution(CPU, 2, 3), PlainModel(program.learner)).fleets
    reference = mailbox_simulation(config, DATASET)
    mine, theirs = [], []
    run_alone(coordinator, fleet, rounds=3, sinks=[lambda _, record: mine.append(record)])
    run_alone(*reference, rounds=3, sinks=[lambda _, record: theirs.append(record)])
    assert_same_rounds(mine, theirs)
    torch.testing.assert_close(fleet.models, reference.fleet.models, rtol=0, atol=1e-5)
    assert fleet.computed_by["kernels"] == "plain"
