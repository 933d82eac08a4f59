"""A topology policy of your own: every server hears next whom it has not heard for longest.

Run this file to compare it with random links, give it to pytest to hold it to the laws of all policies. `add` makes it
known to this process. A package makes it known to every command, by these lines in its pyproject.toml:

    [project.entry-points."hatdfed.policies"]
    least-recently-heard = "my_package.policy:LeastRecentlyHeard"
    [project.entry-points."hatdfed.methods"]
    least-recently-heard = "my_package.policy:METHOD"
"""

import argparse
from collections import namedtuple
from dataclasses import dataclass

import numpy as np

import hatdfed
from hatdfed.core.drawing.budgeted import dependent_rounding
from hatdfed.core.links import LinkTable
from hatdfed.core.policies import POLICIES
from hatdfed.core.policies.base import Policy, make_draw
from hatdfed.setup.methods import METHODS, Method
from hatdfed.testing import TopologyPolicyLaws

NAME = "least-recently-heard"
METHOD = Method(NAME, "Whom one has not heard for longest", {**METHODS["rnd"].settings, "policy": {"name": NAME}})
Silence = namedtuple("Silence", "rounds")  # [E] since each link carried a model; survives a checkpoint


@dataclass(frozen=True)
class LeastRecentlyHeard(Policy):
    """Draws the links that have been silent for longest; chance decides between equals."""

    def init(self, num_servers):
        """All are equal at first."""
        return Silence(np.zeros(len(LinkTable.all_of(num_servers))))

    def grow(self, state, num_servers):
        """Whoever joins is heard soon."""
        return Silence(LinkTable.all_of(num_servers).grow(state.rounds, fill=state.rounds.max()))

    def propose(self, state, context, rng):
        """Above a threshold links are sure; those on it share what is left of the budget."""
        silence = np.where(context.possible, state.rounds, -1)
        threshold = np.sort(silence)[-context.budget]
        sure, equal = silence > threshold, silence == threshold
        propensity = sure + equal * (context.budget - sure.sum()) / equal.sum()
        return make_draw(context.links, dependent_rounding(propensity, rng), propensity)

    def update(self, state, draw, feedback, context):
        """What arrived was heard."""
        return Silence(np.where(feedback.report.delivered(context.links), 0.0, state.rounds + 1))


class TestLeastRecentlyHeard(TopologyPolicyLaws):
    """The laws that ship with hatdfed."""

    policy = LeastRecentlyHeard  # called for every law


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Least recently heard against random links, on digits.")
    parser.add_argument("--rounds", type=int, default=20)
    POLICIES.add(NAME, LeastRecentlyHeard)
    METHODS.add(NAME, METHOD)
    print(f"{'method':20}  {'accuracy':15}  link energy")
    for row in hatdfed.compare(["rnd", NAME], seeds=2, rounds=parser.parse_args().rounds).summary:
        accuracy, deviation, joules = row["avg_accuracy"], row["avg_accuracy_sd"], 1e6 * row["link_energy_mj"]
        print(f"{row['method']:20}  {accuracy:4.1f} ± {deviation:4.1f} %    {joules:.0f} J")
