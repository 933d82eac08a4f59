"""Defects that random schedules have found, each as the shortest run that shows it."""

import asyncio

import numpy as np
from tests.schedules.schedule import Fault, Schedule
from tests.schedules.simulation import Simulation

from hatdfed.core.links import LinkTable
from hatdfed.core.policies.base import make_draw
from hatdfed.core.round import RoundPlan
from hatdfed.deploy.coordinator.open_round import AbandonedCalls
from hatdfed.deploy.edge.order_handler import OrderHandler
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.testing.promises import assert_promises


def test_a_member_that_is_there_but_never_ready_delays_a_restarted_run_by_a_round_at_most(monkeypatch):
    simulation = Simulation(servers=3, rounds=3, min_servers=2)
    report_ready = OrderHandler.report_ready

    async def never(self):
        if self.mailbox.index == 2 and self._link.epoch > 1:
            await asyncio.sleep(1e9)
        await report_ready(self)

    monkeypatch.setattr(OrderHandler, "report_ready", never)
    events = simulation.play([(2.0, lambda: simulation.kill_coordinator(1.0))])
    assert_promises(events)
    assert [event["epoch"] for event in events if event["what"] == "start"] == [1, 2]


def test_a_server_that_has_joined_since_the_draw_may_say_whom_it_reaches():
    """In round 0, where an answer to a probe looks as if it spoke of that round."""
    links = LinkTable.all_of(3)
    draw = make_draw(links, np.ones(len(links), dtype=bool), np.ones(len(links)), None)
    assert AbandonedCalls().note(RoundPlan(0, draw), 3, pb.Reachable(yes=[0, 1])) == []


def test_an_edge_that_dies_while_a_call_waits_for_its_model_ends_that_call_quietly():
    """A call that was cancelled twice while it waited ended with an error about a lock."""
    first = {"at": 0, "other": 0, "lasts": 0, "point": 0}
    faults = (
        Fault("coordinator failpoint", edge=0, **first),
        Fault("edge failpoint", edge=0, **first),
        Fault("edge failpoint", edge=1, **first),
    )
    sizes = {"servers": 3, "rounds": 3, "min_servers": 1}
    schedule = Schedule(seed=1108, method="full", delay=200, loss=0, repeat=10, damage=0, faults=faults, **sizes)
    assert schedule.play()[1] == []
