"""The plug point of phase I: how the links of a round are drawn, and what is learned from them.

A policy is a frozen dataclass; its fields are its settings. What it learns is a *state*, a value that goes in and comes
out, so that a run can be resumed, replayed and moved to another machine. To add one: write a file with these four
methods and name it in `policies/__init__.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.links import BoolMatrix, FloatMatrix, Indices, Topology, all_links
from hatdfed.core.round import LinkDraw, RoundReport

S = TypeVar("S")


class PolicyContext(NamedTuple):
    """What a policy may know before it draws; tables of links are as in `LinkDraw`."""

    t: int
    horizon: int  # K, rounds that the run was started for
    budget: int  # links to draw
    prices: FloatMatrix  # [N, N or d] joules of sending a model along each link
    active: NDArray[np.bool_]  # [N] servers that take part
    reachable: BoolMatrix  # [N, N or d] links that the network can carry
    candidates: Indices | None = None  # [N, d] senders that every server considers; None: everybody

    @property
    def possible(self) -> BoolMatrix:
        """[N, N or d] links that can be drawn."""
        if self.candidates is not None:
            here: BoolMatrix = self.active[:, None] & self.active[self.candidates]
            return self.reachable & here
        possible = self.reachable & all_links(len(self.active))
        return possible if self.active.all() else possible & self.active[:, None] & self.active[None, :]


class Feedback(NamedTuple):
    """What a policy learns from after a round."""

    report: RoundReport
    utility: FloatMatrix  # [N, N or d] Eq. (9) for every link that is considered


class TopologyPolicy(Protocol[S]):
    """Draws the links of a round and learns from what they brought."""

    uses_budget: ClassVar[bool]  # whether it draws `context.budget` links, or knows its own number
    plans_mixing: ClassVar[bool]  # whether its draws say how much each model weighs in a merge
    needs_scores: ClassVar[frozenset[str]]  # what receivers must find out about each model: "loss", "similarity"

    def init(self, num_servers: int) -> S:
        """The state before the first round."""

    def grow(self, state: S, num_servers: int) -> S:
        """The state after servers joined at the end of the numbering; nobody's knowledge is lost."""

    def propose(self, state: S, context: PolicyContext, rng: np.random.Generator) -> LinkDraw:
        """Draw the links of round `context.t`."""

    def update(self, state: S, draw: LinkDraw, feedback: Feedback, context: PolicyContext) -> S:
        """The state after the round in which `draw` was played."""


AnyPolicy = TopologyPolicy[Any]


class CandidatePolicy(Protocol):
    """What is asked of a policy, besides, where every server considers d others only."""

    def init_for(self, candidates: Indices) -> Any:
        """The state before the first round, in which these are considered."""

    def liking(self, state: Any, context: PolicyContext) -> FloatMatrix:  # -> [N, d]
        """What it thinks of every candidate: those that it likes least are exchanged."""

    def exchange(self, state: Any, carry: Callable[[FloatMatrix], FloatMatrix]) -> Any:
        """The state for new candidates; `carry` makes a table for them out of one for the old."""


def with_candidates(policy: AnyPolicy) -> CandidatePolicy:
    """A policy that `takes_candidates`, seen as one."""
    return cast("CandidatePolicy", policy)


class Policy:
    """What most policies have in common, to inherit from or not."""

    uses_budget: ClassVar[bool] = True
    plans_mixing: ClassVar[bool] = False
    needs_scores: ClassVar[frozenset[str]] = frozenset()
    takes_candidates: ClassVar[bool] = False  # whether it also works on tables with d columns; then the rest counts

    def init_for(self, candidates: Indices) -> Any:
        """As `CandidatePolicy`; for a policy whose state does not depend on them."""
        return self.init(len(candidates))

    def init(self, num_servers: int) -> Any:
        """The state before the first round."""
        raise NotImplementedError

    def liking(self, state: Any, context: PolicyContext) -> FloatMatrix:  # -> [N, d]
        """As `CandidatePolicy`: all are the same to it, unless it says."""
        return np.zeros(context.prices.shape)

    def exchange(self, state: Any, carry: Callable[[FloatMatrix], FloatMatrix]) -> Any:
        """As `CandidatePolicy`: it knows nothing about single candidates, unless it says."""
        return state


class NoState(NamedTuple):
    """The state of a policy that learns nothing."""


class Stateless(Policy):
    """What a policy without memory does not need to write."""

    def init(self, num_servers: int) -> NoState:
        """Nothing to remember."""
        return NoState()

    def grow(self, state: NoState, num_servers: int) -> NoState:
        """Nothing to keep."""
        return state

    def update(self, state: NoState, draw: LinkDraw, feedback: Feedback, context: PolicyContext) -> NoState:
        """Nothing to learn."""
        return state


def make_draw(
    links: BoolMatrix,
    propensity: FloatMatrix,
    mixing: FloatMatrix | None = None,
    *,
    candidates: Indices | None = None,
) -> LinkDraw:
    """A draw whose probabilities nobody can overwrite: a copy, unless nobody can as it is."""
    if propensity.flags.writeable or not propensity.flags.owndata:
        propensity = np.array(propensity, dtype=np.float64)
        propensity.setflags(write=False)
    if mixing is not None:
        mixing = np.array(mixing, dtype=np.float64)
        mixing.setflags(write=False)
    if candidates is None:
        return LinkDraw(Topology(links), propensity, mixing)
    pairs = np.stack([np.nonzero(links)[0], candidates[links]], axis=1)
    return LinkDraw(Topology.from_pairs(len(links), pairs), propensity, mixing, candidates)


def silence(context: PolicyContext, *, plans_mixing: bool) -> LinkDraw:
    """A draw without links; where a plan is wanted, everybody keeps the own model."""
    mixing = np.eye(len(context.active)) if plans_mixing else None
    return certain(np.zeros_like(context.possible), mixing, candidates=context.candidates)


def certain(links: BoolMatrix, mixing: FloatMatrix | None = None, *, candidates: Indices | None = None) -> LinkDraw:
    """A draw without chance: the given links, each with probability 1."""
    return make_draw(links, links.astype(np.float64), mixing, candidates=candidates)
