"""A coordinator that can be killed: what it draws is on the disk before anybody hears of it.

It has the same three verbs as `Coordinator`, so the main loop plays it like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from hatdfed.core.availability import Presence
from hatdfed.core.coordinator import Coordinator, CoordinatorState, Vector
from hatdfed.core.energy.prices import EnergyPrices, grow_prices
from hatdfed.core.round import RoundPlan, RoundRecord, RoundReport
from hatdfed.deploy.coordinator.journal import Journal
from hatdfed.deploy.coordinator.manifest import Manifest
from hatdfed.deploy.failpoints import failpoint
from hatdfed.deploy.transport.frames import MOST_SENDS
from hatdfed.setup.build.coordinator import make_coordinator, make_prices
from hatdfed.setup.config import Config


class DurableCoordinator:
    """Plans and learns as `Coordinator` does, for as many servers as there are, and commits both.

    What it learned it commits when the recorder asks for it (`StateStore`): records may be ahead of the journal, never
    behind it.
    """

    def __init__(self, config: Config, manifest: Manifest, journal: Journal, assembled: Callable[[], Presence]) -> None:
        self._config = config
        self._manifest = manifest
        self._journal = journal
        self._assembled = assembled
        self.for_servers = cache(self._for_servers)

    def restored(self) -> CoordinatorState | None:
        """Where the journal says to go on; None at the beginning."""
        return self._journal.state(self._like(self._config.servers))

    def start(self, accuracy: Vector) -> CoordinatorState:
        """The state before round 0."""
        return self.for_servers(self._config.servers).start(accuracy[: self._config.servers])

    def plan(self, state: CoordinatorState) -> RoundPlan:
        """The plan of the round, committed; the one that was committed before a restart, if there is one."""
        if (known := self._journal.plan(state.t)) is not None:
            return known
        presence = self._assembled()
        grown = self._grown(state, len(presence.active))
        plan = self.for_servers(len(presence.active)).plan(grown, presence)
        failpoint("before-plan-commit")
        self._journal.commit_plan(plan, grown)
        failpoint("after-plan-commit")
        return plan

    def learn(
        self, state: CoordinatorState, plan: RoundPlan, report: RoundReport
    ) -> tuple[CoordinatorState, RoundRecord]:
        """What the round taught, from the state that its plan was drawn from."""
        failpoint("before-learn")
        servers = plan.draw.topology.num_servers
        drawn_from = state if len(state.accuracy) == servers else self._restored(servers)
        return self.for_servers(servers).learn(drawn_from, plan, report)

    def is_due(self, state: CoordinatorState) -> bool:
        """Every state is committed."""
        return True

    def write(self, state: CoordinatorState) -> None:
        """Commit what the next round depends on."""
        failpoint("before-state-commit")
        self._journal.commit_state(state)
        failpoint("after-state-commit")

    def _grown(self, state: CoordinatorState, servers: int) -> CoordinatorState:
        known = len(state.accuracy)
        if servers == known:
            return state
        told = [accuracy for _, accuracy in self._journal.members()[known:servers]]
        usual = float(state.accuracy.mean())  # for a place whose server has never been ready
        joined = np.array([usual if accuracy is None else accuracy for accuracy in told])
        return self.for_servers(servers).grow(state, joined)

    def _restored(self, servers: int) -> CoordinatorState:
        """The state that the open round was drawn from, which grew when servers joined: it lies beside the plan."""
        state = self._journal.state(self._like(servers))
        if state is None or len(state.accuracy) != servers:
            raise RuntimeError("the journal has no state of the open round")
        return state

    def _like(self, servers: int) -> CoordinatorState:
        return self.for_servers(servers).start(np.zeros(servers))

    def _for_servers(self, servers: int) -> Coordinator:
        config = self._config.model_copy(update={"servers": servers})
        share = self._manifest.message_share
        return make_coordinator(config, self._prices(servers), message_share=share, attempts=MOST_SENDS)

    def _prices(self, servers: int) -> EnergyPrices:
        manifest, energy = self._manifest, self._config.energy
        sizes: dict[str, Any] = {"bits_per_sample": manifest.bits_per_sample, "num_params": manifest.num_params}
        first = make_prices(self._config, **sizes)
        if servers == first.num_servers:
            return first
        return grow_prices(
            first,
            self._config.seed,
            servers,
            weak_joules_per_sample=energy.weak_joules_per_sample,
            strong_joules_per_sample=energy.strong_joules_per_sample,
            link_kbit_per_joule=energy.link_kbit_per_joule,
        )
