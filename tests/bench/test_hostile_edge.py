"""The edge that lies, which `benchmarks/hostile_edges.py` starts: what it offers, and what it reports."""

import pytest
import torch

from hatdfed.deploy.edge.setup import make_edge_setup
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.setup.layers import resolve
from hatdfed_bench.hostile_edge import AVAILABLE, falsify_outcome, make_hostile_setup

CONFIG = resolve({"method": "full", "dataset": "digits", "servers": 3, "rounds": 10, "images_per_server": 80})


def offered(setup, t):
    """The model that an edge begins with, and what it offers of it in round t."""
    program = setup.program
    server = program.start(setup.initial_seed)
    kept, offer = program.offer(server, setup.source.work(t), 1)
    assert kept.params is server.params
    own = program.learner.sent.take(server.params)
    return own, program.codec.decode(offer.payload, len(own))


def test_what_a_hostile_edge_offers_is_what_the_attack_makes_of_its_model():
    own, sent = offered(make_edge_setup(CONFIG, 1), 5)
    torch.testing.assert_close(sent, own)
    own, sent = offered(make_hostile_setup(CONFIG, 1, attack="sign-flip"), 5)
    torch.testing.assert_close(sent, -own)


def test_a_sleeper_is_honest_at_first():
    for t, factor in ((3, 1.0), (4, -1.0)):
        own, sent = offered(make_hostile_setup(CONFIG, 1, attack="sleeper"), t)
        torch.testing.assert_close(sent, factor * own)


def test_flipped_labels_are_trained_on_and_not_measured_on():
    honest, hostile = make_edge_setup(CONFIG, 1), make_hostile_setup(CONFIG, 1, attack="label-flip")
    for true, flipped in zip(honest.source.work(0).batches, hostile.source.work(0).batches, strict=True):
        assert torch.equal(flipped.y, 9 - true.y)
    assert torch.equal(hostile.source.validation.y, honest.source.validation.y)


def test_every_attack_of_a_process_on_its_own_is_available():
    assert set(AVAILABLE) == {
        *("sign-flip", "scale", "noise", "constant", "stale", "label-flip", "sleeper", "false-reports")
    }


def outcome():
    return pb.Outcome(
        round=3,
        accuracy=0.5,
        num_samples=40,
        slots=[
            pb.Slot(server=1, importance=0.5, scores={"loss": 1.0, "harm": 0.0, "evidence": 9.0}),
            pb.Slot(server=0, importance=0.25, scores={"loss": 2.0, "harm": 0.5, "evidence": 9.0}),
            pb.Slot(server=4, importance=0.25, scores={"loss": 3.0, "harm": 0.2, "evidence": 9.0, "knowledge": 0.7}),
        ],
        metered=[pb.Metered(cause="training", joules=40.0, meter="rapl")],
    )


def test_false_reports_praise_the_edge_and_its_friends_and_condemn_the_others():
    told = falsify_outcome(outcome(), friends=[0], most_samples=60)
    assert (told.accuracy, told.num_samples) == (1.0, 60)
    assert [slot.scores["loss"] for slot in told.slots] == [0, 0, 20]
    assert [slot.scores["harm"] for slot in told.slots] == [0, 0, 10]
    assert [slot.scores["evidence"] for slot in told.slots] == [100, 100, 100]
    assert told.metered[0].joules == pytest.approx(4.0)


def test_what_false_reports_do_not_lie_about_stays_and_scores_that_nobody_asked_for_are_not_added():
    honest = outcome()
    told = falsify_outcome(honest, friends=[0], most_samples=60)
    assert [slot.importance for slot in told.slots] == [0.5, 0.25, 0.25]
    assert told.slots[2].scores["knowledge"] == 0.7
    assert "knowledge" not in told.slots[0].scores
    assert honest == outcome()


def test_the_report_of_a_round_that_failed_is_not_falsified():
    failed = pb.Outcome(round=3, accuracy=0.0)
    assert falsify_outcome(failed, friends=[], most_samples=60) == failed
