"""A coordinator that survives being killed: what it draws is on disk before any edge is told.

It has the same three methods as `Coordinator`, so the main loop plays it like any other.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from hatdfed.core.coordinator import Coordinator, CoordinatorState, Vector
from hatdfed.core.energy.energy_model import Cause, EnergyPrices, grow_prices
from hatdfed.core.round import Presence, RoundPlan, RoundRecord, RoundReport, ServerReport
from hatdfed.deploy import history
from hatdfed.deploy.coordinator.journal import Journal
from hatdfed.deploy.coordinator.membership import Manifest
from hatdfed.deploy.failpoints import failpoint
from hatdfed.deploy.transport.frames import MAX_SENDS
from hatdfed.jsonable import to_jsonable
from hatdfed.setup.build.coordinator import make_coordinator, make_limits, make_prices
from hatdfed.setup.build.machines import make_machines, price_profiles
from hatdfed.setup.config import Config


class DurableCoordinator:
    """Plans and learns as `Coordinator` does, for a growing number of servers, and commits both to the journal.

    What a round taught is committed when the recorder asks for it (`StateStore`): records may be ahead of the journal,
    never behind it.
    """

    def __init__(
        self,
        config: Config,
        manifest: Manifest,
        journal: Journal,
        wait_for_servers: Callable[[], Presence],
        max_hops: int = 1,
    ) -> None:
        """With a relay a model takes up to two hops, and a budget of joules has to allow for both."""
        self._config = config
        self._manifest = manifest
        self._journal = journal
        self._wait_for_servers = wait_for_servers
        self._attempts = max_hops * MAX_SENDS
        self.for_servers = cache(self._for_servers)

    def restore(self) -> CoordinatorState | None:
        """Return the state to go on from; None at the beginning."""
        state = self._journal.read_state(self._make_template(self._config.servers))
        _note_state("restore", state)
        return state

    def start(self, accuracy: Vector) -> CoordinatorState:
        """Make the state before round 0."""
        return self.for_servers(self._config.servers).start(accuracy[: self._config.servers])

    def plan(self, state: CoordinatorState) -> RoundPlan:
        """Draw and commit the plan of a round, or return the one that was committed before a restart."""
        if (known := self._journal.read_plan(state.t)) is not None:
            _note_plan(known, None)
            return known
        presence = self._wait_for_servers()
        grown = self._grow(state, len(presence.active))
        plan = self.for_servers(len(presence.active)).plan(grown, presence)
        failpoint("before-plan-commit")
        self._journal.commit_plan(plan, grown)
        _note_plan(plan, grown)
        failpoint("after-plan-commit")
        return plan

    def learn(
        self, state: CoordinatorState, plan: RoundPlan, report: RoundReport
    ) -> tuple[CoordinatorState, RoundRecord]:
        """Learn from a round's reports, starting from the state that its plan was drawn from."""
        failpoint("before-learn")
        servers = plan.draw.topology.num_servers
        drawn_from = state if len(state.accuracy) == servers else self._restore_open_round(servers)
        new_state, record = self.for_servers(servers).learn(drawn_from, plan, report)
        _note_report(plan, record.report)
        return new_state, record

    def is_due(self, state: CoordinatorState) -> bool:
        """Every state is committed."""
        return True

    def write(self, state: CoordinatorState) -> None:
        """Commit what the next round depends on."""
        failpoint("before-state-commit")
        self._journal.commit_state(state)
        _note_state("state", state)
        failpoint("after-state-commit")

    def _grow(self, state: CoordinatorState, servers: int) -> CoordinatorState:
        known = len(state.accuracy)
        if servers == known:
            return state
        reported = [accuracy for _, accuracy in self._journal.read_members()[known:servers]]
        mean = float(state.accuracy.mean())  # for a server that has never been ready
        joined = np.array([mean if accuracy is None else accuracy for accuracy in reported])
        return self.for_servers(servers).grow(state, joined)

    def _restore_open_round(self, servers: int) -> CoordinatorState:
        """Read the state of the open round: it grew when servers joined and is stored with the plan."""
        state = self._journal.read_state(self._make_template(servers))
        if state is None or len(state.accuracy) != servers:
            raise RuntimeError("the journal has no state of the open round")
        return state

    def _make_template(self, servers: int) -> CoordinatorState:
        """Make a state of the right shapes, which the journal needs to read one."""
        return self.for_servers(servers).start(np.zeros(servers))

    def _for_servers(self, servers: int) -> Coordinator:
        config = self._config.model_copy(update={"servers": servers})
        share = self._manifest.message_share
        machines = make_machines(self._config, servers, self._forward_flops)
        coordinator = make_coordinator(
            config, self._make_prices(servers), machines=machines, message_share=share, attempts=self._attempts
        )
        return replace(coordinator, limits=make_limits(config, MAX_SENDS * share))  # for each hop

    def _make_prices(self, servers: int) -> EnergyPrices:
        manifest, energy = self._manifest, self._config.energy
        sizes: dict[str, Any] = {"bits_per_sample": manifest.bits_per_sample, "num_params": manifest.num_params}
        first = make_prices(self._config, **sizes, forward_flops=self._forward_flops)
        if servers == first.num_servers:
            return first
        grown = grow_prices(
            first,
            self._config.seed,
            servers,
            weak_joules_per_sample=energy.weak_joules_per_sample,
            strong_joules_per_sample=energy.strong_joules_per_sample,
            link_kbit_per_joule=energy.link_kbit_per_joule,
        )
        return price_profiles(self._config, grown, self._forward_flops)

    @property
    def _forward_flops(self) -> float:
        """Of a sample, as the edges have counted them; edges that did not are all too old to know profiles."""
        return self._manifest.forward_flops or 2.0 * self._manifest.num_params


def _note_state(what: str, state: CoordinatorState | None) -> None:
    if history.is_kept():
        t = 0 if state is None else state.t
        history.note(what, history.COORDINATOR, round=t, state=None if state is None else _digest_state(state))


def _note_plan(plan: RoundPlan, state: CoordinatorState | None) -> None:
    if history.is_kept():
        active = [] if plan.presence is None else np.flatnonzero(plan.presence.active).tolist()
        links = plan.draw.topology.pairs.tolist()
        digest = None if state is None else _digest_state(state)
        history.note("plan", history.COORDINATOR, round=plan.t, links=links, active=active, state=digest)


def _note_report(plan: RoundPlan, report: RoundReport) -> None:
    if history.is_kept():
        rows = [[row.sender, row.receiver, row.bits, row.joules] for row in report.energy if row.cause is Cause.LINK]
        history.note("ledger", history.COORDINATOR, round=plan.t, links=rows)
        reports = [None if each is None else _describe_report(each) for each in report.servers]
        history.note("learn", history.COORDINATOR, round=plan.t, reports=reports)


def _describe_report(report: ServerReport) -> dict[str, Any]:
    scores = {name: to_jsonable(values) for name, values in report.scores.items()}
    return to_jsonable(report._replace(scores={}, sketch=None)) | {"scores": scores}  # type: ignore[no-any-return]


def _digest_state(state: CoordinatorState) -> str:
    return history.digest_text(json.dumps(to_jsonable(state)))
