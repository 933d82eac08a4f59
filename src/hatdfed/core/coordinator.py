"""The coordinator: phase I of every round, and what is learned between rounds (Algorithms 1 and 2).

It sees scalars only, needs numpy only, and does no I/O. Hyper-parameters are frozen; what changes is
`CoordinatorState`, a value that survives JSON.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.availability import Presence, present
from hatdfed.core.candidates import CandidateRule
from hatdfed.core.energy.ledger import Cause
from hatdfed.core.energy.prices import EnergyPrices
from hatdfed.core.links import FloatMatrix, Indices, all_links
from hatdfed.core.policies.base import AnyPolicy, Feedback, PolicyContext, silence, with_candidates
from hatdfed.core.round import LinkDraw, Regret, RoundPlan, RoundRecord, RoundReport
from hatdfed.core.utility import LinkUtility, RoundFacts
from hatdfed.randomness import stream

Vector = NDArray[np.float64]

_SAMPLE = 1 << 15


class CoordinatorState(NamedTuple):
    """Everything that the next round depends on."""

    t: int  # the next round to play
    policy: Any  # what the policy has learned
    accuracy: Vector  # [N] P_{k−1}, last known
    utility_sum: FloatMatrix  # [N, N or d] for the best fixed set of links
    utility_drawn: float  # Σ p·u so far
    utility_best: float  # Σ over rounds of that round's best links
    candidates: Indices | None = None  # [N, d] senders that every server considers; None: everybody
    links: int = 0  # drawn in every round that left a choice; 0 before the first, −1 where their number has changed


@dataclass(frozen=True, eq=False)
class Coordinator:
    """Draws each round's links and learns from the reports."""

    policy: AnyPolicy
    utility: LinkUtility
    prices: EnergyPrices
    seed: int
    horizon: int  # K, as of the first start
    budget: int  # links a round
    churn: float = 0.0  # chance of a server to be away, in a simulation
    candidates: CandidateRule | None = None  # None: everybody considers everybody
    _priced: _Priced = field(default_factory=lambda: _Priced(), init=False, repr=False)

    def start(self, accuracy: Vector) -> CoordinatorState:
        """The state before round 0; `accuracy` is that of the initial models, P_0 (D13)."""
        num_servers, accuracy = self.prices.num_servers, np.asarray(accuracy, float)
        if self.candidates is None:
            nothing = np.zeros((num_servers, num_servers))
            return CoordinatorState(0, self.policy.init(num_servers), accuracy, nothing, 0.0, 0.0)
        first = self.candidates.first(self.seed, num_servers)
        policy = with_candidates(self.policy).init_for(first)
        return CoordinatorState(0, policy, accuracy, np.zeros(first.shape), 0.0, 0.0, first)

    def grow(self, state: CoordinatorState, accuracy: Vector) -> CoordinatorState:
        """The state after servers joined at the end of the numbering; `accuracy` is that of their models."""
        num_servers, more = self.prices.num_servers, self.prices.num_servers - len(state.accuracy)
        return state._replace(
            policy=self.policy.grow(state.policy, num_servers),
            accuracy=np.concatenate([state.accuracy, np.asarray(accuracy, float)]),
            utility_sum=np.pad(state.utility_sum, (0, more)),
        )

    def plan(self, state: CoordinatorState, presence: Presence | None = None) -> RoundPlan:
        """Phase I: draw the links of round `state.t`; `presence` is what real machines show of themselves."""
        rng, context = stream(self.seed, "topology", state.t), self._context(state.t, presence, state.candidates)
        if not context.possible.any():
            return RoundPlan(state.t, silence(context, plans_mixing=self.policy.plans_mixing), presence)
        draw = self.policy.propose(state.policy, context, rng)
        drawn, size = draw.topology.num_servers, len(context.active)
        if drawn != size:  # a mistake in a policy of one's own, which would show far from here
            raise ValueError(f"the policy made a {drawn}x{drawn} draw for {size} servers")
        return RoundPlan(state.t, draw, presence)

    def learn(
        self, state: CoordinatorState, plan: RoundPlan, report: RoundReport
    ) -> tuple[CoordinatorState, RoundRecord]:
        """Turn the round's reports into utilities and let the policy learn from them."""
        context = self._context(plan.t, plan.presence, state.candidates)
        utility = self.utility(self._facts(state, plan, report, context))
        lost = ~report.arrived(plan.draw.topology) & report.reported[plan.draw.topology.pairs[:, 0]]
        utility.put(plan.draw.places[lost], 0.0)  # sent, never arrived
        policy_state = self.policy.update(state.policy, plan.draw, Feedback(report, utility), context)
        accuracy = np.where(report.reported, report.accuracy, state.accuracy)
        new_state = _compared(state, plan.draw, utility, context)._replace(
            t=plan.t + 1, policy=policy_state, accuracy=accuracy
        )
        record = RoundRecord(plan.t, plan.draw, report, utility, _regret(new_state))
        return self._exchanged(new_state, context), record

    def _exchanged(self, state: CoordinatorState, context: PolicyContext) -> CoordinatorState:
        """With some candidates exchanged, if it is time; `context` is that of the round before."""
        if self.candidates is None or state.candidates is None or not self.candidates.is_due(state.t):
            return state
        policy = with_candidates(self.policy)
        done = self.candidates.exchange(state.candidates, policy.liking(state.policy, context), self.seed, state.t)
        return state._replace(
            policy=policy.exchange(state.policy, done.carry),
            utility_sum=done.carry(state.utility_sum),
            candidates=done.candidates,
        )

    def _context(self, t: int, presence: Presence | None, candidates: Indices | None) -> PolicyContext:
        num_servers = self.prices.num_servers
        if presence is None:
            reachable = all_links(num_servers) if candidates is None else np.ones(candidates.shape, dtype=bool)
            presence = Presence(present(self.seed, t, num_servers, self.churn), reachable)
        return PolicyContext(
            t=t,
            horizon=self.horizon,
            budget=self.budget,
            prices=self.prices.link_joules if candidates is None else self._joules_of(candidates),
            active=presence.active,
            reachable=presence.reachable,
            candidates=candidates,
        )

    def _joules_of(self, candidates: Indices) -> FloatMatrix:  # [N, d] -> [N, d]
        if self._priced.candidates is not candidates:
            joules = self.prices.joules_of(np.arange(len(candidates))[:, None], candidates)
            self._priced.candidates, self._priced.joules = candidates, joules
        return self._priced.joules

    def _facts(
        self, state: CoordinatorState, plan: RoundPlan, report: RoundReport, context: PolicyContext
    ) -> RoundFacts:
        spent = {cause: np.zeros(self.prices.num_servers) for cause in Cause}
        for row in report.energy:
            spent[row.cause][row.receiver] += row.joules
        unknown = np.broadcast_to(np.nan, context.reachable.shape)
        return RoundFacts(
            gain=_or_usual(report.accuracy - state.accuracy, report.reported),
            upload_joules=_or_usual(spent[Cause.UPLOAD], report.reported),
            compute_joules=_or_usual(spent[Cause.TRAINING], report.reported),
            prices=self.prices,
            drawn=plan.draw.drawn,
            importance=self._importance(plan, report) if self.utility.reads_importance else unknown,
            possible=context.possible,
            candidates=context.candidates,
            candidate_joules=None if context.candidates is None else context.prices,
        )

    def _importance(self, plan: RoundPlan, report: RoundReport) -> FloatMatrix:
        if plan.draw.candidates is None:
            return report.importance
        importance = np.full(plan.draw.candidates.shape, np.nan)
        importance.put(plan.draw.places, report.weights(plan.draw.topology))
        return importance


def _compared(
    state: CoordinatorState, draw: LinkDraw, utility: FloatMatrix, context: PolicyContext
) -> CoordinatorState:
    """With this round in the sums behind the regret, if it left a choice: some links were drawn, but not all."""
    links = round(float(draw.propensity.sum()))
    if not 0 < links < np.count_nonzero(context.possible):
        return state
    return state._replace(
        utility_sum=state.utility_sum + utility,
        utility_drawn=state.utility_drawn + float(np.einsum("ij,ij->", draw.propensity, utility)),
        utility_best=state.utility_best + best_links_utility(utility, links),
        links=links if state.links in (0, links) else -1,
    )


def _regret(state: CoordinatorState) -> Regret:
    """Against the best fixed set there is none where the number of links has changed: sets of which size?"""
    fixed = best_links_utility(state.utility_sum, state.links) if state.links >= 0 else np.nan
    return Regret(fixed - state.utility_drawn, state.utility_best - state.utility_drawn)


def _or_usual(values: Vector, known: NDArray[np.bool_]) -> Vector:
    """With the mean of the others for a server that did not report: it sets neither end of anybody's scale."""
    return values if known.all() else np.where(known, values, values[known].mean() if known.any() else 0.0)


class _Priced:
    """Candidates and what their links cost, looked up once: they are the same for many rounds."""

    candidates: Indices | None = None
    joules: FloatMatrix


def best_links_utility(utility: FloatMatrix, links: int) -> float:
    """What the best `links` links are worth together.

    With equal weights the paper's P2 is "take the largest": selection solves it, no knapsack is needed (D14).
    """
    if links == 0:
        return 0.0
    values = _with_the_largest(utility.reshape(-1), links)
    return float(np.partition(values, len(values) - links)[-links:].sum())


def _with_the_largest(values: Vector, count: int) -> Vector:
    """Some of the values, the `count` largest among them; of very many, not many more than those.

    A sample tells above which value to look. If fewer than `count` are there, a lower one is tried.
    """
    sample = values[:: max(1, len(values) // _SAMPLE)]
    rank = 2 * count * len(sample) // len(values) + 32  # in the sample; twice what is expected, and some
    while len(values) > 2 * _SAMPLE and rank < len(sample) // 4:
        largest: Vector = values[values >= np.partition(sample, -rank)[-rank]]
        if len(largest) >= count:
            return largest
        rank *= 2
    return values


def links_in_budget(link_share: float, num_servers: int, considered: int | None = None) -> int:
    """γ·N(N−1) as a whole number of links, to the nearest and at least 1 (D11); γ·N·d where d are considered."""
    return max(1, round(link_share * num_servers * (considered or num_servers - 1)))
