"""Test classes for plug points, to be inherited: a few lines check that a new component keeps its contract.

    class TestMyPolicy(TopologyPolicyLaws):
        def policy(self):
            return MyPolicy()

Every method whose name starts with `test_` is collected by pytest. `TopologyPolicyLaws` also has `sizes`, the numbers
of servers tried; those that a policy does not support must be refused with a `ConfigError` and listed in
`impossible_sizes`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hatdfed.testing.aggregators import AggregatorLaws
    from hatdfed.testing.codecs import CodecLaws
    from hatdfed.testing.datasets import DatasetLaws
    from hatdfed.testing.networks import NetworkLaws
    from hatdfed.testing.partitioners import PartitionerLaws
    from hatdfed.testing.policies import TopologyPolicyLaws, feedback_for, policy_context
    from hatdfed.testing.training import TrainingPolicyLaws, outcome_for, training_context

__all__ = [
    "AggregatorLaws",
    "CodecLaws",
    "DatasetLaws",
    "NetworkLaws",
    "PartitionerLaws",
    "TopologyPolicyLaws",
    "TrainingPolicyLaws",
    "feedback_for",
    "outcome_for",
    "policy_context",
    "training_context",
]

# Imported on first use, so that policies can be tested without torch.
_MODULES = {
    "AggregatorLaws": "aggregators",
    "CodecLaws": "codecs",
    "DatasetLaws": "datasets",
    "NetworkLaws": "networks",
    "PartitionerLaws": "partitioners",
    "TopologyPolicyLaws": "policies",
    "TrainingPolicyLaws": "training",
    "feedback_for": "policies",
    "outcome_for": "training",
    "policy_context": "policies",
    "training_context": "training",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'hatdfed.testing' has no attribute {name!r}")
    return getattr(importlib.import_module(f"hatdfed.testing.{_MODULES[name]}"), name)
