"""A topology or training policy of a user's own: its errors name it, and its draws are checked before they are used."""

from __future__ import annotations

from functools import wraps
from typing import Any, Generic, TypeVar

import numpy as np

from hatdfed.core.policies.base import PolicyContext
from hatdfed.core.round import LinkDraw
from hatdfed.errors import ConfigError, naming_failures

P = TypeVar("P")


class OwnPolicy(Generic[P]):
    """The policy, with every method called by way of `naming_failures`."""

    def __init__(self, policy: P, whose: str) -> None:
        """`whose` is how errors call it, as in "policy 'mine'"."""
        self._policy, self._whose = policy, whose

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # also of a copy, which has no `_policy` yet
            raise AttributeError(name)
        found = getattr(self._policy, name)
        return self._named(name, found) if callable(found) else found

    def _named(self, name: str, method: Any) -> Any:
        @wraps(method)
        def call(*arguments: Any, **named: Any) -> Any:
            with naming_failures(f"{self._whose}: {name}"):
                return method(*arguments, **named)

        return call


class OwnTopologyPolicy(OwnPolicy[P]):
    """A topology policy whose draws are checked."""

    def propose(self, state: Any, context: PolicyContext, rng: np.random.Generator) -> LinkDraw:
        """Its draw, refused if it is none or could not be played."""
        draw = self._named("propose", self._policy.propose)(state, context, rng)  # type: ignore[attr-defined]
        if broken := find_broken_law(draw, context):
            raise ConfigError(f"{self._whose}: propose {broken}")
        return draw  # type: ignore[no-any-return]


def find_broken_law(draw: object, context: PolicyContext) -> str | None:
    """What a draw breaks of what `hatdfed.testing.TopologyPolicyLaws` demand, as the end of a sentence."""
    if not isinstance(draw, LinkDraw):
        return f"returned {type(draw).__name__}, but must return a LinkDraw: use make_draw or certain."
    if draw.links.num_servers != context.links.num_servers or len(draw.propensity) != len(context.links):
        return (
            f"made a draw for {draw.links.num_servers} servers and {len(draw.propensity)} links, but there are "
            f"{context.links.num_servers} and {len(context.links)}. Draw from context.links."
        )
    if not np.isfinite(draw.propensity).all() or (draw.propensity < 0).any() or (draw.propensity > 1 + 1e-9).any():
        return "gives a link a probability that is no number from 0 to 1."
    if (draw.propensity[draw.drawn] <= 0).any():
        return "drew a link to which it gave probability 0."
    if (draw.drawn & ~context.possible).any():
        return "drew a link that is not possible in this round. Draw from context.possible only."
    return None
