"""EdgeProgram: pure steps, written for one server."""

from functools import partial

import pytest
import torch

from hatdfed.errors import ConfigError
from hatdfed.server.aggregation import Importance, Inbox, PushSum, Uniform
from hatdfed.server.codecs import CODECS
from hatdfed.server.learner import Learner
from hatdfed.server.networks import NETWORKS
from hatdfed.server.optimisers import Adam
from hatdfed.server.program import EdgeProgram, StepSchedule
from hatdfed.server.work import Batch, Work


def program(aggregator=None):
    learner = Learner(partial(NETWORKS["linear"], (1, 4, 4), 3), Adam(1e-2))
    return EdgeProgram(learner, aggregator or Importance(), CODECS["float32"])


def batch(size=12):
    generator = torch.Generator().manual_seed(1)
    return Batch(torch.randn(size, 1, 4, 4, generator=generator), torch.randint(0, 3, (size,), generator=generator))


def work(batches=None):
    batches = (batch(),) * 5 if batches is None else batches
    return Work(batches, 12 if batches else 0, 6 if batches else 0, batch(4), batch(30), seed=0)


def inbox(server, *others, mass=1.0):
    slots = 1 + len(others)
    return Inbox(
        torch.stack([server.params, *(other.params for other in others)]),
        torch.full((slots,), 12),
        torch.full((slots,), torch.nan, dtype=torch.float64),
        torch.full((slots,), mass, dtype=torch.float64),
        torch.ones(slots, dtype=torch.bool),
    )


def test_training_moves_the_model_and_leaves_the_old_state_alone():
    server = program().start(0)
    before = server.params.clone()
    trained = program().train(server, work(), 0)
    assert torch.equal(server.params, before)
    assert not torch.equal(trained.params, before)
    assert trained.optimiser.step == 5


def test_without_data_training_changes_nothing():
    server = program().start(0)
    assert program().train(server, work(()), 0) is server


def test_merging_measures_the_merged_model():
    edge = program(Uniform())
    mine, theirs = edge.start(0), edge.start(1)
    merged, verdict = edge.merge(mine, inbox(mine, theirs), work())
    torch.testing.assert_close(merged.params, (mine.params + theirs.params) / 2)
    assert verdict.accuracy == edge.learner.accuracy(merged.params, work().validation)
    assert verdict.scores == {}


def test_models_are_judged_on_the_servers_own_probe():
    edge = program()
    mine, theirs = edge.train(edge.start(0), work(), 0), edge.start(1)
    _, verdict = edge.merge(mine, inbox(mine, theirs), work())
    expected = [edge.learner.losses(server.params, work().probe).mean() for server in (mine, theirs)]
    torch.testing.assert_close(verdict.scores["loss"], torch.stack(expected))
    better = int(torch.stack(expected).argmin())
    assert int(verdict.importance.argmax()) == better


def test_the_optimiser_stays_at_home():
    edge = program(Uniform())
    trained = edge.train(edge.start(0), work(), 0)
    merged, _ = edge.merge(trained, inbox(trained, edge.start(1)), work())
    assert merged.optimiser is trained.optimiser


def test_push_sum_splits_its_mass_between_receivers_and_itself():
    edge = program(PushSum())
    kept, offer = edge.offer(edge.start(0), work(), num_receivers=2)
    assert offer.mass == kept.mass == pytest.approx(1 / 3)
    merged, _ = edge.merge(kept, inbox(kept, edge.start(1), mass=1 / 3), work())
    assert merged.mass == pytest.approx(2 / 3)


def test_everybody_else_always_has_mass_one():
    edge = program(Uniform())
    kept, offer = edge.offer(edge.start(0), work(), num_receivers=3)
    assert offer.mass == kept.mass == 1
    assert offer.num_samples == 12


def test_without_a_cool_down_every_step_has_full_length():
    assert [StepSchedule(5).at(t) for t in range(7)] == [1.0] * 7


def test_a_cool_down_ends_in_a_straight_line_at_almost_nothing():
    pace = StepSchedule(rounds=10, cool_down=0.4)
    assert [pace.at(t) for t in range(5, 10)] == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2])
    assert [pace.at(t) for t in range(6)] == [1.0] * 6


def test_beyond_its_rounds_a_run_keeps_the_last_length():
    pace = StepSchedule(rounds=10, cool_down=1.0)
    assert pace.at(10) == pace.at(25) == pace.at(9) == pytest.approx(1 / 11)


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan")])
def test_a_cool_down_is_a_share(share):
    with pytest.raises(ConfigError, match=r"learner\.cool_down is"):
        StepSchedule(10, share)
