"""Ways to draw the links of a round, by name; one file each."""

from __future__ import annotations

from hatdfed.policies.base import AnyPolicy
from hatdfed.policies.bounds import AllLinks, NoLinks
from hatdfed.policies.link_bandit import LinkBandit
from hatdfed.policies.random_links import RandomLinks
from hatdfed.policies.ring import Ring
from hatdfed.registry import Registry

_BUILT_IN: dict[str, type[AnyPolicy]] = {
    "link-bandit": LinkBandit,
    "random-links": RandomLinks,
    "ring": Ring,
    "no-links": NoLinks,
    "all-links": AllLinks,
}

POLICIES: Registry[type[AnyPolicy]] = Registry("hatdfed.policies", _BUILT_IN)
