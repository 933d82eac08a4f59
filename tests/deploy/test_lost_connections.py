"""Two edges that lose the line between them: nobody is held up, it is said, and they find each other again."""

import asyncio
import time

import pytest
from tests.deploy.cuts import Cut
from tests.deploy.deployment import Deployment, settings
from tests.deploy.gates import Gate

from hatdfed.deploy.coordinator.membership import Membership
from hatdfed.deploy.coordinator.settings import DeploySettings

QUICK = DeploySettings(beat_seconds=0.1, away_seconds=2.0, idle_seconds=0.3, round_seconds=30.0)


def links_of(deployment):
    rows = deployment.process.folder.read().records("links")
    return {(row["t"], row["receiver"], row["sender"]): bool(row["delivered"]) for row in rows}


class Slow(Gate):
    """Every round takes a while."""

    def pass_through(self, t):
        time.sleep(0.03)


async def cut_for_a_while(folder):
    config = settings("full", servers=2, rounds=10**6)
    async with Deployment(folder, config, QUICK, secure=False) as deployment:
        cut = Cut(*await deployment.start_edges(2, make_setup=Slow()))
        progress = deployment.process.progress
        await deployment.until(lambda: progress.figures["links"] > 0)
        cut.is_on = True
        await deployment.until(lambda: deployment.status["apart"])
        apart = deployment.status
        cut.is_on, links = False, progress.figures["links"]
        await deployment.until(lambda: progress.figures["links"] >= links + 4, 5)
        return apart, deployment.status


def test_two_edges_that_were_cut_off_from_each_other_get_links_again(play, tmp_path, one_thread, monkeypatch, caplog):
    monkeypatch.setattr("hatdfed.deploy.coordinator.membership._RETRY_SECONDS", 0.3)
    caplog.set_level("INFO", "hatdfed.deploy.coordinator")
    during, after = play(cut_for_a_while(tmp_path))
    assert during["apart"] == [["edge-0", "edge-1"]]
    assert [server["doing"].partition("; ")[2] for server in during["servers"]] == [
        "does not reach edge-1",
        "does not reach edge-0",
    ]
    assert after["apart"] == []
    assert caplog.text.count("edge-0 and edge-1 do not reach each other") == 1
    assert "edge-0 and edge-1 reach each other again" in caplog.text


async def cut_in_a_round(folder, first):
    """The first two edges lose their line in round 1, after it was tried out; seconds and links of that round."""
    gate = Gate(1)
    async with Deployment(folder, settings("full", rounds=2), QUICK, secure=False) as deployment:
        edges = [deployment.start_edge("edge-0", make_setup=gate, **first)]
        for name in ("edge-1", "edge-2"):
            await deployment.until(lambda: edges[-1]._handler is not None)
            edges.append(deployment.start_edge(name, make_setup=gate))
        await deployment.until(lambda: gate.is_reached(1))
        Cut(*edges[:2]).is_on = True
        began = time.monotonic()
        gate.open()
        await deployment.run
        return time.monotonic() - began, {link[1:]: yes for link, yes in links_of(deployment).items() if link[0] == 1}


@pytest.mark.parametrize("first", [{}, {"listen": ""}], ids=["both dial", "one dials"])
def test_two_edges_that_cannot_send_to_each_other_hold_nobody_up(play, tmp_path, one_thread, first):
    seconds, links = play(cut_in_a_round(tmp_path, first))
    assert seconds < 6
    assert {link for link, arrived in links.items() if not arrived} == {(0, 1), (1, 0)}


async def slow_training(folder):
    gate = Gate(0)
    async with Deployment(folder, settings("full", rounds=1), QUICK, secure=False) as deployment:
        await deployment.start_edges(2)
        deployment.start_edge("edge-2", make_setup=gate)
        await deployment.until(lambda: gate.is_reached(0))
        await asyncio.sleep(6 * QUICK.idle_seconds)
        gate.open()
        await deployment.run
        return links_of(deployment)


def test_an_edge_that_trains_for_long_is_not_taken_for_one_whose_line_is_lost(play, tmp_path, one_thread):
    links = play(slow_training(tmp_path))
    assert len(links) == 6
    assert all(links.values())


@pytest.fixture
def membership():
    """Two servers that could not dial each other at second 0."""
    membership = Membership(2, 10**6)
    for name in ("a", "b"):
        join(membership, name, 0.0)
    assert probes(membership, 0.0) == {"a": ["b"], "b": ["a"]}
    for index in (0, 1):
        membership.record_probes(membership.get(index), [], [1 - index])
    return membership


def join(membership, name, now):
    member = membership.admit(name, f"{name}:1", now)
    member.is_ready, member.accuracy = True, 0.5


def probes(membership, now):
    return {member.name: [other.name for other in others] for member, others in membership.plan_probes(now)}


def test_who_could_not_be_dialled_is_tried_again_after_a_minute_and_no_draw_waits_for_it(membership):
    assert probes(membership, 59.0) == {}
    assert probes(membership, 61.0) == {"a": ["b"], "b": ["a"]}
    assert not membership.is_probe_pending(61.0)
    assert membership.unreachable_pairs(61.0) == [("a", "b")], "nothing is hoped for meanwhile"
    membership.give_up_probes()
    assert probes(membership, 62.0) == {}
    membership.record_probes(membership.find("a"), [1], [])
    assert membership.unreachable_pairs(62.0) == []
    assert probes(membership, 200.0) == {}, "one that can dial is enough"


def test_an_edge_that_joins_again_is_tried_at_once(membership):
    join(membership, "a", 5.0)
    assert probes(membership, 5.0) == {"a": ["b"], "b": ["a"]}
    assert not membership.reachable_links().any()


def test_pairs_that_do_not_reach_each_other_are_named_once(membership):
    (sentence,) = membership.describe_reachability_changes(1.0)
    assert sentence.startswith("a and b do not reach each other")
    assert membership.describe_reachability_changes(2.0) == []
    membership.record_probes(membership.find("b"), [0], [])
    assert membership.describe_reachability_changes(3.0) == ["a and b reach each other again"]


def test_many_pairs_are_counted(membership):
    for number in range(10):
        membership.admit(f"n{number}", "", 0.0).is_ready = True
        membership.find(f"n{number}").accuracy = 0.5
    news = membership.describe_reachability_changes(1.0)
    assert len(news) == 21
    assert news[-1].startswith("26 more pairs of servers do not reach each other")
