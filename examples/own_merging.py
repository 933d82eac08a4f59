"""A merging rule and a local loss of your own: trust yourself a little more, and half of what your labels say.

Run this file to compare them with plain averaging, give it to pytest to hold the rule to the laws of all rules. `add`
makes both known to this process. A package makes them known to every command, by these lines in its pyproject.toml:

    [project.entry-points."hatdfed.aggregators"]
    own-first = "my_package.merging:OwnFirst"
    [project.entry-points."hatdfed.losses"]
    root-prior = "my_package.merging:RootPrior"
"""

import argparse
from dataclasses import dataclass

import torch

import hatdfed
from hatdfed.errors import ConfigError
from hatdfed.server.aggregation import AGGREGATORS, AveragingRule, weighted
from hatdfed.server.losses import LOSSES
from hatdfed.testing import AggregatorLaws


@dataclass(frozen=True)
class OwnFirst(AveragingRule):
    """The own model weighs `favour` times as much as each one that came; fields are settings."""

    favour: float = 2.0

    def __post_init__(self):
        """A wrong setting is refused before anything is played."""
        if self.favour < 0:
            raise ConfigError(f"aggregator.favour is {self.favour}, but must be at least 0.")

    def __call__(self, probe, inbox):
        """Weights of the models in the inbox, of which the own one is the first; they must sum to 1."""
        weights = inbox.present.to(torch.float64)
        weights[..., 0] *= self.favour
        alone = inbox.present / inbox.present.sum()
        return weighted(torch.where(weights.sum() > 0, weights / weights.sum().clamp(min=1e-9), alone), inbox)


@dataclass(frozen=True)
class RootPrior:
    """What is added to the logits while a server trains: here half of the logarithm of its label shares."""

    def offset(self, label_counts):
        """[..., labels] images of each label -> [..., labels] what their logits get."""
        smoothed = label_counts.to(torch.float32) + 1
        return 0.5 * torch.log(smoothed / smoothed.sum(dim=-1, keepdim=True))


class TestOwnFirst(AggregatorLaws):
    """The laws that ship with hatdfed."""

    aggregator = OwnFirst  # called for every law


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="An own merging rule and an own loss against plain ones, on digits.")
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    AGGREGATORS.add("own-first", OwnFirst)
    LOSSES.add("root-prior", RootPrior)
    for rule in ({"name": "uniform"}, {"name": "own-first", "favour": 2.0}):
        for loss in ("cross-entropy", "root-prior"):
            result = hatdfed.run(method="rnd", rounds=rounds, aggregator=rule, loss={"name": loss})
            print(f"{rule['name']:10}  {loss:14}  accuracy {result.summary['avg_accuracy']:4.1f} %")
