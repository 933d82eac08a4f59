"""The coordinator: phase I of every round, and what is learned between rounds (Algorithms 1 and 2).

It sees scalars only, needs numpy only, and does no I/O. Hyper-parameters are frozen; what changes is
`CoordinatorState`, a value that survives JSON.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.candidates import CandidateRule
from hatdfed.core.cross_check import find_contradictions
from hatdfed.core.effort import Effort, ServerEffort, full_effort
from hatdfed.core.energy.energy_model import Cause, EnergyPrices, EnergyRow, total_joules
from hatdfed.core.energy.supply import Supply
from hatdfed.core.links import FloatColumn, Indices, LinkTable
from hatdfed.core.policies.base import AnyPolicy, Feedback, PolicyContext, find_beliefs, silence, with_candidates
from hatdfed.core.regret import RegretSums
from hatdfed.core.report_check import ReportLimits, find_breaches, recompute_energy
from hatdfed.core.round import (
    Away,
    Caught,
    LinkDraw,
    Presence,
    RoundPlan,
    RoundRecord,
    RoundReport,
    WorkDone,
    present,
)
from hatdfed.core.run_budget import RunBudget
from hatdfed.core.timing.pace import Pace
from hatdfed.core.timing.round_time import RoundClock, RoundTime
from hatdfed.core.training.base import AnyTraining, TrainingContext, TrainingOutcome
from hatdfed.core.utility import LinkUtility, RoundFacts
from hatdfed.errors import RunFolderError
from hatdfed.jsonable import from_jsonable
from hatdfed.randomness import stream

Vector = NDArray[np.float64]
_NO_WORK = WorkDone(0, 0, 0)


class CoordinatorState(NamedTuple):
    """Everything that the next round depends on."""

    t: int  # the next round to play
    policy: Any  # what the policy has learned
    accuracy: Vector  # [N] P_{k−1}, last known
    regret: RegretSums  # of the rounds so far
    candidates: Indices | None = None  # [N, d] senders that every server considers; None: everybody
    caught: tuple[Caught, ...] = ()  # who has no links any more
    training: Any = None  # what the training policy has learned
    spent: float = 0.0  # J, of a budget for the whole run
    charge: Vector | None = None  # [N] of the batteries, in joules; None: everybody is on mains
    busy: Vector | None = None  # [N] seconds of the next round that servers still train in; None: rounds have no end
    elapsed: float = 0.0  # simulated seconds of the rounds so far


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
    training: AnyTraining | None = None  # None: everybody trains in every round, as in the paper
    passes: int = 1  # over a round's data, by the settings
    usual_work: WorkDone = _NO_WORK  # of a server in a round, on average
    run_budget: RunBudget | None = None  # of the whole run; None: no limit
    supply: Supply | None = None  # None: everybody has all the energy that is wanted, at all times
    clock: RoundClock | None = None  # None: nobody knows how fast the machines are
    pace: Pace | None = None  # of simulated servers; None: in every round everybody is waited for
    _last: _LastConsidered = field(default_factory=lambda: _LastConsidered(), init=False, repr=False)

    def start(self, accuracy: Vector) -> CoordinatorState:
        """The state before round 0; `accuracy` is that of the initial models, P_0 (D13)."""
        num_servers, accuracy = self.prices.num_servers, np.asarray(accuracy, float)
        if self.candidates is None:
            first, links = None, LinkTable.all_of(num_servers)
            policy = self.policy.init(num_servers)
        else:
            first = self.candidates.first(self.seed, num_servers)
            links = LinkTable.of_candidates(first)
            policy = with_candidates(self.policy).init_for(links)
        return CoordinatorState(
            0,
            policy,
            accuracy,
            RegretSums(np.zeros(len(links))),
            first,
            training=None if self.training is None else self.training.init(num_servers),
            busy=None if self.pace is None else self.pace.first_busy(),
            charge=None if self.supply is None else self.supply.first_charge,
        )

    def grow(self, state: CoordinatorState, accuracy: Vector) -> CoordinatorState:
        """The state after servers joined at the end of the numbering; `accuracy` is that of their models."""
        links = LinkTable.all_of(self.prices.num_servers)
        return state._replace(
            policy=self.policy.grow(state.policy, links.num_servers),
            accuracy=np.concatenate([state.accuracy, np.asarray(accuracy, float)]),
            regret=state.regret._replace(utility=links.grow(state.regret.utility)),
            training=None if self.training is None else self.training.grow(state.training, links.num_servers),
        )

    def plan(self, state: CoordinatorState, presence: Presence | None = None) -> RoundPlan:
        """Phase I: draw the links of round `state.t` and say who trains; `presence` is what real machines show."""
        expected = self._simulate_presence(state) if presence is None else presence
        if not expected.active.all():
            presence = expected
        context = self.context(state, expected)
        draw = self._draw(state, context)
        effort = self._plan_effort(state, context, draw, presence)
        return RoundPlan(state.t, draw, presence, effort, state.busy, state.elapsed)

    def _draw(self, state: CoordinatorState, context: PolicyContext) -> LinkDraw:
        if not context.budget:
            return silence(context, plans_mixing=self.policy.plans_mixing)
        draw = self.policy.propose(state.policy, context, stream(self.seed, "topology", state.t))
        drawn, size = draw.topology.num_servers, len(context.active)
        if drawn != size:  # a mistake in a policy of one's own, which would show far from here
            raise ValueError(f"the policy made a draw for {drawn} servers, but there are {size}")
        return draw

    def _plan_effort(
        self, state: CoordinatorState, context: PolicyContext, draw: LinkDraw, presence: Presence | None
    ) -> Effort | None:
        """What the training policy wants and the budget allows; None: as in the paper."""
        rests = ~self._find_training(state.t, state.busy)
        if self.training is None:
            if presence is not None and presence.reasons:
                rests = rests | ~presence.active
            return full_effort(len(rests), self.passes).rest(rests) if rests.any() else None
        rng = stream(self.seed, "training", state.t)
        effort = self.training.propose(state.training, self.training_context(state, context), rng)
        decided, size = len(effort.passes), len(context.active)
        if not decided == len(effort.asks) == size:
            raise ValueError(f"the training policy decided for {decided} servers, but there are {size}")
        effort = effort.rest(~context.active | rests)
        if self.run_budget is None:
            return effort
        allowed = context.allowance - self.run_budget.find_link_cost(draw.places, context)
        return self.run_budget.fit(effort, self._find_worst_cost(effort, state.t), allowed, rng)

    def training_context(self, state: CoordinatorState, context: PolicyContext) -> TrainingContext:
        """What the training policy may know before a round."""
        prices, usual = self.prices, self.usual_work
        upload = prices.upload(context.t, 0, usual.devices_online, usual.num_sent)  # the same for all
        return TrainingContext(
            t=context.t,
            horizon=context.horizon,
            passes=self.passes,
            active=context.active,
            training_joules=prices.count_charged(usual.num_samples, None) * prices.compute_joules,
            upload_joules=np.full(prices.num_servers, upload.joules),
            charge=state.charge,
            capacity=None if self.supply is None else self.supply.capacity,
        )

    def _find_worst_cost(self, effort: Effort, t: int) -> Vector:  # -> [N]
        """Joules of each server's training and uploads if all of its devices connect."""
        limits, prices = self.limits or ReportLimits(), self.prices
        cost = np.zeros(len(effort.passes))
        for server in range(len(cost)):
            decision, most = effort.of(server), limits.most_samples(server)
            trained = prices.training(t, server, most * (decision.passes > 0), decision).joules
            cost[server] = trained + decision.asks * prices.upload(t, server, limits.devices, most).joules
        return cost

    def learn(
        self, state: CoordinatorState, plan: RoundPlan, report: RoundReport
    ) -> tuple[CoordinatorState, RoundRecord]:
        """Turn the round's reports into utilities and let the policy learn from them.

        False reports are not used; neither are those of servers that were caught before.
        """
        report, caught = self._check(state, plan, report)
        context, draw, time = self.context(state, plan.presence), plan.draw, self._measure_time(state, plan, report)
        busy = None if self.pace is None or time is None else self.pace.next_busy(time)
        report = _without_unfinished(report, busy, state.accuracy)
        seconds = 0.0 if time is None else time.seconds
        span = None if self.supply is None else self.supply.span(plan.t, state.elapsed, seconds)
        ledger = report
        if self.supply is not None and span is not None:
            ledger = self.supply.add_upkeep(plan.t, span, report, context.active)
        utility = self.utility(self.facts(state, plan, report, context, busy))
        lost = ~report.arrived(draw.topology) & report.reported[draw.topology.pairs[:, 0]]
        utility[draw.places[lost]] = 0.0  # sent, never arrived
        new_state = state._replace(
            t=plan.t + 1,
            policy=self.policy.update(state.policy, draw, Feedback(report, utility), context),
            accuracy=np.where(report.reported, report.accuracy, state.accuracy),
            regret=state.regret.add(draw.propensity, utility, int(np.count_nonzero(context.possible))),
            caught=state.caught + caught,
            training=self._learn_training(state, plan, report, context),
            spent=state.spent + self._count_spent(plan, report, context),
            charge=self.supply.charge_after(span, state.charge, ledger.energy) if self.supply and span else None,
            busy=busy,
            elapsed=state.elapsed + seconds,
        )
        beliefs = find_beliefs(self.policy, state.policy, new_state.policy, context)
        bill = self.supply.find_bill(span, ledger.energy, len(report.servers)) if self.supply and span else None
        record = RoundRecord(
            plan.t,
            draw,
            ledger,
            utility,
            new_state.regret.regret(),
            beliefs,
            caught,
            away={} if plan.presence is None else plan.presence.away,
            charge=new_state.charge,
            bill=bill,
            time=time,
            ages=None if self.pace is None else self.pace.find_ages(plan.t, context.links),
        )
        return self._swap_candidates(new_state, context), record

    def _learn_training(
        self, state: CoordinatorState, plan: RoundPlan, report: RoundReport, context: PolicyContext
    ) -> Any:
        if self.training is None:
            return None
        joules = np.zeros(self.prices.num_servers)
        for row in report.energy:
            if row.cause is not Cause.LINK:
                joules[row.receiver] += row.joules
        effort = plan.effort or full_effort(len(joules), self.passes)
        outcome = TrainingOutcome(effort, report.accuracy, state.accuracy, joules)
        return self.training.update(state.training, outcome, self.training_context(state, context))

    def _count_spent(self, plan: RoundPlan, report: RoundReport, context: PolicyContext) -> float:
        """Joules of a round, for the budget of the run; servers that did not report count at worst."""
        if self.run_budget is None:
            return 0.0
        senders = plan.draw.topology.pairs[:, 1]
        links = self.run_budget.find_link_cost(plan.draw.places[~report.reported[senders]], context)
        effort = plan.effort or full_effort(self.prices.num_servers, self.passes)
        training = self._find_worst_cost(effort.rest(report.reported | ~context.active), plan.t).sum()
        return total_joules(report.energy) + links + float(training)

    def context(self, state: CoordinatorState, presence: Presence | None = None) -> PolicyContext:
        """What the policy may know before round `state.t`; its budget is never more than the possible links."""
        considered = self._considered(state.candidates)
        if presence is None:
            presence = self._simulate_presence(state)
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
            prices=self.prices.apply_drift(considered.model_joules, considered.links, state.t),
            active=presence.active,
            reachable=presence.reachable,
        )
        if self.run_budget is not None:
            context = context._replace(allowance=self.run_budget.allow(state.spent, context))
        there = self._find_exchanging(state.t, state.busy)
        budget = self.budget if there.all() else max(1, round(self.budget * float(there.mean())))
        return context._replace(budget=min(budget, int(np.count_nonzero(context.possible))))

    def facts(
        self,
        state: CoordinatorState,
        plan: RoundPlan,
        report: RoundReport,
        context: PolicyContext,
        busy: Vector | None = None,
    ) -> RoundFacts:
        """What the utility of the round's links is computed from; `busy` is who trains on after the round."""
        considered = self._considered(state.candidates)
        rows, size = report.energy, self.prices.num_servers
        took_part = report.reported & self._find_exchanging(plan.t, plan.busy)
        if busy is not None:
            took_part &= busy <= 0
        return RoundFacts(
            gain=fill_with_mean(report.accuracy - state.accuracy, took_part),
            upload_joules=fill_with_mean(_sum_joules(rows, Cause.UPLOAD, size), took_part),
            compute_joules=fill_with_mean(_sum_joules(rows, Cause.TRAINING, size), took_part),
            prices=self.prices,
            links=considered.links,
            link_joules=self.prices.apply_drift(considered.message_joules, considered.links, plan.t),
            draw=plan.draw,
            report=report,
            possible=context.possible,
        )

    def _simulate_presence(self, state: CoordinatorState) -> Presence:
        """Who takes part in the next round of a simulation: who is there, and has enough energy."""
        size, links = self.prices.num_servers, self._considered(state.candidates).links
        is_away = {Away.CHURN: ~present(self.seed, state.t, size, self.churn)}
        if self.supply is not None:
            begin = self.supply.span(state.t, state.elapsed)
            is_away[Away.TRACE] = ~self.supply.is_available(begin, size)
        if self.supply is not None and state.charge is not None:
            most = self._find_most(state, ~is_away[Away.CHURN] & ~is_away[Away.TRACE])
            span = self.supply.span(state.t, state.elapsed, most.seconds)
            is_away[Away.BATTERY] = self.supply.is_exhausted(span, state.charge, most.joules, most.received)
        active = ~np.logical_or.reduce(list(is_away.values()))
        found = reversed(is_away.items())  # so that the first reason of a server stays
        reasons = {i: reason for reason, which in found for i in np.flatnonzero(which).tolist()}
        return Presence(active, np.ones(len(links), dtype=bool), reasons)

    def _find_most(self, state: CoordinatorState, there: NDArray[np.bool_]) -> _Most:  # [N]
        """The most that the next round can bring, if all links between those who are there are used.

        It does not depend on who of them has enough energy: it may be too much, and never too little.
        """
        considered, limits = self._considered(state.candidates), self.limits or ReportLimits()
        links, size = considered.links, self.prices.num_servers
        is_possible = links.at_receivers(there) & links.at_senders(there)
        message_joules = self.prices.apply_drift(considered.message_joules, links, state.t)
        sending = np.bincount(links.sender, np.where(is_possible, message_joules, 0.0), size)
        passes = self.passes if self.training is None else self.training.find_most_passes(self.passes)
        effort = ServerEffort(passes, asks=True)
        training = [self.prices.training(state.t, i, limits.most_samples(i), effort).joules for i in range(size)]
        received = np.bincount(links.receiver, is_possible.astype(np.float64), size)
        seconds = self._find_longest(state, links.sender[is_possible], passes)
        return _Most(sending.astype(np.float64) + np.array(training), received.astype(np.float64), seconds)

    def _find_longest(self, state: CoordinatorState, senders: Indices, passes: int) -> float:
        """Simulated seconds of the next round at most: with all devices connected, and a message for each sender."""
        if self.clock is None:
            return 0.0
        if self.pace is not None and (longest := self.pace.find_longest()) is not None:
            return longest
        limits, clock, size = self.limits or ReportLimits(), self.clock.at(state.elapsed), self.prices.num_servers
        samples = np.array([limits.most_samples(i) for i in range(size)])
        uploads = [self.prices.upload(state.t, i, limits.devices, int(samples[i])).bits for i in range(size)]
        message_bits = limits.sent_share * self.prices.model_bits + self.prices.overhead_bits
        sending = clock.find_sending(senders, np.full(len(senders), message_bits))
        ready = clock.find_upload(np.array(uploads)) + clock.find_compute(samples, np.full(size, passes))
        return float((ready + sending + clock.machines.latency_seconds).max())

    def _measure_time(self, state: CoordinatorState, plan: RoundPlan, report: RoundReport) -> RoundTime | None:
        """How long the round takes by the clock of the simulated machines."""
        if self.clock is None:
            return None
        passes = None if plan.effort is None else plan.effort.passes
        clock = self.clock.at(state.elapsed)
        time = clock.measure(report.num_samples, passes, report.energy, plan.busy, plan.draw.host)
        return time if self.pace is None else self.pace.close_round(plan.t, plan.busy, time)

    def _find_training(self, t: int, busy: Vector | None) -> NDArray[np.bool_]:  # -> [N]
        """Who trains in round t, as far as its pace decides it."""
        if self.pace is None:
            return np.ones(self.prices.num_servers, dtype=bool)
        return self.pace.find_training(t, busy)

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
        if self.limits is None or plan.presence is None or not plan.presence.reasons:
            return self.limits
        return self.limits.without(~plan.presence.active)

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


class _Most(NamedTuple):
    """What a round can bring at most."""

    joules: Vector  # [N] that a server spends on training and on its links
    received: Vector  # [N] models that it gets
    seconds: float  # that it takes, by the simulated clock


class _LastConsidered:
    value: _Considered | None = None


def _is_caught(caught: tuple[Caught, ...], num_servers: int) -> NDArray[np.bool_]:  # -> [N]
    return np.isin(np.arange(num_servers), [each.server for each in caught])


def _without_unfinished(report: RoundReport, busy: Vector | None, accuracy: Vector) -> RoundReport:
    """The report with the `accuracy` of before for servers that train on after the round: theirs comes at its end."""
    if busy is None or not (busy > 0).any():
        return report
    servers = tuple(
        told if told is None or busy[i] <= 0 else told._replace(accuracy=float(accuracy[i]))
        for i, told in enumerate(report.servers)
    )
    return replace(report, servers=servers)


def _sum_joules(rows: Sequence[EnergyRow], cause: Cause, num_servers: int) -> Vector:  # -> [N]
    """What the ledger says that each server has spent on one thing."""
    spent = [row for row in rows if row.cause is cause]
    server = np.array([row.receiver for row in spent], dtype=np.int64)
    joules = np.bincount(server, weights=[row.joules for row in spent], minlength=num_servers)
    return joules.astype(np.float64)


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
