"""A codec by link in a fleet: both ends remember the same, whatever is lost, and bits are counted exactly."""

import dataclasses

import numpy as np
import pytest
import torch
from tests.alone import run_alone

from hatdfed.core.energy.ledger import Cause
from hatdfed.data.datasets import load_dataset
from hatdfed.errors import ConfigError
from hatdfed.fleets.mailbox import MailboxFleet
from hatdfed.fleets.stacked.rows import Execution, Rows, RunServers
from hatdfed.server.codecs import TopK
from hatdfed.setup.build.placement import Placement
from hatdfed.setup.build.program import initial_seed, make_actors
from hatdfed.setup.build.simulation import network_key, settled_placement
from hatdfed.setup.build.world import make_pools, make_world
from hatdfed.setup.layers import resolve

DATASET = load_dataset("synthetic", options={"train": 200, "validation": 60, "test": 30})


def config(**settings):
    fixed = {"dataset": "synthetic", "network": "linear", "servers": 4, "rounds": 6, "validation_images": 50}
    return resolve({**fixed, "method": "rnd", "codec": "top-k", **settings})


def fleet_of(config, **how):
    coordinator, program = make_actors(config, DATASET)
    program = dataclasses.replace(program, codec=TopK(share=0.1))
    seeds = [initial_seed(config, server) for server in range(config.servers)]
    world = make_world(config, DATASET, make_pools(DATASET))
    return coordinator, MailboxFleet(
        program, world.sources, coordinator.prices, world.test, initial_seeds=seeds, codec_name="top-k", **how
    )


def played(coordinator, fleet, rounds=6, state=None):
    records = []
    state = run_alone(coordinator, fleet, rounds=rounds, sinks=[lambda _, record: records.append(record)], state=state)
    return state, records


def copies_agree(fleet):
    pairs = 0
    for sender, server in enumerate(fleet._servers):
        for receiver, known in server.known_by.items():
            assert torch.equal(known, fleet._servers[receiver].known_of[sender])
            pairs += 1
    return pairs


def test_both_ends_of_a_link_remember_the_same():
    coordinator, fleet = fleet_of(config())
    played(coordinator, fleet)
    assert copies_agree(fleet) > 4


def test_bits_are_those_of_the_whole_model_once_and_then_of_what_changed():
    coordinator, fleet = fleet_of(config())
    _, records = played(coordinator, fleet)
    whole, share = 32 * fleet.num_params, 64 * int(np.ceil(0.1 * fleet.num_params))
    spoken = set()
    for record in records:
        for row in record.report.energy:
            if row.cause is Cause.LINK:
                first = (row.sender, row.receiver) not in spoken
                assert row.bits == pytest.approx(whole if first else share)
                spoken.add((row.sender, row.receiver))


def test_a_message_that_is_lost_changes_neither_copy():
    damaged = iter([False, True] * 500)
    coordinator, fleet = fleet_of(config(), channel=lambda data: b"noise" if next(damaged) else data)
    played(coordinator, fleet)
    assert fleet.refused["not-a-message"] > 5
    assert copies_agree(fleet) > 1


def test_a_run_goes_on_from_a_snapshot_to_the_same_models():
    whole_coordinator, whole = fleet_of(config())
    played(whole_coordinator, whole)
    coordinator, fleet = fleet_of(config())
    state, _ = played(coordinator, fleet, rounds=3)
    again_coordinator, again = fleet_of(config())
    again.restore(fleet.snapshot())
    played(again_coordinator, again, state=state)
    assert torch.equal(again.models, whole.models)


def test_it_runs_with_mailboxes_and_says_why_not_otherwise():
    assert settled_placement(config(), DATASET, Placement()).fleet == "mailbox"
    with pytest.raises(ConfigError, match="something else to every receiver"):
        settled_placement(config(), DATASET, Placement("stacked", "cpu"))


def test_it_shares_no_batch_with_codecs_that_can_be_stacked():
    assert network_key(config()) != network_key(config(codec="float32"))
    coordinator, program = make_actors(config(), DATASET)
    world = make_world(config(), DATASET, make_pools(DATASET))
    member = RunServers(program, world.sources, coordinator.prices, [0, 1, 2, 3], world.test)
    with pytest.raises(ValueError, match="needs mailboxes"):
        Rows([member], Execution(torch.device("cpu"), 4))
