"""Any module in the stacked fleet, lifted or looped over, against mailboxes, which play one server at a time."""

from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (the usual name)
from tests.alone import run_alone
from tests.parity.same_rounds import assert_same_rounds
from torch import nn

from hatdfed.core.task import NEXT_TOKEN, TaskKind
from hatdfed.data.datasets import load_dataset
from hatdfed.data.datasets.base import Examples, make_dataset
from hatdfed.fleets.mailbox import MailboxFleet
from hatdfed.fleets.stacked.choose_model import choose_model
from hatdfed.fleets.stacked.fleet import StackedFleet
from hatdfed.fleets.stacked.lifted import LiftedModel, Lifting
from hatdfed.fleets.stacked.looped import LoopedModel
from hatdfed.fleets.stacked.rows import Execution, RunServers
from hatdfed.fleets.stacked.trial import measure_memory, try_lifting
from hatdfed.server.networks import NETWORKS
from hatdfed.setup.build.program import initial_seed, make_actors
from hatdfed.setup.build.world import make_world
from hatdfed.setup.layers import resolve

CPU = torch.device("cpu")
IMAGES = load_dataset("synthetic", options={"train": 400, "validation": 80, "test": 30})


def sequences(kind, *, length=6, count=300):
    """Series of three features whose mean tells the class, or token ids that count upwards."""
    rng, groups = np.random.default_rng(0), np.arange(count - 100) % 5
    if kind == "tokens":
        first = rng.integers(0, 7, size=(count, 1))
        tokens = (first + np.arange(length + 1)) % 7
        task, x, y = TaskKind(NEXT_TOKEN, 7), tokens[:, :-1], tokens[:, 1:]
    else:
        y = rng.integers(0, 4, size=count)
        task, x = TaskKind("classification", 4), rng.normal(y[:, None, None], 1, size=(count, length, 3))
    parts = [Examples(x[part].copy(), y[part].copy()) for part in (slice(0, -100), slice(-100, -40), slice(-40, None))]
    return make_dataset(kind, train=parts[0], validation=parts[1], test=parts[2], task=task, groups=groups)


class BatchNormResidual(nn.Module):
    """Batch norm over batches of different sizes, inside a connection around it, and dropout behind it."""

    def __init__(self, shape, num_classes):
        super().__init__()
        self.first = nn.Conv2d(shape[0], 8, 3, padding=1, bias=False)  # batch norm would cancel it
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(8)
        self.dropout = nn.Dropout(0.25)
        self.readout = nn.Linear(8, num_classes)

    def forward(self, x):
        x = F.relu(self.norm(self.first(x)))
        x = x + F.relu(self.second_norm(self.second(x)))
        return self.readout(self.dropout(x.mean(dim=(2, 3))))


class Encoder(nn.Module):
    """Torch's own attention, which has a fast path in evaluation that cannot be lifted."""

    def __init__(self, shape, num_classes):
        super().__init__()
        self.embedding = nn.Linear(shape[-1], 16)
        self.encoder = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.readout = nn.Linear(16, num_classes)

    def forward(self, x):
        return self.readout(self.encoder(self.embedding(x.flatten(1, -2))).mean(dim=1))


def dropping(shape, num_classes):
    layers = [nn.Linear(64, 20), nn.Tanh(), nn.Dropout(0.3), nn.LayerNorm(20), nn.Dropout(0.1)]
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(20, num_classes))


OWN = {"batch-norm-residual": BatchNormResidual, "encoder": Encoder, "dropping": dropping}
CASES = {
    "mlp": IMAGES,
    "lenet-group-norm": IMAGES,
    "resnet-18-group-norm": IMAGES,
    "vit-tiny": IMAGES,
    "lstm": sequences("series"),
    "decoder": sequences("tokens"),
    **dict.fromkeys(OWN, IMAGES),
}
LARGE = {"resnet-18-group-norm", "vit-tiny", "decoder"}  # they take long: few servers and rounds
# Adam divides gradients by their size, so rounding errors of gradients that are almost 0 become steps. These networks
# have enough of them for that to show.
PLAIN_STEPS = LARGE | {"lenet-group-norm"}


@pytest.fixture(autouse=True)
def _own_networks(monkeypatch):
    for name, maker in OWN.items():
        monkeypatch.setitem(NETWORKS.built_in, name, maker)


def settings(network, method="hat-dfed", **more):
    sizes = {"servers": 5, "rounds": 3}
    if network in LARGE:
        sizes = {"servers": 2, "rounds": 2, "samples_per_round": 8}
    if network in PLAIN_STEPS:
        sizes["learner"] = {"optimiser": "sgd"}
    world = {"split": "labels" if CASES[network] is IMAGES else "groups", "device_online_probability": 0.3}
    fixed = {"dataset": "synthetic", "network": network, "validation_images": 40, "images_per_server": 40}
    return resolve({"method": method, **fixed, **world, **sizes, **more})


def lifted(learner, pool, lifting=Lifting()):  # noqa: B008 (a frozen value)
    trial = try_lifting(learner, pool, CPU)
    assert trial.lifts, trial.reason
    sample = measure_memory(learner, pool, CPU).sample
    return LiftedModel(learner, CPU, sample, "", pads=trial.pads, lifting=lifting)


def looped(learner, pool):
    memory = measure_memory(learner, pool, CPU)
    return LoopedModel(learner, CPU, memory.sample, "", channels_last=memory.channels_last)


def simulation(config, make_model=None):
    dataset = CASES[config.network]
    coordinator, program = make_actors(config, dataset)
    world, seeds = make_world(config, dataset), [initial_seed(config, i) for i in range(config.servers)]
    if make_model is None:
        return coordinator, MailboxFleet(
            program, world.sources, coordinator.prices, world.test, initial_seeds=seeds, codec_name=config.codec
        )
    model = make_model(program.learner, world.sources[0].pool)
    member = RunServers(program, world.sources, coordinator.prices, seeds, world.test)
    return coordinator, StackedFleet([member], Execution(CPU, 3, 4), model).fleets[0]


def played(coordinator, fleet, rounds):
    records = []
    run_alone(coordinator, fleet, rounds=rounds, sinks=[lambda _, record: records.append(record)])
    return records


def answers(config, models):
    dataset = CASES[config.network]
    learner, pool = make_actors(config, dataset)[1].learner, make_world(config, dataset).test.data
    return torch.stack([learner.logits(model, pool.x) for model in models])


@pytest.mark.parametrize("network", CASES)
def test_lifted_and_looped_play_the_rounds_of_mailboxes(network):
    config = settings(network)
    coordinator, boxes = simulation(config)
    expected = played(coordinator, boxes, config.rounds)
    reference = answers(config, boxes.models)
    assert float((boxes.models - torch.stack([boxes._program.learner.init(s) for s in boxes._initial_seeds])).norm())
    for make_model in (lifted, looped):
        coordinator, fleet = simulation(config, make_model)
        assert_same_rounds(played(coordinator, fleet, config.rounds), expected)
        torch.testing.assert_close(answers(config, fleet.models), reference, rtol=0, atol=1e-5)


@pytest.mark.parametrize("form", ["unfolded", "each", "channels_last"])
@pytest.mark.parametrize("network", ["lenet-group-norm", "batch-norm-residual"])
def test_lifted_convolutions_of_any_form_play_the_rounds_of_mailboxes(network, form):
    config = settings(network, learner={"optimiser": "sgd"})  # these forms add in another order, see LARGE
    coordinator, boxes = simulation(config)
    expected = played(coordinator, boxes, config.rounds)
    coordinator, fleet = simulation(config, partial(lifted, lifting=Lifting(convolutions=form)))
    assert_same_rounds(played(coordinator, fleet, config.rounds), expected)
    torch.testing.assert_close(answers(config, fleet.models), answers(config, boxes.models), rtol=0, atol=1e-5)


@pytest.mark.parametrize("method", ["sgp", "dac", "hat-dfed-plus", "morph"])
@pytest.mark.parametrize("make_model", [lifted, looped])
def test_methods_that_stretch_steps_shift_logits_and_compare_models(method, make_model):
    config = settings("batch-norm-residual", method, codec="float32", loss={"name": "label-prior"})
    expected = played(*simulation(config), config.rounds)
    assert_same_rounds(played(*simulation(config, make_model), config.rounds), expected)


@pytest.mark.parametrize(
    "optimiser",
    [
        {"optimiser": "sgd", "momentum": 0.9},
        {"optimiser": "sgd"},
        {"optimiser": "SGD", "momentum": 0.9, "optimiser_settings": {"nesterov": True, "weight_decay": 0.01}},
        {"optimiser": "AdamW", "optimiser_settings": {"weight_decay": 0.1, "amsgrad": True}},
        {"optimiser": "NAdam"},
        {"optimiser": "RMSprop", "momentum": 0.5, "optimiser_settings": {"centered": True}},
        {"optimiser": "Adagrad", "optimiser_settings": {"initial_accumulator_value": 0.1}},
    ],
    ids=lambda optimiser: "-".join(map(str, optimiser.values())),
)
@pytest.mark.parametrize("make_model", [lifted, looped])
def test_other_optimisers(optimiser, make_model):
    config = settings("dropping", learner=optimiser)
    expected = played(*simulation(config), config.rounds)
    assert_same_rounds(played(*simulation(config, make_model), config.rounds), expected)


def test_a_looped_server_is_trained_to_the_same_bits_as_with_mailboxes():
    config = settings("encoder", "local")
    (coordinator, boxes), (_, fleet) = simulation(config), simulation(config, looped)
    played(coordinator, boxes, config.rounds)
    played(coordinator, fleet, config.rounds)
    assert torch.equal(fleet.models, boxes.models)


@pytest.mark.parametrize("network", ["lstm", "decoder", "batch-norm-residual", "encoder"])
def test_models_that_are_evaluated_at_once_answer_as_one_by_one(network):
    config = settings(network)
    _, fleet = simulation(config, lifted)
    model, x = fleet.fleet.rows.model, make_world(config, CASES[network]).test.data.x
    alone = torch.stack([model.learner.logits(params, x) for params in fleet.models])
    torch.testing.assert_close(model.logits(fleet.models, x[None]), alone, rtol=1e-4, atol=1e-5)
    apart = torch.stack([x] * len(alone))
    torch.testing.assert_close(model.logits(fleet.models, apart), alone, rtol=1e-4, atol=1e-5)


def test_a_run_that_is_stopped_goes_on_to_the_same_bits():
    config = settings("lstm")
    coordinator, whole = simulation(config, choose)
    played(coordinator, whole, config.rounds)
    _, first = simulation(config, choose)
    state = run_alone(coordinator, first, rounds=1)
    _, second = simulation(config, choose)
    second.restore(first.snapshot())
    run_alone(coordinator, second, rounds=config.rounds, state=state)
    assert torch.equal(second.models, whole.models)


choose = partial(choose_model, device=CPU)
