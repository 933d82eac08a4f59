"""Policies, networks, losses, partitioners and callbacks of a user's own that do not work: one sentence names them."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

import hatdfed
from hatdfed.core.policies import POLICIES
from hatdfed.core.policies.base import Stateless, certain, make_draw
from hatdfed.core.training import TRAINING
from hatdfed.core.training.base import Stateless as StatelessTraining
from hatdfed.data.partitioners import PARTITIONERS
from hatdfed.errors import ConfigError, DataError
from hatdfed.server.losses import LOSSES
from hatdfed.server.networks import NETWORKS

SMALL = {
    "method": "rnd",
    "dataset": "synthetic",
    "dataset_options": {"train": 300, "validation": 60, "test": 30},
    "network": "linear",
    "servers": 3,
    "rounds": 2,
    "validation_images": 50,
}


def play_with(registry, monkeypatch, thing, **settings):
    """A short run with a thing that is known as `mine` for this test."""
    monkeypatch.setitem(registry._loaded, "mine", registry._check("mine", thing, "this test"))
    return hatdfed.run(SMALL, **settings)


def policy_that(proposes):
    @dataclass(frozen=True)
    class Mine(Stateless):
        def propose(self, state, context, rng):
            return proposes(context)

    return Mine


def give_every_link(context, probability):
    drawn = context.possible
    return make_draw(context.links, drawn, drawn * probability)


@pytest.mark.parametrize(
    ("proposes", "said"),
    [
        (
            lambda context: {}["speed"],
            r"policy 'mine': propose failed at line \d+ of test_wrong_own_things.py \(KeyError",
        ),
        (lambda context: None, "policy 'mine': propose returned NoneType, but must return a LinkDraw"),
        (lambda context: certain(context.links, np.ones(2, dtype=bool)), "one value for each of 6 links"),
        (lambda context: give_every_link(context, 2.0), "a probability that is no number from 0 to 1"),
        (lambda context: give_every_link(context, np.nan), "a probability that is no number from 0 to 1"),
        (lambda context: give_every_link(context, 0.0), "drew a link to which it gave probability 0"),
    ],
)
@pytest.mark.parametrize("schedule", [{}, {"every": 2}])
def test_a_policy_that_fails_or_draws_nonsense_is_named(monkeypatch, proposes, said, schedule):
    with pytest.raises(ConfigError, match=said):
        play_with(POLICIES, monkeypatch, policy_that(proposes), policy={"name": "mine"}, schedule=schedule)


def test_a_policy_that_draws_links_of_absent_servers_is_told_so(monkeypatch):
    draw_all = policy_that(lambda context: certain(context.links, np.ones(len(context.links), dtype=bool)))
    with pytest.raises(ConfigError, match="drew a link that is not possible in this round"):
        play_with(POLICIES, monkeypatch, draw_all, policy={"name": "mine"}, churn=0.5, rounds=60)


def test_a_policy_without_a_value_that_is_asked_for_is_refused_by_the_name_of_the_value(monkeypatch):
    @dataclass(frozen=True)
    class Bare:
        def init(self, num_servers):
            return ()

        grow = propose = update = init

    with pytest.raises(ConfigError, match="has no values 'uses_budget', 'plans_mixing'"):
        play_with(POLICIES, monkeypatch, Bare, policy={"name": "mine"})


def test_a_policy_that_works_plays_as_before(monkeypatch):
    full = policy_that(lambda context: certain(context.links, context.possible))
    full.uses_budget = False
    mine = play_with(POLICIES, monkeypatch, full, policy={"name": "mine"})
    assert [row["links"] for row in mine.rounds] == [6, 6]


def test_a_training_policy_that_fails_is_named(monkeypatch):
    @dataclass(frozen=True)
    class Mine(StatelessTraining):
        def propose(self, state, context, rng):
            raise RuntimeError("no idea")

        def find_most_passes(self, passes):
            return passes

    with pytest.raises(ConfigError, match=r"training 'mine': propose failed at line \d+ .*no idea"):
        play_with(TRAINING, monkeypatch, Mine, training={"name": "mine"})


def test_a_training_policy_without_a_method_is_refused_by_the_name_of_the_method():
    @dataclass(frozen=True)
    class Mine:
        def propose(self, state, context, rng):
            return None

    with pytest.raises(ConfigError, match="has no methods 'init', 'grow', 'find_most_passes', 'update'"):
        TRAINING._check("mine", Mine, "this test")


class Flat(nn.Module):
    def __init__(self, shape, outputs):
        super().__init__()
        self.head = nn.Linear(int(np.prod(shape)), outputs)

    def forward(self, x):
        return self.head(x.flatten(1))


def network_that(forward):
    return type("Mine", (Flat,), {"forward": forward})


def make_without_arguments():
    return Flat((1, 8, 8), 10)


@pytest.mark.parametrize(
    ("network", "said"),
    [
        (make_without_arguments, r"network 'mine', made for samples of shape .* failed \(TypeError"),
        (lambda shape, outputs: lambda x: x, "network 'mine' made function, but must make an nn.Module"),
        (
            lambda shape, outputs: nn.Sequential(nn.Flatten(), nn.LazyLinear(outputs)),
            "without a shape, such as 1.weight",
        ),
        (network_that(lambda self, x: self.head(x.flatten(1)).detach()), "network 'mine' cannot be trained"),
        (
            network_that(lambda self, x: self.head(x.flatten(1)).detach().numpy()),
            "gives out ndarray .* must give out a",
        ),
        (
            lambda shape, outputs: Flat(shape, outputs).double(),
            r"network 'mine' has head\.weight of type float64, but .* must be float32",
        ),
        (network_that(lambda self, x: (self.head(x.flatten(1)), x)), "gives out tuple .* must give out a tensor"),
    ],
)
@pytest.mark.parametrize("fleet", ["stacked", "mailbox"])
def test_a_network_that_cannot_be_made_or_trained_is_named(monkeypatch, network, said, fleet):
    with pytest.raises(ConfigError, match=said):
        play_with(NETWORKS, monkeypatch, network, network="mine", fleet=fleet)


class OnFrozenDoubles(Flat):
    """The same network behind a frozen layer of doubles."""

    def __init__(self, shape, outputs):
        super().__init__(shape, outputs)
        self.fixed = nn.Linear(int(np.prod(shape)), int(np.prod(shape))).double().requires_grad_(False)

    def forward(self, x):
        return self.head(self.fixed(x.flatten(1).double()).float())


def test_frozen_tensors_may_have_a_type_of_their_own(monkeypatch):
    assert len(play_with(NETWORKS, monkeypatch, OnFrozenDoubles, network="mine").rounds) == 2


@pytest.mark.parametrize(("network", "said"), [(Flat, "the class Flat"), (Flat((64,), 10), "an object of class Flat")])
def test_a_module_in_place_of_a_name_is_told_to_be_registered(network, said):
    with pytest.raises(ConfigError, match=rf"network is {said}, but must be a name\. Register .*NETWORKS\.add"):
        hatdfed.run(SMALL, network=network)


def test_a_component_given_by_its_name_alone_is_shown_as_a_section():
    with pytest.raises(ConfigError, match=r"as in aggregator: \{name: uniform\}\."):
        hatdfed.run(SMALL, aggregator="uniform")


@pytest.mark.parametrize(
    ("offset", "said"),
    [
        (lambda counts: counts["a"], r"loss 'mine': offset failed at line \d+"),
        (lambda counts: None, "offset returned NoneType, but must return a tensor"),
        (lambda counts: torch.zeros(3), "must return one finite number for each"),
        (lambda counts: torch.log(counts.float() * 0), "must return one finite number for each"),
    ],
)
@pytest.mark.parametrize("fleet", ["stacked", "mailbox"])
def test_a_loss_whose_offset_cannot_be_used_is_named(monkeypatch, offset, said, fleet):
    loss = dataclass(frozen=True)(type("Mine", (), {"offset": lambda self, counts: offset(counts)}))
    with pytest.raises(ConfigError, match=said):
        play_with(LOSSES, monkeypatch, loss, loss={"name": "mine"}, fleet=fleet)


@pytest.mark.parametrize(
    ("split", "said"),
    [
        (
            lambda samples: samples.no_such,
            r"split 'mine' failed at line \d+ of test_wrong_own_things.py \(AttributeError",
        ),
        (lambda samples: None, "split 'mine' returned NoneType, but must return a list"),
    ],
)
def test_a_partitioner_that_fails_is_named(monkeypatch, split, said):
    names = {"takes_amounts": False, "is_disjoint": True, "split": lambda self, samples, seed: split(samples)}
    with pytest.raises(ConfigError, match=said):
        play_with(PARTITIONERS, monkeypatch, dataclass(frozen=True)(type("Mine", (), names)), split="mine")


@pytest.mark.parametrize(
    ("callbacks", "said"),
    [
        (hatdfed.Callback(), r"must be a list, such as \[MyCallback\(\)\]"),
        ([hatdfed.Callback], r"has the class Callback, but must have objects: Callback\(\)"),
        ([print], "lacks on_round_end. Inherit hatdfed.Callback"),
    ],
)
def test_what_is_no_list_of_callbacks_is_refused_before_the_first_round(callbacks, said, tmp_path):
    with pytest.raises(ConfigError, match=said):
        hatdfed.run(SMALL, callbacks=callbacks, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_data_set_whose_item_cannot_be_read_is_told_which():
    class Broken:
        def __len__(self):
            return 30

        def __getitem__(self, place):
            if place == 7:
                raise OSError("disk")
            return np.zeros(3, dtype=np.float32), place % 2

    with pytest.raises(ConfigError, match=r"Item 7 of the data set Broken failed at line \d+ .*\(OSError: disk\)"):
        hatdfed.run(dataset=Broken())


def test_a_table_of_integers_is_told_to_be_converted():
    x, y = np.random.default_rng(0).integers(0, 16, (60, 8)), np.arange(60) % 3
    with pytest.raises(ConfigError, match=r"taken as token ids.* Convert a table of numbers, as with x\.astype"):
        hatdfed.run(dataset=(x, y))


@pytest.mark.parametrize(
    ("y", "said"), [(list("ab") * 30, r"numpy\.unique\(y, return_inverse=True\)"), ([None, 1] * 30, r"y\.astype")]
)
def test_labels_that_are_no_numbers_are_told_what_to_do(y, said):
    with pytest.raises(DataError, match=said):
        hatdfed.run(dataset=(np.zeros((60, 2), dtype=np.float32), np.array(y)))


@pytest.mark.parametrize("settings", [{"method": "my-method"}, {"dataset": "my-data"}])
def test_an_unknown_method_or_data_set_may_be_of_a_module_that_was_not_imported(settings):
    with pytest.raises(ConfigError, match=r"import its module first \(--import MODULE\)"):
        hatdfed.run(SMALL | settings)
