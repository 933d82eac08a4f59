"""A rule that breaks a law of merging is told which one, in every fleet alike, and costs nothing otherwise."""

from dataclasses import dataclass

import pytest
import torch
from tests.small_runs import SMALL

import hatdfed
from hatdfed.errors import ConfigError
from hatdfed.server.aggregation import AGGREGATORS, AveragingRule, Merged, Rule, Uniform, weighted
from hatdfed.server.merge_laws import check_rule


def shares(inbox):
    return inbox.present / inbox.present.sum()


class TwiceTooMuch(AveragingRule):
    """Weights that sum to 2."""

    def __call__(self, probe, inbox):
        return weighted(2 * shares(inbox), inbox)


class ReadsPadding(Rule):
    """A plain mean of everything in the inbox."""

    def __call__(self, probe, inbox):
        return Merged(inbox.models.mean(dim=0), shares(inbox), torch.ones((), dtype=torch.float64))


class Doubles(Rule):
    """Another dtype."""

    def __call__(self, probe, inbox):
        return weighted(shares(inbox), inbox)._replace(model=inbox.models[0].double())


class OneTooMany(Rule):
    """Another shape."""

    def __call__(self, probe, inbox):
        merged = weighted(shares(inbox), inbox)
        return merged._replace(model=torch.cat([merged.model, merged.model[:1]]))


class Below(AveragingRule):
    """A negative weight."""

    def __call__(self, probe, inbox):
        rest = inbox.present[1:].sum()
        is_own = torch.arange(len(inbox.present)) == 0
        return weighted(torch.where(is_own, 1 + rest, -inbox.present.float()), inbox)


class Overwrites(Rule):
    """The inbox is changed."""

    def __call__(self, probe, inbox):
        inbox.models[0] = 0
        return weighted(shares(inbox), inbox)


class OnlyModel(Rule):
    """No `Merged`."""

    def __call__(self, probe, inbox):
        return inbox.models[0]


class Fails(Rule):
    """An error of its own."""

    def __call__(self, probe, inbox):
        return inbox.model


BROKEN = {
    TwiceTooMuch: "weights that sum to 1, but they sum to 2",
    ReadsPadding: "reads no padding, but a slot that is not present changed the merged model",
    Doubles: "keeps the type of the models, torch.float32, but it returned torch.float64",
    OneTooMany: r"a model \[P\] and weights \[D\], here \[5\] and \[1\], but it returned \[6\] and \[1\]",
    Below: "weights of at least 0, but one is -1",
    Overwrites: "leaves the inbox as it is, but it wrote into it",
    OnlyModel: "returns Merged with three tensors, but it returned Tensor",
    Fails: r"cannot merge an inbox \(AttributeError: 'Inbox' object has no attribute 'model'\)",
}


@pytest.mark.parametrize("rule", BROKEN)
def test_a_rule_is_told_which_law_it_breaks(rule):
    with pytest.raises(ConfigError, match=f"The aggregator {rule.__name__} .*{BROKEN[rule]}") as caught:
        check_rule(rule())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", AGGREGATORS.built_in)
def test_rules_that_ship_with_hatdfed_pass(name):
    check_rule(AGGREGATORS[name]())


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setattr(AGGREGATORS, "_loaded", dict(AGGREGATORS._loaded))

    def add(rule):
        AGGREGATORS.add("mine", dataclass(frozen=True)(type(rule.__name__, (rule,), {})))

    return add


@pytest.mark.parametrize("fleet", ["stacked", "mailbox"])
def test_every_fleet_refuses_a_broken_rule_alike(registered, fleet):
    registered(TwiceTooMuch)
    with pytest.raises(ConfigError, match=r"TwiceTooMuch breaks a law of merging: .* they sum to 2"):
        hatdfed.run("full", **SMALL, aggregator={"name": "mine"}, fleet=fleet)


class SometimesTooMuch(AveragingRule):
    """Weights are right for made-up inboxes, which have at most 60 samples a model, and wrong in a run."""

    def __call__(self, probe, inbox):
        many = inbox.models.shape[-1] != 5
        return weighted(shares(inbox) * (1.5 if many else 1.0), inbox)


@pytest.mark.parametrize("fleet", ["stacked", "mailbox"])
def test_every_fleet_finds_a_law_that_is_broken_only_in_a_run(registered, fleet):
    registered(SometimesTooMuch)
    with pytest.raises(ConfigError, match=r"SometimesTooMuch breaks a law of merging: .* they sum to 1\.5"):
        hatdfed.run("full", **SMALL, aggregator={"name": "mine"}, fleet=fleet)


class Branches(AveragingRule):
    """Branches on values."""

    def __call__(self, probe, inbox):
        favour = 2 if inbox.present.sum() > 100 else 1
        return weighted(shares(inbox) * favour, inbox)


@pytest.mark.parametrize("fleet", ["stacked", "mailbox"])
def test_a_rule_that_cannot_be_vectorised_is_told_what_to_do_in_every_fleet(registered, fleet):
    registered(Branches)
    sentence = r"Branches inherits AveragingRule, but cannot be vectorised .* or inherit Rule"
    with pytest.raises(ConfigError, match=sentence):
        hatdfed.run("full", **SMALL, aggregator={"name": "mine"}, fleet=fleet)


def test_a_rule_of_ones_own_that_keeps_the_laws_is_played(registered):
    registered(Uniform)
    mine, ours = (hatdfed.run("full", **SMALL, aggregator={"name": name}) for name in ("mine", "uniform"))
    assert mine.summary["accuracy_by_server"] == ours.summary["accuracy_by_server"]
