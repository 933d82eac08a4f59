"""The coordinator: phase I of every round, and what is learned between rounds (Algorithms 1 and 2).

It sees scalars only, needs numpy only, and does no I/O. Hyper-parameters are frozen; what changes is
`CoordinatorState`, a value that survives JSON.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.candidates import CandidateRule
from hatdfed.core.cross_check import find_contradictions
from hatdfed.core.effort import Effort, full_effort
from hatdfed.core.energy.energy_model import Cause, EnergyPrices
from hatdfed.core.links import FloatColumn, Indices, LinkTable
from hatdfed.core.policies.base import AnyPolicy, Feedback, PolicyContext, find_beliefs, silence, with_candidates
from hatdfed.core.regret import RegretSums
from hatdfed.core.report_check import ReportLimits, find_breaches, recompute_energy
from hatdfed.core.round import Caught, Presence, RoundPlan, RoundRecord, RoundReport, present
from hatdfed.core.timing.pace import Pace
from hatdfed.core.timing.round_time import RoundClock, RoundTime
from hatdfed.core.utility import LinkUtility, RoundFacts
from hatdfed.errors import RunFolderError
from hatdfed.jsonable import from_jsonable
from hatdfed.randomness import stream

Vector = NDArray[np.float64]


class CoordinatorState(NamedTuple):
    """Everything that the next round depends on."""

    t: int  # the next round to play
    policy: Any  # what the policy has learned
    accuracy: Vector  # [N] P_{k−1}, last known
    regret: RegretSums  # of the rounds so far
    candidates: Indices | None = None  # [N, d] senders that every server considers; None: everybody
    caught: tuple[Caught, ...] = ()  # who has no links any more
    busy: Vector | None = None  # [N] seconds of the next round that servers still train in; None: rounds have no end


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
    message_share: float = 1.0  # what a message takes of a float32 model
    limits: ReportLimits | None = None  # of what a report may say; None: reports are not checked
    clock: RoundClock | None = None  # None: nobody knows how fast the machines are
    pace: Pace | None = None  # of simulated servers; None: in every round everybody is waited for
    _last: _LastConsidered = field(default_factory=lambda: _LastConsidered(), init=False, repr=False)

    def start(self, accuracy: Vector) -> CoordinatorState:
        """The state before round 0; `accuracy` is that of the initial models, P_0 (D13)."""
        num_servers, accuracy = self.prices.num_servers, np.asarray(accuracy, float)
        busy = None if self.pace is None else self.pace.first_busy()
        if self.candidates is None:
            sums = RegretSums(np.zeros(len(LinkTable.all_of(num_servers))))
            return CoordinatorState(0, self.policy.init(num_servers), accuracy, sums, busy=busy)
        first = self.candidates.first(self.seed, num_servers)
        links = LinkTable.of_candidates(first)
        policy = with_candidates(self.policy).init_for(links)
        return CoordinatorState(0, policy, accuracy, RegretSums(np.zeros(len(links))), first, busy=busy)

    def grow(self, state: CoordinatorState, accuracy: Vector) -> CoordinatorState:
        """The state after servers joined at the end of the numbering; `accuracy` is that of their models."""
        links = LinkTable.all_of(self.prices.num_servers)
        return state._replace(
            policy=self.policy.grow(state.policy, links.num_servers),
            accuracy=np.concatenate([state.accuracy, np.asarray(accuracy, float)]),
            regret=state.regret._replace(utility=links.grow(state.regret.utility)),
        )

    def plan(self, state: CoordinatorState, presence: Presence | None = None) -> RoundPlan:
        """Phase I: draw the links of round `state.t`; `presence` is what real machines show of themselves."""
        rng, context, effort = (
            stream(self.seed, "topology", state.t),
            self.context(state, presence),
            self._effort(state),
        )
        if not context.budget:
            draw = silence(context, plans_mixing=self.policy.plans_mixing)
            return RoundPlan(state.t, draw, presence, effort, state.busy)
        draw = self.policy.propose(state.policy, context, rng)
        drawn, size = draw.topology.num_servers, len(context.active)
        if drawn != size:  # a mistake in a policy of one's own, which would show far from here
            raise ValueError(f"the policy made a draw for {drawn} servers, but there are {size}")
        return RoundPlan(state.t, draw, presence, effort, state.busy)

    def learn(
        self, state: CoordinatorState, plan: RoundPlan, report: RoundReport
    ) -> tuple[CoordinatorState, RoundRecord]:
        """Turn the round's reports into utilities and let the policy learn from them.

        False reports are not used; neither are those of servers that were caught before.
        """
        report, caught = self._check(state, plan, report)
        context, draw, time = self.context(state, plan.presence), plan.draw, self._measure_time(plan, report)
        utility = self.utility(self.facts(state, plan, report))
        lost = ~report.arrived(draw.topology) & report.reported[draw.topology.pairs[:, 0]]
        utility[draw.places[lost]] = 0.0  # sent, never arrived
        new_state = state._replace(
            t=plan.t + 1,
            policy=self.policy.update(state.policy, draw, Feedback(report, utility), context),
            accuracy=np.where(report.reported, report.accuracy, state.accuracy),
            regret=state.regret.add(draw.propensity, utility, int(np.count_nonzero(context.possible))),
            caught=state.caught + caught,
            busy=None if self.pace is None or time is None else self.pace.next_busy(time),
        )
        beliefs = find_beliefs(self.policy, state.policy, new_state.policy, context)
        regret = new_state.regret.regret()
        record = RoundRecord(plan.t, draw, report, utility, regret, beliefs, caught, time)
        return self._swap_candidates(new_state, context), record

    def context(self, state: CoordinatorState, presence: Presence | None = None) -> PolicyContext:
        """What the policy may know before round `state.t`; its budget is never more than the possible links."""
        considered = self._considered(state.candidates)
        if presence is None:
            active = present(self.seed, state.t, self.prices.num_servers, self.churn)
            presence = Presence(active, np.ones(len(considered.links), dtype=bool))
        if state.caught:
            presence = presence._replace(active=presence.active & ~_is_caught(state.caught, len(presence.active)))
        if self.pace is not None:
            possible = self.pace.find_possible(state.t, state.busy, considered.links)
            presence = presence._replace(reachable=presence.reachable & possible)
        context = PolicyContext(
            t=state.t,
            horizon=self.horizon,
            budget=self.budget,
            links=considered.links,
            prices=self.prices.drifted(considered.model_joules, considered.links, state.t),
            active=presence.active,
            reachable=presence.reachable,
        )
        there = self._find_exchanging(state.t, state.busy)
        budget = self.budget if there.all() else max(1, round(self.budget * float(there.mean())))
        return context._replace(budget=min(budget, int(np.count_nonzero(context.possible))))

    def facts(self, state: CoordinatorState, plan: RoundPlan, report: RoundReport) -> RoundFacts:
        """What the utility of the round's links is computed from."""
        considered = self._considered(state.candidates)
        spent = {cause: np.zeros(self.prices.num_servers) for cause in Cause}
        for row in report.energy:
            spent[row.cause][row.receiver] += row.joules
        took_part = report.reported & self._find_exchanging(plan.t, plan.busy)
        return RoundFacts(
            gain=fill_with_mean(report.accuracy - state.accuracy, took_part),
            upload_joules=fill_with_mean(spent[Cause.UPLOAD], took_part),
            compute_joules=fill_with_mean(spent[Cause.TRAINING], took_part),
            prices=self.prices,
            links=considered.links,
            link_joules=self.prices.drifted(considered.message_joules, considered.links, plan.t),
            draw=plan.draw,
            report=report,
            possible=self.context(state, plan.presence).possible,
        )

    def _measure_time(self, plan: RoundPlan, report: RoundReport) -> RoundTime | None:
        """How long the round takes by the clock of the simulated machines."""
        if self.clock is None:
            return None
        passes = None if plan.effort is None else plan.effort.passes
        time = self.clock.measure(report.num_samples, passes, report.energy, plan.busy)
        return time if self.pace is None else self.pace.close_round(plan.t, plan.busy, time)

    def _effort(self, state: CoordinatorState) -> Effort | None:
        """Servers that do not train at their pace rest."""
        if self.pace is None or self.clock is None:
            return None
        trains = self.pace.find_training(state.t, state.busy)
        return None if trains.all() else full_effort(len(trains), self.clock.passes).rest(~trains)

    def _find_exchanging(self, t: int, busy: Vector | None) -> NDArray[np.bool_]:  # -> [N]
        """Who may receive models in round t, as far as its pace decides it."""
        if self.pace is None:
            return np.ones(self.prices.num_servers, dtype=bool)
        return self.pace.find_exchanging(t, busy)

    def _check(
        self, state: CoordinatorState, plan: RoundPlan, report: RoundReport
    ) -> tuple[RoundReport, tuple[Caught, ...]]:
        """The reports that may be used, and whose report of this round is false."""
        if (limits := self._limits_in(plan)) is None:
            return report, ()
        told = {server: each for server, each in enumerate(report.servers) if each is not None}
        before = {each.server for each in state.caught}
        false = find_breaches(told, plan, self.prices, limits)
        possible = self._set_aside(report, false.keys() | before, plan, limits)
        false |= find_contradictions(possible, self._considered(state.candidates).links)
        caught = tuple(Caught(server, plan.t, false[server]) for server in sorted(false.keys() - before))
        return self._set_aside(report, false.keys() | before, plan, limits), caught

    def _set_aside(self, report: RoundReport, servers: Set[int], plan: RoundPlan, limits: ReportLimits) -> RoundReport:
        """Without the reports of some servers; the ledger keeps of them what can be computed again."""
        unused = [(i, each) for i, each in enumerate(report.servers) if each is not None and i in servers]
        if not unused:
            return report
        rows = (recompute_energy(i, each, plan, self.prices, limits) for i, each in unused)
        used = tuple(None if i in servers else each for i, each in enumerate(report.servers))
        return replace(report, servers=used, unused_energy=tuple(chain.from_iterable(rows)))

    def _limits_in(self, plan: RoundPlan) -> ReportLimits | None:
        """In a simulation, a server that is away has no devices."""
        if self.limits is None or plan.presence is not None:
            return self.limits
        return self.limits.without(~present(self.seed, plan.t, self.prices.num_servers, self.churn))

    def _swap_candidates(self, state: CoordinatorState, context: PolicyContext) -> CoordinatorState:
        """With some candidates swapped, if it is time; `context` is that of the round before."""
        if self.candidates is None or state.candidates is None or not self.candidates.is_due(state.t):
            return state
        policy = with_candidates(self.policy)
        swap = self.candidates.swap(state.candidates, policy.preference(state.policy, context), self.seed, state.t)
        return state._replace(
            policy=policy.swap_candidates(state.policy, swap.carry),
            regret=state.regret._replace(utility=swap.carry(state.regret.utility)),
            candidates=swap.candidates,
        )

    def _considered(self, candidates: Indices | None) -> _Considered:
        """Looked up once for all rounds with the same candidates."""
        last = self._last.value
        if last is None or last.candidates is not candidates:
            if candidates is None:
                links = LinkTable.all_of(self.prices.num_servers)
            else:
                links = LinkTable.of_candidates(candidates)
            joules = self.prices.joules_of(links)
            message_joules = joules if self.message_share == 1 else self.message_share * joules
            last = self._last.value = _Considered(candidates, links, joules, message_joules)
        return last


class _Considered(NamedTuple):
    """The links that are considered, and what they cost."""

    candidates: Indices | None
    links: LinkTable
    model_joules: FloatColumn  # [E] for a whole float32 model
    message_joules: FloatColumn  # [E] for a message as the codec makes it


class _LastConsidered:
    value: _Considered | None = None


def _is_caught(caught: tuple[Caught, ...], num_servers: int) -> NDArray[np.bool_]:  # -> [N]
    return np.isin(np.arange(num_servers), [each.server for each in caught])


def fill_with_mean(values: Vector, known: NDArray[np.bool_]) -> Vector:
    """The mean of the known values for a server that did not report: it sets neither end of anybody's scale."""
    return values if known.all() else np.where(known, values, values[known].mean() if known.any() else 0.0)


def links_in_budget(link_share: float, num_servers: int, considered: int | None = None) -> int:
    """γ·N(N−1) as a whole number of links, to the nearest and at least 1 (D11); γ·N·d where d are considered."""
    return max(1, round(link_share * num_servers * (considered or num_servers - 1)))


def read_state(data: Any, like: CoordinatorState) -> CoordinatorState:
    """The state that `to_jsonable` made `data` of; `like` has the shape of the policy's state.

    Version 0.1 kept the sums behind the regret beside the other fields, and a matrix where a column stands now: [N, N]
    with a diagonal that meant nothing, or [N, d] with candidates.
    """
    if isinstance(data, dict) and "utility_sum" in data:
        sums = {"utility": "utility_sum", "drawn": "utility_drawn", "best_each_round": "utility_best"}
        data = data | {"regret": {name: data[old] for name, old in sums.items()} | {"num_links": data.get("links", 0)}}
    caught = data.get("caught", []) if isinstance(data, dict) else []
    state = from_jsonable(data | {"caught": []} if caught else data, like, fit=_as_column)
    return state._replace(caught=_read_caught(caught))


def _read_caught(rows: Any) -> tuple[Caught, ...]:
    """Who was caught; there may be any number of them, so that a template does not help."""
    try:
        return tuple(Caught(int(row["server"]), int(row["round"]), str(row["reason"])) for row in rows)
    except (KeyError, TypeError, ValueError):
        raise RunFolderError("A saved state has a damaged list of caught servers. Start a new run.") from None


def _as_column(array: NDArray[Any], like: NDArray[Any]) -> NDArray[Any]:
    """A table of links as the column that is expected in its place."""
    if like.ndim != 1 or array.ndim != 2:
        return array
    height, width = array.shape
    return LinkTable.all_of(height).from_dense(array) if height == width else array.reshape(-1)
