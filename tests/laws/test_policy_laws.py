"""Every built-in policy passes the laws that ship with hatdfed."""

import pytest

from hatdfed.core.policies import POLICIES
from hatdfed.testing import TopologyPolicyLaws

IMPOSSIBLE = {"epidemic-oracle": (2,)}


@pytest.mark.parametrize("name", POLICIES.built_in)
class TestBuiltInPolicies(TopologyPolicyLaws):
    @pytest.fixture(autouse=True)
    def _choose(self, name):
        self.name = name
        self.impossible_sizes = IMPOSSIBLE.get(name, ())

    def policy(self):
        return POLICIES[self.name]()
