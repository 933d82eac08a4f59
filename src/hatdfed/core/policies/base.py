"""The plug point of phase I: how the links of a round are drawn, and what is learned from them.

A policy is a frozen dataclass; its fields are its settings. What it learns is a *state*, a value that goes in and comes
out, so that a run can be resumed, replayed and moved to another machine. To add one: write a file with these four
methods in this package and give the class a `name`; in a package of your own, an entry point names it.

Links come as columns: `context.possible`, `context.prices` and `feedback.utility` have one value for each link of
`context.links`, and a draw is made of such columns. A policy that thinks in matrices makes them with one function and
goes back with another:

    possible = context.links.to_dense(context.possible)  # [N, N], row receives
    ...
    return certain(context.links, context.links.from_dense(drawn))
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.beliefs import Beliefs
from hatdfed.core.links import BoolColumn, FloatColumn, LinkTable, Topology
from hatdfed.core.round import LinkDraw, RoundReport

S = TypeVar("S")


class PolicyContext(NamedTuple):
    """What a policy may know before it draws."""

    t: int
    horizon: int  # K, rounds that the run was started for
    budget: int  # links to draw, no more than are possible
    links: LinkTable  # that are considered; columns [E] are about them
    prices: FloatColumn  # [E] joules of sending a whole float32 model along each link
    active: NDArray[np.bool_]  # [N] servers that take part
    reachable: BoolColumn  # [E] links that the network can carry
    allowance: float = math.inf  # joules that the round's links may cost, where a run has a budget for everything

    @property
    def possible(self) -> BoolColumn:
        """[E] links that can be drawn: both ends take part, and the network can carry it."""
        if self.active.all():
            return self.reachable.copy()
        return self.reachable & self.links.at_receivers(self.active) & self.links.at_senders(self.active)


class Feedback(NamedTuple):
    """What a policy learns from after a round."""

    report: RoundReport
    utility: FloatColumn  # [E] Eq. (9) for every link that is considered


class TopologyPolicy(Protocol[S]):
    """Draws the links of a round and learns from what they brought."""

    uses_budget: ClassVar[bool]  # whether it draws `context.budget` links, or knows its own number
    plans_mixing: ClassVar[bool]  # whether its draws say how much each model weighs in a merge
    needs_scores: ClassVar[frozenset[str]]  # what receivers must find out about each model: "loss", "similarity"

    def init(self, num_servers: int) -> S:
        """The state before the first round, in which all links are considered."""

    def grow(self, state: S, num_servers: int) -> S:
        """The state after servers joined at the end of the numbering; nobody's knowledge is lost."""

    def propose(self, state: S, context: PolicyContext, rng: np.random.Generator) -> LinkDraw:
        """Draw the links of round `context.t`."""

    def update(self, state: S, draw: LinkDraw, feedback: Feedback, context: PolicyContext) -> S:
        """The state after the round in which `draw` was played."""


AnyPolicy = TopologyPolicy[Any]


class CandidatePolicy(Protocol):
    """What is asked of a policy, besides, where every server considers a few candidates only."""

    def init_for(self, links: LinkTable) -> Any:
        """The state before the first round, in which these links are considered."""

    def preference(self, state: Any, context: PolicyContext) -> FloatColumn:  # -> [E]
        """How much it wants each link: candidates with the least preference are swapped for others."""

    def swap_candidates(self, state: Any, carry: Callable[[FloatColumn], FloatColumn]) -> Any:
        """The state for new candidates; `carry` makes a column for them out of one for the old."""


def find_beliefs(policy: AnyPolicy, before: Any, after: Any, context: PolicyContext) -> Beliefs | None:
    """What a policy believes after a round; a policy of a user's own need not say."""
    find = getattr(policy, "beliefs", None)
    return None if find is None else cast("Beliefs | None", find(before, after, context))


def with_candidates(policy: AnyPolicy) -> CandidatePolicy:
    """A policy that `takes_candidates`, seen as one."""
    return cast("CandidatePolicy", policy)


class Policy:
    """What most policies have in common, to inherit from or not."""

    uses_budget: ClassVar[bool] = True
    plans_mixing: ClassVar[bool] = False
    needs_scores: ClassVar[frozenset[str]] = frozenset()
    learns_in_silence: ClassVar[bool] = False  # whether it learns from rounds in which it drew no link
    takes_candidates: ClassVar[bool] = False  # whether it works on any links, not only on all; then the rest counts

    def finish(self, state: Any, context: PolicyContext) -> BoolColumn:  # -> [E]
        """The links of a finish (`Scheduled`): all that are possible, unless it says."""
        return context.possible

    def beliefs(self, before: Any, after: Any, context: PolicyContext) -> Beliefs | None:
        """What it believes after a round that turned one state into another; None: nothing worth recording."""
        return None

    @abstractmethod
    def init(self, num_servers: int) -> Any:
        """The state before the first round."""
        raise NotImplementedError

    def init_for(self, links: LinkTable) -> Any:
        """As `CandidatePolicy`; for a policy whose state does not depend on them."""
        return self.init(links.num_servers)

    def preference(self, state: Any, context: PolicyContext) -> FloatColumn:  # -> [E]
        """As `CandidatePolicy`: all are the same to it, unless it says."""
        return np.zeros(len(context.links))

    def swap_candidates(self, state: Any, carry: Callable[[FloatColumn], FloatColumn]) -> Any:
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
    links: LinkTable, drawn: BoolColumn, propensity: FloatColumn, mixing: FloatColumn | None = None
) -> LinkDraw:
    """A draw from `links`: which of them, [E], and the probability that each of them had, [E].

    Nobody can overwrite its probabilities: they are copied, unless nobody can as they are. `mixing` [E] says how much
    each received model weighs in a merge, for a policy that plans it; the receiver's own model has the rest.
    """
    for column in (drawn, propensity) if mixing is None else (drawn, propensity, mixing):
        if column.shape != (len(links),):
            raise ValueError(
                f"a draw has one value for each of {len(links)} links, not {column.shape}; "
                "`links.from_dense` makes a column of a matrix"
            )
    topology = Topology.from_pairs(links.num_servers, links.pairs(np.flatnonzero(drawn)))
    return LinkDraw(topology, links, _read_only(propensity), None if mixing is None else _read_only(mixing))


def certain(links: LinkTable, drawn: BoolColumn, mixing: FloatColumn | None = None) -> LinkDraw:
    """A draw without chance: the given links, each with probability 1."""
    return make_draw(links, drawn, drawn.astype(np.float64), mixing)


def share_equally(links: LinkTable, merged: BoolColumn) -> FloatColumn:  # [E] -> [E]
    """A plan in which the own model and those along these links weigh the same, and all others nothing."""
    inboxes = links.by_receiver(merged)
    mixing: FloatColumn = (inboxes / (1 + inboxes.sum(axis=1, keepdims=True))).reshape(-1)
    return mixing


def silence(context: PolicyContext, *, plans_mixing: bool) -> LinkDraw:
    """A draw without links; where a plan is wanted, everybody keeps the own model."""
    nothing = np.zeros(len(context.links))
    return certain(context.links, nothing > 0, nothing if plans_mixing else None)


def _read_only(values: FloatColumn) -> FloatColumn:
    if values.flags.writeable or not values.flags.owndata:
        values = np.array(values, dtype=np.float64)
        values.setflags(write=False)
    return values
