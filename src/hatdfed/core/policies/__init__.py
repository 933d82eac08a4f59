"""Ways to draw the links of a round, by name."""

from __future__ import annotations

import dataclasses

from hatdfed.core.policies.base import AnyPolicy
from hatdfed.core.policies.base_2 import Base2Graph
from hatdfed.core.policies.baselines import AllLinks, NoLinks, RandomLinks
from hatdfed.core.policies.cheapest import CheapestLinks
from hatdfed.core.policies.epidemic import EpidemicLocal, EpidemicOracle
from hatdfed.core.policies.exponential import ExponentialGraph
from hatdfed.core.policies.greedy import EpsilonGreedy, HindsightOracle, UpperConfidence
from hatdfed.core.policies.link_bandit import LinkBandit
from hatdfed.core.policies.morph import Morph
from hatdfed.core.policies.pens import Pens
from hatdfed.core.policies.priced_links import BalancedLinks, PricedLinks
from hatdfed.core.policies.ring import Ring
from hatdfed.core.policies.similarity import SimilarityLinks
from hatdfed.registry import Registry

_BUILT_IN: dict[str, type[AnyPolicy]] = {
    "link-bandit": LinkBandit,
    "epsilon-greedy": EpsilonGreedy,
    "upper-confidence": UpperConfidence,
    "hindsight-oracle": HindsightOracle,
    "priced-links": PricedLinks,
    "balanced-links": BalancedLinks,
    "random-links": RandomLinks,
    "cheapest-links": CheapestLinks,
    "ring": Ring,
    "exponential-graph": ExponentialGraph,
    "base-2-graph": Base2Graph,
    "epidemic-local": EpidemicLocal,
    "epidemic-oracle": EpidemicOracle,
    "similarity-links": SimilarityLinks,
    "morph": Morph,
    "pens": Pens,
    "no-links": NoLinks,
    "all-links": AllLinks,
}

POLICIES: Registry[type[AnyPolicy]] = Registry(
    "hatdfed.policies",
    _BUILT_IN,
    wanted="a dataclass with the methods of TopologyPolicy",
    fits=lambda thing: dataclasses.is_dataclass(thing) and hasattr(thing, "propose"),
)
