"""When links are spent: any policy, in every m-th round only, within a budget of joules, with a consensus at the end.

A schedule stands around a policy and decides for each round whether it is *silent* (no link), *spoken* (the policy
draws) or part of the *finish* (every link). The policy sees spoken rounds only, numbered without gaps.

`budget_joules` is a hard limit on the link joules of a run. A round may spend what the rounds so far have earned, an
equal share each, less what was spent; what the finish takes is put aside, and it gets as many rounds as half of the
budget can pay. A policy that draws as many links as it is told is told the largest number whose dearest choice is
affordable: the number shrinks before the draw, so its probabilities stay exact. One that knows its own number is silent
until the dearest choice that it might make is affordable, whatever it has drawn: were only dear draws dropped, its
probabilities would not be what they say. Links of a sender that did not report count at the worst they can cost. Where
a run has a budget for everything (`hatdfed.core.run_budget`), a round's allowance of it is a limit in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from hatdfed.core.beliefs import Beliefs
from hatdfed.core.energy.energy_model import Cause
from hatdfed.core.links import FloatColumn, Indices, LinkTable
from hatdfed.core.policies.base import (
    AnyPolicy,
    Feedback,
    PolicyContext,
    certain,
    find_beliefs,
    share_equally,
    silence,
    with_candidates,
)
from hatdfed.core.round import LinkDraw
from hatdfed.errors import ConfigError


class ScheduleState(NamedTuple):
    """What the policy has learned, and what all links have cost so far."""

    inner: Any
    spent: float  # J


@dataclass(frozen=True)
class Scheduled:
    """A policy with a schedule around it."""

    policy: AnyPolicy
    every: int = 1  # m: rounds from one spoken round to the next
    finish_rounds: int = 0  # at the end, with every link
    budget_joules: float | None = None
    message_share: float = 1.0  # what a message takes of a float32 model, which is what prices are for
    attempts: int = 1  # how often a model may be sent along a link in a round, at worst

    def __post_init__(self) -> None:
        if self.every < 1 or self.finish_rounds < 0 or self.attempts < 1:
            raise ConfigError("A schedule needs every ≥ 1, finish_rounds ≥ 0 and at least one attempt.")
        if self.budget_joules is not None and not 0 <= self.budget_joules < math.inf:
            raise ConfigError(f"schedule.budget_joules is {self.budget_joules}, but must be a number, at least 0.")

    @property
    def uses_budget(self) -> bool:
        """As its policy."""
        return self.policy.uses_budget

    @property
    def plans_mixing(self) -> bool:
        """As its policy."""
        return self.policy.plans_mixing

    @property
    def needs_scores(self) -> frozenset[str]:
        """As its policy."""
        return self.policy.needs_scores

    @property
    def takes_candidates(self) -> bool:
        """As its policy."""
        return getattr(self.policy, "takes_candidates", False)

    def init(self, num_servers: int) -> ScheduleState:
        """Nothing spent."""
        return ScheduleState(self.policy.init(num_servers), 0.0)

    def grow(self, state: ScheduleState, num_servers: int) -> ScheduleState:
        """The policy grows; what is spent is spent."""
        return state._replace(inner=self.policy.grow(state.inner, num_servers))

    def propose(self, state: ScheduleState, context: PolicyContext, rng: np.random.Generator) -> LinkDraw:
        """Silence, the policy's draw, or every link."""
        if self._is_finish(context):
            return self._all_links(state, context) if self._can_finish(state, context) else self._silence(context)
        if not self._is_spoken(context.t):
            return self._silence(context)
        allowed = self._allowance(state, context)
        inner = self._inner(context)
        if self.policy.uses_budget:
            budget = min(context.budget, self._affordable_links(allowed, context))
            inner = inner._replace(budget=budget)
            return self.policy.propose(state.inner, inner, rng) if budget else self._silence(context)
        draw = self.policy.propose(state.inner, inner, rng)
        return draw if self._worst_cost(draw, context) <= allowed else self._silence(context)

    def update(self, state: ScheduleState, draw: LinkDraw, feedback: Feedback, context: PolicyContext) -> ScheduleState:
        """Count the joules; the policy learns from what it drew itself."""
        report, senders = feedback.report, draw.topology.pairs[:, 1]
        link = math.fsum([row.joules for row in report.told_energy if row.cause is Cause.LINK])
        unknown = self._cost(draw.places[~report.reported[senders]], context)
        state = state._replace(spent=state.spent + link + unknown)
        if self._is_finish(context) or not self._is_spoken(context.t):
            return state
        if not draw.topology.num_links and not getattr(self.policy, "learns_in_silence", False):
            return state
        return state._replace(inner=self.policy.update(state.inner, draw, feedback, self._inner(context)))

    def beliefs(self, before: ScheduleState, after: ScheduleState, context: PolicyContext) -> Beliefs | None:
        """As its policy."""
        return find_beliefs(self.policy, before.inner, after.inner, self._inner(context))

    def init_for(self, links: LinkTable) -> ScheduleState:
        """As its policy; nothing spent."""
        return ScheduleState(with_candidates(self.policy).init_for(links), 0.0)

    def preference(self, state: ScheduleState, context: PolicyContext) -> FloatColumn:
        """As its policy."""
        return with_candidates(self.policy).preference(state.inner, self._inner(context))

    def swap_candidates(self, state: ScheduleState, carry: Callable[[FloatColumn], FloatColumn]) -> ScheduleState:
        """As its policy; what is spent is spent."""
        return state._replace(inner=with_candidates(self.policy).swap_candidates(state.inner, carry))

    def _is_finish(self, context: PolicyContext) -> bool:
        return context.horizon - self._finish_rounds(context) <= context.t < context.horizon

    def _finish_rounds(self, context: PolicyContext) -> int:
        """As many as were asked for and half of the budget can pay; one, if all of it can."""
        if self.budget_joules is None or (cost := self._cost_of_all(context)) == 0:
            return self.finish_rounds
        return min(self.finish_rounds, max(int(self.budget_joules / 2 / cost), int(self.budget_joules >= cost)))

    def _can_finish(self, state: ScheduleState, context: PolicyContext) -> bool:
        """Whether all links are affordable; servers may have come since the finish was planned."""
        left = math.inf if self.budget_joules is None else self.budget_joules - state.spent
        return self._cost_of_all(context) <= min(left, context.allowance)

    def _is_spoken(self, t: int) -> bool:
        return t % self.every == self.every - 1

    def _inner(self, context: PolicyContext) -> PolicyContext:
        """The policy's own time: spoken rounds only."""
        return context._replace(t=context.t // self.every, horizon=max(1, context.horizon // self.every))

    def _cost_of_all(self, context: PolicyContext) -> float:
        return self._cost(np.flatnonzero(context.possible), context)

    def _cost(self, places: Indices, context: PolicyContext) -> float:
        """Joules of the links at these places, at worst."""
        return self.attempts * self.message_share * math.fsum(context.prices[places])

    def _worst_cost(self, draw: LinkDraw, context: PolicyContext) -> float:
        """Joules of the dearest links that might have been drawn, as many as were: the same for every such draw."""
        if self.budget_joules is None and context.allowance == math.inf:
            return 0.0
        might = np.flatnonzero(draw.propensity > 0)
        dearest = might[np.argsort(-context.prices[might])]
        return self._cost(dearest[: math.ceil(draw.propensity.sum() - 1e-6)], context)

    def _allowance(self, state: ScheduleState, context: PolicyContext) -> float:
        """What this round may spend."""
        if self.budget_joules is None:
            return context.allowance
        finish = self._finish_rounds(context)
        regular = self.budget_joules - finish * self._cost_of_all(context)
        spoken = max(1, (context.horizon - finish) // self.every)
        return min(context.allowance, regular * min(1.0, (context.t // self.every + 1) / spoken) - state.spent)

    def _affordable_links(self, allowed: float, context: PolicyContext) -> int:
        """The largest number of links whose dearest choice costs no more."""
        if allowed == math.inf:
            return int(np.count_nonzero(context.possible))
        dearest = np.sort(context.prices[context.possible])[::-1]
        costs = self.attempts * self.message_share * np.cumsum(dearest)
        return int(np.searchsorted(costs, allowed, side="right"))

    def _silence(self, context: PolicyContext) -> LinkDraw:
        return silence(context, plans_mixing=self.plans_mixing)

    def _all_links(self, state: ScheduleState, context: PolicyContext) -> LinkDraw:
        """All links that the policy wants; where a plan is wanted, all models of an inbox weigh the same."""
        finish = getattr(self.policy, "finish", None)  # a policy of a user's own need not have it
        possible = context.possible if finish is None else finish(state.inner, context)
        mixing = share_equally(context.links, possible) if self.plans_mixing else None
        return certain(context.links, possible, mixing)
