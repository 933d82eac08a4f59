"""PENS: try random peers for a while, then stay with those that did well on one's own data.

N. Onoszko, G. Karlsson, O. Mogren, E. Listo Zec. Decentralized federated learning of deep neural networks on non-iid
data. FL-ICML 2021, arXiv 2107.08517. Made for the aggregator `best-by-samples` with the same `best`, which keeps the
models with the lowest loss: a weight above 0 in the merge is how the policy learns who was kept. In the second phase
the authors pull as many models as in the first; here only as many as the aggregator would keep.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.links import BoolMatrix
from hatdfed.core.policies.base import Feedback, Policy, PolicyContext, certain
from hatdfed.core.policies.similarity import draw_senders
from hatdfed.core.round import LinkDraw
from hatdfed.errors import ConfigError


class PensState(NamedTuple):
    """What the first phase showed."""

    selected: NDArray[np.int64]  # [N, N] rounds in which a model was kept in the merge
    rounds: NDArray[np.int64]  # [N] rounds of the first phase that the server reported on


@dataclass(frozen=True)
class Pens(Policy):
    """Random senders first, then those that were kept more often than by chance."""

    name: ClassVar[str] = "pens"

    sampled: int = 3  # senders of a server in the first phase
    best: int = 2  # of which are kept; senders of a server in the second phase
    first_phase: float = 0.25  # share of the horizon

    uses_budget: ClassVar[bool] = False
    needs_scores: ClassVar[frozenset[str]] = frozenset({"loss"})

    def __post_init__(self) -> None:
        if not 1 <= self.best <= self.sampled:
            raise ConfigError(
                f"policy.best is {self.best} and policy.sampled is {self.sampled}, "
                "but best must be at least 1 and at most sampled."
            )
        if not 0 < self.first_phase <= 1:
            raise ConfigError(f"policy.first_phase is {self.first_phase}, but must be above 0 and at most 1.")

    def init(self, num_servers: int) -> PensState:
        """Nobody was kept yet."""
        return PensState(np.zeros((num_servers, num_servers), dtype=np.int64), np.zeros(num_servers, dtype=np.int64))

    def grow(self, state: PensState, num_servers: int) -> PensState:
        """Whoever joins after the first phase has no neighbours and is nobody's neighbour."""
        new = (0, num_servers - len(state.rounds))
        return PensState(np.pad(state.selected, (new, new)), np.pad(state.rounds, new))

    def propose(self, state: PensState, context: PolicyContext, rng: np.random.Generator) -> LinkDraw:
        """Random peers, later random neighbours; a server without neighbours hears nobody.

        No probability is divided by later, so the draw is reported as certain.
        """
        possible, count = context.links.to_dense(context.possible), self.sampled
        if not self._is_first_phase(context):
            possible, count = possible & find_neighbours(state, self.best), self.best
        drawn = draw_senders(np.zeros(possible.shape), possible, count, rng)
        return certain(context.links, context.links.from_dense(drawn))

    def update(self, state: PensState, draw: LinkDraw, feedback: Feedback, context: PolicyContext) -> PensState:
        """Count who was kept, in the first phase only."""
        if not self._is_first_phase(context):
            return state
        report = feedback.report
        kept = report.importance(context.links) > 0  # nan, where nothing came, is not above 0
        selected = state.selected + context.links.to_dense(kept)
        return PensState(selected, state.rounds + (report.reported & context.active))

    def _is_first_phase(self, context: PolicyContext) -> bool:
        return context.t < self.first_phase * context.horizon


def find_neighbours(state: PensState, best: int) -> BoolMatrix:  # -> [N, N]
    """Find whose model was kept in more than best / N of the server's rounds, whether it was asked for or not.

    In whole numbers, because best / N·rounds as a float can fall on the wrong side of a count that equals it.
    """
    return state.selected * len(state.rounds) > best * state.rounds[:, None]
