"""How much servers are to train survives the coordinator, and reaches the edges."""

import json
from contextlib import closing

import numpy as np
import pytest
from tests.deploy.deployment import settings
from tests.uneven_effort import make_uneven_effort

from hatdfed.core.effort import ServerEffort
from hatdfed.core.energy.energy_model import draw_prices
from hatdfed.deploy.coordinator.journal import Journal, _plan_to_json
from hatdfed.deploy.edge.order_handler import is_report_of
from hatdfed.deploy.edge.round_runner import read_effort
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.setup.build.coordinator import make_coordinator

N = 3


@pytest.fixture
def coordinator():
    prices = draw_prices(
        0, N, num_devices=30, samples_per_device=2, bits_per_sample=512, model_bits=1e6, weak_joules_per_sample=0.5,
        strong_joules_per_sample=0.25, device_kbit_per_joule=1.0, link_kbit_per_joule=(20.0, 50.0),
    )  # fmt: skip
    return make_coordinator(settings("d-psgd"), prices)


def test_a_committed_plan_is_read_back_with_its_efforts(tmp_path, coordinator):
    state = coordinator.start(np.zeros(N))
    plan = coordinator.plan(state)._replace(effort=make_uneven_effort(0, N))
    with closing(Journal(tmp_path / "journal.sqlite")) as journal:
        journal.commit_plan(plan, state)
        read = journal.read_plan(0)
    assert [read.effort_of(i) for i in range(N)] == [plan.effort_of(i) for i in range(N)]


def test_a_journal_from_before_there_were_efforts_means_what_the_paper_says(tmp_path, coordinator):
    state = coordinator.start(np.zeros(N))
    plan = coordinator.plan(state)
    assert "passes" not in json.dumps(_plan_to_json(plan))
    with closing(Journal(tmp_path / "journal.sqlite")) as journal:
        journal.commit_plan(plan, state)
        assert journal.read_plan(0).effort is None


def test_an_order_without_an_effort_means_what_the_settings_say():
    assert read_effort(pb.RoundOrder(round=1)) is None
    assert read_effort(pb.RoundOrder(round=1, passes=0, asks=False)) == ServerEffort(0, asks=False)
    assert read_effort(pb.RoundOrder(round=1, passes=3)) == ServerEffort(3, asks=True)
    assert read_effort(pb.RoundOrder(round=1, passes=-3)).passes == 0


def test_a_report_of_training_does_not_answer_an_order_to_rest():
    trained = pb.Outcome(round=1, num_samples=5, devices_online=2, slots=[pb.Slot(server=0)])
    assert is_report_of(trained, pb.RoundOrder(round=1, passes=2, asks=True))
    assert not is_report_of(trained, pb.RoundOrder(round=1, passes=0, asks=True))
    assert not is_report_of(trained, pb.RoundOrder(round=1, passes=2, asks=False))
