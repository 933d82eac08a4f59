"""DAC: a server prefers the peers whose models do well on its own data, and asks friends about strangers.

E. Listo Zec, E. Ekblom, M. Willbo, O. Mogren, S. Girdzijauskas. Decentralized adaptive clustering of deep nets is
beneficial for client collaboration. FL-IJCAI 2022, arXiv 2206.08839. Similarity is 1 / loss. Servers act at the same
time here: all learn from what the others knew before the round, whereas the authors' code lets them act in turn. It
also computes the probabilities of a round with the temperature of the round before; here it is the round's own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from hatdfed.core.links import BoolMatrix, FloatMatrix
from hatdfed.core.policies.base import Feedback, Policy, PolicyContext, certain
from hatdfed.core.round import LinkDraw
from hatdfed.errors import ConfigError

_SMALLEST_LOSS = 1e-10  # keeps 1 / loss finite


class SimilarityState(NamedTuple):
    """What every server thinks of every other one."""

    similarity: FloatMatrix  # [N, N] s, 0 where nothing is known
    sampled: BoolMatrix  # [N, N] whose models the server has measured itself


@dataclass(frozen=True)
class SimilarityLinks(Policy):
    """Every server draws its senders by softmax of their similarity, more sharply as time goes on."""

    name: ClassVar[str] = "similarity-links"

    neighbours: int = 2  # senders of a server
    temperature: float = 30.0  # τ: how sharp the choice is in the end

    uses_budget: ClassVar[bool] = False
    needs_scores: ClassVar[frozenset[str]] = frozenset({"loss"})

    def __post_init__(self) -> None:
        if self.neighbours < 1:
            raise ConfigError(f"policy.neighbours is {self.neighbours}, but must be at least 1.")
        if not 0 <= self.temperature < math.inf:
            raise ConfigError(f"policy.temperature is {self.temperature}, but must be a number of at least 0.")

    def init(self, num_servers: int) -> SimilarityState:
        """The state before round 0: no similarity is known."""
        shape = (num_servers, num_servers)
        return SimilarityState(np.zeros(shape), np.zeros(shape, dtype=bool))

    def grow(self, state: SimilarityState, num_servers: int) -> SimilarityState:
        """Add servers of which no similarity is known."""
        new = (0, num_servers - len(state.similarity))
        return SimilarityState(np.pad(state.similarity, (new, new)), np.pad(state.sampled, (new, new)))

    def propose(self, state: SimilarityState, context: PolicyContext, rng: np.random.Generator) -> LinkDraw:
        """Distinct senders by softmax(τ_t·s); uniform for a server that knows nothing, because all its s are 0.

        DAC divides by no probability, so the draw is reported as certain.
        """
        log_weights = temperature_at(context.t, self.temperature) * state.similarity
        drawn = draw_senders(log_weights, context.links.to_dense(context.possible), self.neighbours, rng)
        return certain(context.links, context.links.from_dense(drawn))

    def update(
        self, state: SimilarityState, draw: LinkDraw, feedback: Feedback, context: PolicyContext
    ) -> SimilarityState:
        """Measured peers get 1 / loss; of the others one believes the most similar sender that knows them."""
        loss = context.links.to_dense(feedback.report.scores("loss", context.links), np.nan)
        heard = ~np.isnan(loss)
        similarity = np.where(heard, 1 / np.maximum(loss, _SMALLEST_LOSS), state.similarity)
        sampled = state.sampled | heard
        return SimilarityState(two_hop(similarity, state.similarity, heard, sampled), sampled)


def temperature_at(t: int, temperature: float) -> float:
    """τ_t = 1 + τ·tanh(t / 10): 1 in the first round, τ + 1 in the end."""
    return 1 + temperature * math.tanh(0.1 * t)


def two_hop(similarity: FloatMatrix, previous: FloatMatrix, heard: BoolMatrix, sampled: BoolMatrix) -> FloatMatrix:
    """`similarity`, where peers never sampled get what the most similar sender of this round thought of them before.

    The most similar one of those that know the peer at all; its number is copied as it is.
    """
    estimated = similarity.copy()
    for i in np.flatnonzero(heard.any(axis=1)):
        senders = np.flatnonzero(heard[i])
        nearest_first = senders[np.argsort(-similarity[i, senders], kind="stable")]
        opinions = previous[nearest_first]  # [senders, N]
        hearsay = np.take_along_axis(opinions, np.argmax(opinions > 0, axis=0)[None, :], axis=0)[0]
        stranger = ~sampled[i] & (hearsay > 0)
        stranger[i] = False
        estimated[i, stranger] = hearsay[stranger]
    return estimated


def draw_senders(
    log_weights: FloatMatrix, possible: BoolMatrix, count: int, rng: np.random.Generator
) -> BoolMatrix:  # [n, N], a row for each receiver
    """For each row, `count` distinct possible senders, or all there are, one after the other by softmax(log_weights).

    Gumbel top-k: the largest sums of log-weight and Gumbel noise have exactly that law. As nothing is exponentiated,
    nothing overflows, and a probability too small for a float is no obstacle to filling all places.
    """
    keys = np.where(possible, log_weights + rng.gumbel(size=possible.shape), -np.inf)
    count = min(count, keys.shape[1])
    largest = np.argpartition(keys, -count, axis=1)[:, -count:]
    links = np.zeros(possible.shape, dtype=bool)
    np.put_along_axis(links, largest, True, axis=1)
    return links & possible
