"""Every built-in policy passes the laws that ship with hatdfed."""

import pytest

from hatdfed.core.policies import POLICIES
from hatdfed.testing import TopologyPolicyLaws

IMPOSSIBLE = {"epidemic-oracle": (2,), "regular-graph": (2,)}


@pytest.mark.parametrize("name", POLICIES.built_in)
class TestBuiltInPolicies(TopologyPolicyLaws):
    @pytest.fixture(autouse=True)
    def _choose(self, name):
        self.name = name
        self.impossible_sizes = IMPOSSIBLE.get(name, ())

    def policy(self):
        return POLICIES[self.name]()


def test_the_policies_of_the_package_are_found_by_their_names():
    assert set(POLICIES.built_in) >= {
        "all-links", "balanced-links", "base-2-graph", "cheapest-links", "epidemic-local", "epidemic-oracle",
        "epsilon-greedy", "exponential-graph", "hindsight-oracle", "link-bandit", "morph", "no-links", "pens",
        "priced-links", "random-links", "regular-graph", "ring", "similarity-links", "upper-confidence",
    }  # fmt: skip
