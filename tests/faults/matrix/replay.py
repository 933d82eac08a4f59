"""Draws a run's topologies again, with nothing but what was reported and who was there: no restart, no fault."""

import numpy as np

from hatdfed.core.energy.energy_model import Cause, EnergyRow, Source
from hatdfed.core.round import RoundReport, ServerReport
from hatdfed.deploy.coordinator.durable import DurableCoordinator
from hatdfed.deploy.coordinator.journal import Journal
from hatdfed.deploy.coordinator.membership import Manifest
from hatdfed.jsonable import from_jsonable


def replay_links(path, config, events):
    """The topologies of an undisturbed run with the same absences and reports, for all rounds that are done."""
    reports = {event["round"]: event["reports"] for event in events if event["what"] == "learn"}  # the last one counts
    journal, links = Journal(path), []
    try:
        known = DurableCoordinator(config, Manifest(**journal.read_fact("manifest")), journal, lambda: None)
        state = known.start(np.array([accuracy for _, accuracy in journal.read_members()]))
        for t in range(journal.read_next_round()):
            coordinator = known.for_servers(len(state.accuracy))
            plan = coordinator.plan(state, journal.read_plan(t).presence)
            links.append(plan.draw.topology.pairs.tolist())
            state, _ = coordinator.learn(state, plan, read_report(reports[t]))
    finally:
        journal.close()
    return links


def read_report(servers):
    return RoundReport(tuple(None if report is None else read_server_report(report) for report in servers))


def read_server_report(report):
    def array(data):
        return from_jsonable(data, np.zeros(0))

    energy = tuple(
        EnergyRow(**{**row, "cause": Cause(row["cause"]), "source": Source(row["source"])}) for row in report["energy"]
    )
    scores = {name: array(values) for name, values in report["scores"].items()}
    numbers = {"accuracy": report["accuracy"], "num_samples": report["num_samples"]}
    arrays = {name: array(report[name]) for name in ("senders", "importance")}
    return ServerReport(**numbers, **arrays, energy=energy, scores=scores)
