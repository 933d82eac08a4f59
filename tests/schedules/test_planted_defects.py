"""Defects that are planted in the code: random schedules find each of them, and the checker names the promise."""

import asyncio
import hashlib
import random

import pytest
from hypothesis import HealthCheck, Phase, find, settings
from tests.schedules.schedule import make_schedules

from hatdfed.deploy import history
from hatdfed.deploy.coordinator.durable import DurableCoordinator
from hatdfed.deploy.coordinator.edge_hub import EdgeHub
from hatdfed.deploy.coordinator.journal import Journal
from hatdfed.deploy.coordinator.open_round import OpenRound
from hatdfed.deploy.edge.round_mailbox import RoundMailbox
from hatdfed.deploy.edge.store import EdgeStore, read_state
from hatdfed.deploy.transport.frames import IncomingMessage
from hatdfed.server import exchange
from hatdfed.server.message import MAGIC, unpack

FEW = settings(max_examples=200, derandomize=False, phases=[Phase.generate], suppress_health_check=list(HealthCheck))


def announce_without_a_commit(monkeypatch):
    monkeypatch.setattr(Journal, "commit_plan", lambda self, plan, state: None)


def go_on_from_an_older_state(monkeypatch):
    newest = "SELECT state FROM states ORDER BY t DESC LIMIT 1"
    fetch = Journal._fetch_one
    worse = {newest: newest.replace(" DESC", "")}
    monkeypatch.setattr(Journal, "_fetch_one", lambda self, text, *more: fetch(self, worse.get(text, text), *more))


def forget_the_model(monkeypatch):
    monkeypatch.setattr(EdgeStore, "load", lambda self, run=None: None)


def load_an_older_model(monkeypatch):
    def load_oldest(self, run=None):
        files = self.list_files()
        return read_state(files[-1]) if files else None

    monkeypatch.setattr(EdgeStore, "load", load_oldest)


def check_no_digest(monkeypatch):
    def unpack_anything(data, **limits):
        return unpack(MAGIC + hashlib.sha256(data[36:]).digest() + data[36:], **limits)

    monkeypatch.setattr(IncomingMessage, "_check_parts", lambda self, before: None)
    monkeypatch.setattr(exchange, "unpack", unpack_anything)


def keep_models_for_the_next_round(monkeypatch):
    begin = RoundMailbox.begin

    async def begin_with_old_models(self, order, *more):
        old = self.received
        await begin(self, order, *more)
        self.received |= old

    monkeypatch.setattr(RoundMailbox, "begin", begin_with_old_models)
    monkeypatch.setattr(RoundMailbox, "clear", lambda self: None)


def take_reports_twice(monkeypatch):
    take = OpenRound._take

    def take_again(self, server, outcome):
        self._reports.pop(server, None)
        take(self, server, outcome)

    monkeypatch.setattr(OpenRound, "_take", take_again)


def wait_longer_than_a_round(monkeypatch):
    async def sleep(self, seconds):
        await asyncio.sleep(45.0)

    monkeypatch.setattr(OpenRound, "wait_for_change", sleep)


def forget_what_was_sent(monkeypatch):
    make = RoundMailbox.make_message

    async def make_message(self, receiver, t, until):
        self.sent.pop(receiver, None)
        return await make(self, receiver, t, until)

    monkeypatch.setattr(RoundMailbox, "make_message", make_message)


def charge_nothing(monkeypatch):
    learn = DurableCoordinator.learn

    def learn_free(self, state, plan, report):
        free = [r and r._replace(energy=tuple(row._replace(bits=0.0) for row in r.energy)) for r in report.servers]
        return learn(self, state, plan, type(report)(tuple(free), report.consensus_distance))

    monkeypatch.setattr(DurableCoordinator, "learn", learn_free)


def name_no_wait(monkeypatch):
    def set_wait(self, what, until=None, kind="servers"):
        if not what:
            history.note("wait", history.COORDINATOR, waits_for="", until=None)

    monkeypatch.setattr(EdgeHub, "set_wait", set_wait)


RESTARTS = ("coordinator failpoint", "kill coordinator", "kill edge")
EDGES = ("kill edge", "edge failpoint")
DEFECTS = [
    (announce_without_a_commit, "P1", RESTARTS),
    (go_on_from_an_older_state, "P2", RESTARTS),
    (forget_the_model, "P3", EDGES),
    (load_an_older_model, "P3", EDGES),
    (check_no_digest, "P4", EDGES),
    (keep_models_for_the_next_round, "P4", EDGES),
    (take_reports_twice, "P4", RESTARTS),
    (wait_longer_than_a_round, "P5", EDGES),
    (forget_what_was_sent, "P7", ("cut", "isolate")),
    (charge_nothing, "P7", EDGES),
    (name_no_wait, "P8", ("isolate",)),
]


@pytest.mark.parametrize(("plant", "promise", "kinds"), DEFECTS)
def test_schedules_find_a_planted_defect(plant, promise, kinds, monkeypatch):
    plant(monkeypatch)

    def breaks_it(schedule):
        return any(violation.promise == promise for violation in schedule.play()[1])

    find(make_schedules(kinds), breaks_it, settings=FEW, random=random.Random(1))  # noqa: S311
