"""Members with a good certificate that send what no honest edge would: it is refused, told, and nobody else suffers."""

import asyncio
import json
import math
from contextlib import closing

import numpy as np
import pytest
from tests.deploy.deployment import QUICK, Deployment, settings
from tests.deploy.hostile import HostileMember

from hatdfed.deploy.coordinator.edge_hub import EdgeHub
from hatdfed.deploy.coordinator.journal import Journal
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.server.message import Message, pack

SHORT = QUICK.model_copy(update={"idle_seconds": 0.5, "round_seconds": 5.0})
SHORT_OF_ONE = SHORT.model_copy(update={"min_servers": 2})


async def with_hostile(folder, attack, config=None, quick=SHORT, **more):
    """Two honest edges and a hostile one; how the run ended and what was seen of it."""
    async with Deployment(folder, config or settings("full", rounds=3), quick) as deployment:
        edges = await deployment.start_edges(2)
        hostile = HostileMember(deployment, "edge-9", attack, **more)
        serving = asyncio.ensure_future(hostile.serve())
        summary = await asyncio.wait_for(deployment.run, 30)
        await asyncio.wait_for(serving, 10)
        models = [edge._handler.runner.server.params.clone() for edge in edges]
        return summary, deployment, hostile, models


def make_message(member, t, value, num_samples=10, mass=1.0):
    size = member.num_params
    model = {"model": np.full(size, value, np.float32)}
    return pack(Message(member.welcome.run, t, member.welcome.index, num_samples, mass, member.config.codec, model))


def pushing(**message):
    """An attack that sends the same message to all receivers in every round, and reports properly."""

    async def attack(member, order):
        data = make_message(member, order.round, **message)
        for receiver in order.receivers:
            member.answers.append((await member.push(receiver, order.round, data)).reason)
        await member.stub.Report(member.outcome(order.round))

    return attack


def test_finite_numbers_that_would_break_every_model_are_refused(play, tmp_path, one_thread):
    summary, deployment, hostile, models = play(with_hostile(tmp_path, pushing(value=1e30)))
    assert summary["rounds"] == 3
    assert set(hostile.answers) == {"too-large"}
    assert deployment.status["refused"]["too-large"] == 6
    assert all(float(model.abs().max()) < 10 for model in models)


def test_a_claim_of_more_samples_than_a_server_can_have_is_refused(play, tmp_path, one_thread):
    """Not even 10³⁰ raises anything at the receivers, and nobody blames them."""

    async def attack(member, order):
        await pushing(value=0.0, num_samples=(10**30, 10**9)[order.round])(member, order)

    _, deployment, hostile, _ = play(with_hostile(tmp_path, attack, settings("full", rounds=2)))
    assert hostile.answers == ["bad-header"] * 4
    assert deployment.status["refused"] == {"bad-header": 4}


def test_a_claim_of_more_mass_than_there_is_in_all_is_refused(play, tmp_path, one_thread):
    attack = pushing(value=0.0, mass=1e12)
    _, _, hostile, _ = play(with_hostile(tmp_path, attack, settings("sgp", rounds=2, link_share=1.0)))
    assert set(hostile.answers) == {"bad-header"}


INFLATED = {
    "samples": {"num_samples": 10**9},
    "devices": {"devices_online": 10**9},
    "bytes": {"sent": [pb.Sent(receiver=0, share=10.0)]},
}


async def report_inflated(member, order):
    """One kind of inflated report in each round."""
    outcome = member.outcome(order.round)
    outcome.MergeFrom(pb.Outcome(**list(INFLATED.values())[order.round]))
    member.answers.append((await member.stub.Report(outcome)).reason)


def test_no_report_inflates_the_ledger(play, tmp_path, one_thread):
    _, deployment, hostile, _ = play(with_hostile(tmp_path, report_inflated))
    assert hostile.answers == ["bad-report"] * 3
    joules = deployment.status["joules"]
    assert sum(joules.values()) < 1e6
    (server,) = [each for each in deployment.status["servers"] if each["name"] == "edge-9"]
    assert server["refused"] == {"bad-report": 3}


IMPOSSIBLE = {
    "accuracy": ({"accuracy": 1.5}, "an accuracy of 1.5"),
    "samples": ({"num_samples": 10**9}, "1,000,000,000 samples"),
    "devices": ({"devices_online": 10**6}, "1e+06 devices"),
    "harm": ({"slots": {"harm": 11.0}}, "harm of 11"),
    "evidence": ({"slots": {"evidence": 1e6}}, "evidence of 1e+06"),
    "loss": ({"slots": {"loss": -3.0}}, "loss of -3"),
}


def reporting_once(fields):
    """An attack that sends an impossible report in round 1, and good ones in all others."""

    async def attack(member, order):
        outcome = member.outcome(order.round)
        if order.round == 1:
            for name, value in fields.items():
                if name == "slots":
                    outcome.slots[0].scores.update(value)
                else:
                    setattr(outcome, name, value)
        links = {peer.index for peer in (*order.senders, *order.receivers)}
        member.answers.append(((await member.stub.Report(outcome)).accepted, bool(links)))

    return attack


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_who_reports_impossible_figures_is_named_and_has_no_links_any_more(play, tmp_path, one_thread, caplog, name):
    fields, words = IMPOSSIBLE[name]
    config = settings("full", rounds=4)
    summary, deployment, hostile, _ = play(with_hostile(tmp_path, reporting_once(fields), config))
    assert hostile.answers == [(True, True), (False, True), (True, False), (True, False)]
    servers = {each["name"]: each for each in deployment.status["servers"]}
    (caught,) = summary["caught"]
    assert caught["server"] == servers["edge-9"]["index"]
    assert caught["round"] == 1
    assert words in caught["reason"]
    assert servers["edge-9"]["caught"] == {"round": 1, "reason": caught["reason"]}
    assert servers["edge-9"]["doing"].startswith("has no links since round 2: It reported")
    assert servers["edge-0"]["caught"] is servers["edge-1"]["caught"] is None
    assert "edge-9 gets no links any more: its report of round 1 is false. It reported" in caplog.text
    assert any(note.startswith("Caught with a false report") for note in summary["notes"])


async def fail_once(member, order):
    """What an edge reports whose round has failed."""
    outcome = member.outcome(order.round)
    if order.round == 1:
        outcome = pb.Outcome(epoch=member.welcome.epoch, round=1, accuracy=math.nan)
    member.answers.append(((await member.stub.Report(outcome)).accepted, bool(order.senders)))


def test_an_edge_whose_round_failed_keeps_its_links(play, tmp_path, one_thread):
    summary, _, hostile, _ = play(with_hostile(tmp_path, fail_once))
    assert summary["caught"] == []
    assert hostile.answers == [(True, True), (False, True), (True, True)]


async def caught_before_a_restart(folder):
    """Status and links of a run whose coordinator is lost after a member was caught."""
    config = settings("full", rounds=5)
    async with Deployment(folder, config, SHORT) as deployment:
        await deployment.start_edges(2)
        attack = reporting_once({"accuracy": -1.0})
        before = asyncio.ensure_future(HostileMember(deployment, "edge-9", attack).serve())
        await deployment.until(lambda: any(server["caught"] for server in deployment.status["servers"]))
        await deployment.lose_coordinator()
        before.cancel()
        await deployment.start_coordinator(deployment.port)
        hostile = HostileMember(deployment, "edge-9", attack)
        after = asyncio.ensure_future(hostile.serve())
        summary = await asyncio.wait_for(deployment.run, 30)
        await asyncio.wait_for(after, 10)
        return summary, deployment.status, hostile.answers


def test_a_restarted_coordinator_knows_who_was_caught(play, tmp_path, one_thread):
    summary, status, answers = play(caught_before_a_restart(tmp_path))
    assert [each["round"] for each in summary["caught"]] == [1]
    assert [each["name"] for each in status["servers"] if each["caught"]] == ["edge-9"]
    assert answers
    assert not any(links for _, links in answers)


def test_final_figures_that_cannot_be_count_as_missing(play, tmp_path, one_thread):
    final, config = {"has_test": True, "accuracy": math.nan}, settings("full", rounds=1, network="linear")
    _, deployment, _, _ = play(with_hostile(tmp_path, pushing(value=0.0), config, final=final))
    json.loads((tmp_path / "run" / "results.json").read_text(), parse_constant=pytest.fail)
    assert deployment.status["refused"]["bad-final"] == 1
    assert sorted(deployment.process.hub.final) == [0, 1]


@pytest.mark.parametrize("figure", [math.nan, 1e300, -5.0, math.inf])
@pytest.mark.parametrize("name", ["accuracy", "personal_accuracy", "validation_accuracy"])
def test_every_final_figure_lies_between_0_and_1(play, tmp_path, figure, name):
    with closing(Journal(tmp_path / "journal.sqlite")) as journal:
        hub = EdgeHub(journal, SHORT, 1, epoch=1, next_round=1)
        member = hub.admit("edge-0", "")
        member.is_ready = True
        play(hub.finish(0.0))
        assert "outside 0 to 1" in hub.take_final(member, pb.FinalFigures(has_test=True, **{name: figure}))
        assert hub.final == {}
        play(asyncio.wait_for(hub.finish(60.0), 1.0))  # nobody waits for better ones
        assert hub.take_final(member, pb.FinalFigures(has_test=True, **{name: 0.5})) is None


def test_the_first_edge_cannot_define_a_model_that_locks_out_all_others(play, tmp_path, one_thread):
    async def attacked():
        async with Deployment(tmp_path, settings("full", rounds=1), SHORT_OF_ONE) as deployment:
            hostile = HostileMember(deployment, "edge-9", pushing(value=0.0), prepare={"num_params": 7})
            serving = asyncio.ensure_future(hostile.serve())
            await deployment.until(lambda: deployment.active == 1)
            await deployment.start_edges(2)
            summary = await asyncio.wait_for(deployment.run, 30)
            await asyncio.wait_for(serving, 10)
            return summary, deployment.process.folder.read().records("servers")

    summary, servers = play(attacked())
    assert summary["rounds"] == 1
    assert {row["server"] for row in servers} == {1, 2}


def test_without_a_majority_the_run_waits_and_says_for_what(play, tmp_path, one_thread):
    async def attacked():
        async with Deployment(tmp_path, settings("full", rounds=1, servers=2), SHORT) as deployment:
            hostile = HostileMember(deployment, "edge-9", pushing(value=0.0), prepare={"num_params": 7})
            serving = asyncio.ensure_future(hostile.serve())
            await deployment.start_edges(1)
            await deployment.until(lambda: "majority" in deployment.status["waits_for"])
            sentence = deployment.status["waits_for"]
            serving.cancel()
            return sentence

    sentence = play(attacked())
    assert "edge-9 with Manifest(num_params=7" in sentence
    assert "edge-0 with" in sentence


async def invent_words(member, order):
    outcome = member.outcome(order.round)
    for number in range(100):
        outcome.refused[f"word-{'abcdefghij'[number // 10]}{'abcdefghij'[number % 10]}"] = 1
    outcome.refused["late"] = 2
    outcome.refusals.extend([pb.Refusal(name=f"nobody-{number}", reason="late", count=1) for number in range(100)])
    outcome.refusals.add(name="edge-0", reason="invented", count=10**18)
    await member.stub.Report(outcome)


def test_invented_words_and_names_fill_no_counters(play, tmp_path, one_thread):
    _, deployment, _, _ = play(with_hostile(tmp_path, invent_words, settings("local", rounds=1)))
    assert deployment.status["refused"] == {"other": 100, "late": 2}
    assert len(deployment.process.hub.participation.conduct._standings) <= 3
    (server,) = [each for each in deployment.status["servers"] if each["name"] == "edge-0"]
    assert server["refused"] == {"other": 10**6}
    assert server["refused_by"] == ["edge-9"]


def test_who_is_refused_in_every_round_is_named_and_loses_its_links(play, tmp_path, one_thread, caplog):
    config = settings("full", rounds=6)
    _, deployment, hostile, _ = play(with_hostile(tmp_path, pushing(value=1e30), config, SHORT_OF_ONE))
    assert len(hostile.answers) == 6, "it took part in three rounds, with two receivers each"
    (server,) = [each for each in deployment.status["servers"] if each["name"] == "edge-9"]
    assert server["quarantined"]
    assert server["refused"] == {"too-large": 6}
    assert server["refused_by"] == ["edge-0", "edge-1"]
    assert "refused a model of edge-9" in caplog.text
    assert "edge-9 takes no part until round 1" in caplog.text
    assert not [each for each in deployment.status["servers"] if each["refused"] and each["name"] != "edge-9"]
