"""Morph: a fixed number of senders for each server, one of which is exchanged now and then for a less similar one.

B. Cox, A. Ioannou, J. Decouchant. Dynamic topology optimization for non-IID data in decentralized learning. 2026,
arXiv 2602.03383. The opposite bet to DAC's: different models have more to teach. Who a server has not met is judged
through others; only measured similarities are passed on here, whereas the authors' code passes estimates on as well.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from hatdfed.core.links import BoolMatrix, FloatMatrix
from hatdfed.core.policies.base import Feedback, Policy, PolicyContext, certain
from hatdfed.core.policies.similarity import draw_senders
from hatdfed.core.round import LinkDraw
from hatdfed.errors import ConfigError


class MorphState(NamedTuple):
    """Who hears whom, and how alike their models were."""

    senders: BoolMatrix  # [N, N] links of the last round; an empty row has not chosen yet
    similarity: FloatMatrix  # [N, N] as last measured, nan where never


@dataclass(frozen=True)
class Morph(Policy):
    """Exchanges similar senders for dissimilar ones, one at a time."""

    name: ClassVar[str] = "morph"

    degree: int = 2  # senders of a server
    change_every: int = 1  # rounds between exchanges
    sharpness: float = 1.0  # β: 0 exchanges at random

    uses_budget: ClassVar[bool] = False
    needs_scores: ClassVar[frozenset[str]] = frozenset({"similarity"})

    def __post_init__(self) -> None:
        if self.degree < 1:
            raise ConfigError(f"policy.degree is {self.degree}, but must be at least 1.")
        if self.change_every < 1:
            raise ConfigError(f"policy.change_every is {self.change_every}, but must be at least 1.")
        if not 0 <= self.sharpness < math.inf:
            raise ConfigError(f"policy.sharpness is {self.sharpness}, but must be a number of at least 0.")

    def init(self, num_servers: int) -> MorphState:
        """Nothing chosen, nothing known."""
        shape = (num_servers, num_servers)
        return MorphState(np.zeros(shape, dtype=bool), np.full(shape, np.nan))

    def grow(self, state: MorphState, num_servers: int) -> MorphState:
        """New servers have yet to choose; the others may come to exchange a sender for one of them."""
        new = (0, num_servers - len(state.senders))
        similarity = np.pad(state.similarity, (new, new), constant_values=np.nan)
        return MorphState(np.pad(state.senders, (new, new)), similarity)

    def propose(self, state: MorphState, context: PolicyContext, rng: np.random.Generator) -> LinkDraw:
        """The senders of the last round, one of them exchanged; random ones for places that are free.

        No probability is divided by later, so the draw is reported as certain.
        """
        possible = context.links.to_dense(context.possible)
        kept = state.senders & possible
        links = draw_senders(np.where(kept, np.inf, 0.0), possible, self.degree, rng)
        if context.t % self.change_every == 0:
            settled = (links == kept).all(axis=1)  # whoever just chose has not yet heard its senders
            links = np.where(settled[:, None], self._exchange(links, state.similarity, possible, rng), links)
        return certain(context.links, context.links.from_dense(links))

    def update(self, state: MorphState, draw: LinkDraw, feedback: Feedback, context: PolicyContext) -> MorphState:
        """Remember who was chosen and how similar those were that came."""
        similarity = context.links.to_dense(feedback.report.scores("similarity", context.links), np.nan)
        measured = np.where(np.isnan(similarity), state.similarity, similarity)
        return MorphState(draw.topology.links.copy(), measured)

    def _exchange(
        self, links: BoolMatrix, measured: FloatMatrix, possible: BoolMatrix, rng: np.random.Generator
    ) -> BoolMatrix:
        """One sender less by softmax(+β·sim), one more by softmax(−β·sim) of those that were none before."""
        preference = self.sharpness * estimate_similarity(measured)
        added = draw_senders(-preference, possible & ~links, 1, rng)
        dropped = draw_senders(preference, links, 1, rng)
        able = added.any(axis=1, keepdims=True) & dropped.any(axis=1, keepdims=True)
        return np.where(able, links & ~dropped | added, links)


def estimate_similarity(measured: FloatMatrix) -> FloatMatrix:  # [N, N], nan where unknown -> [N, N] without nan
    """Complete the similarities of servers: as measured, else through servers in between, else a server's mean, else 0.

    Through those in between means the average of sim(i, y)·sim(y, z) over all y where both factors were measured.
    """
    known = ~np.isnan(measured)
    value = np.where(known, measured, 0.0)
    num_between = known.astype(np.float64) @ known
    through_others = value @ value / np.maximum(num_between, 1)
    average = value.sum(axis=1, keepdims=True) / np.maximum(known.sum(axis=1, keepdims=True), 1)
    return np.where(known, value, np.where(num_between > 0, through_others, average))
