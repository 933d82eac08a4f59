"""The exchange of a stacked fleet, without the fleet."""

import numpy as np
import pytest
import torch

from hatdfed.fleets.stacked.merging import StackedInbox, decide, sent_models
from hatdfed.fleets.stacked.reports import fetch
from hatdfed.fleets.stacked.rows import Execution, Rows
from hatdfed.server.aggregation import BySamples, Importance, Inbox, Probe, Uniform, weighted
from hatdfed.server.codecs import CODECS
from hatdfed.server.codecs.base import payload_bits


@pytest.mark.parametrize("name", ["float16", "int8", "int4"])
@pytest.mark.parametrize("count", [1, 16, 37])
def test_many_models_go_through_a_codec_as_each_alone(name, count):
    codec, generator = CODECS[name], torch.Generator().manual_seed(3)
    models = torch.randn(count, 201, generator=generator)
    memories = [0.01 * torch.randn(len(codec.init(201)), generator=generator) for _ in range(count)]
    sent = sent_models(codec, models, memories)
    assert sent.models.shape == models.shape
    for row in range(count):
        payload, memory = codec.encode(models[row], memories[row])
        assert torch.equal(sent.models[row], codec.decode(payload, 201))
        assert torch.equal(sent.memories[row], memory)
        assert sent.compression[row] == payload_bits(payload) / (32 * 201)


MANY = [Importance(), Importance(loss_scale="printed", volume="softmax-of-counts"), Uniform(), BySamples()]
MANY += [Importance(loss_order="high-first", loss_scale="released", volume="receiver-count")]


@pytest.mark.parametrize("rule", MANY, ids=repr)
def test_a_rule_that_is_called_once_for_many_servers_gives_what_it_gives_each(rule):
    generator = torch.Generator().manual_seed(4)
    servers, slots, samples = 30, 5, 16
    present = torch.rand(servers, slots, generator=generator) < 0.6
    present[:, 0] = True
    losses = 3 * torch.rand(servers, slots, samples, generator=generator)
    losses[3, 1] = torch.nan
    valid = torch.arange(samples) < torch.randint(1, samples + 1, (servers, 1), generator=generator)
    counts = torch.randint(0, 60, (servers, slots), generator=generator)
    counts[5] = 0
    mixing, mass = torch.rand(2, servers, slots, generator=generator, dtype=torch.float64)
    inboxes = Inbox(torch.zeros(servers, slots, 1), counts, mixing, mass, present)
    together = rule(Probe(losses, valid), inboxes)
    for i in range(servers):
        alone = rule(Probe(losses[i], valid[i]), Inbox(*(table[i] for table in inboxes)))
        torch.testing.assert_close(together.importance[i], alone.importance, rtol=1e-6, atol=0)
        assert float(together.mass[i]) == float(alone.mass) == 1
        torch.testing.assert_close(Probe(losses, valid).mean[i], Probe(losses[i], valid[i]).mean, equal_nan=True)


def test_a_rule_made_of_another_is_not_called_for_many_servers_at_once():
    class OwnOnly(Uniform):
        def __call__(self, probe, inbox):
            own = torch.arange(len(inbox.present), device=inbox.present.device) == 0
            return weighted(own.double(), inbox)

    kinds = (torch.int64, torch.int64, torch.float64, torch.float64, torch.bool)
    held = StackedInbox(*(torch.ones(3, 2, dtype=kind) for kind in kinds))
    decision = decide(OwnOnly(), None, held, torch.zeros(3, 4), torch.zeros(3, 4), np.arange(3))
    assert decision.weights.tolist() == [[1, 0]] * 3


def test_all_numbers_of_a_round_come_to_the_host_in_one_table():
    tensors = [
        torch.rand(3),
        torch.rand(3, 2) < 0.5,
        torch.rand(2, 3, dtype=torch.float64),
        torch.full((1,), torch.nan),
    ]
    for found, tensor in zip(fetch(*tensors), tensors, strict=True):
        np.testing.assert_array_equal(found, tensor.double().numpy())


@pytest.mark.parametrize(("runs", "is_range"), [([1], True), ([0, 1, 2], True), ([0, 2], False)])
def test_runs_side_by_side_are_a_range_of_rows(runs, is_range):
    rows = Rows.__new__(Rows)
    rows.first, rows.how = [0, 3, 5, 9], Execution(torch.device("cpu"), rows_at_once=4)
    place = rows.place_of(runs)
    assert isinstance(place, slice) is is_range
    assert np.arange(9)[place if is_range else place.numpy()].tolist() == rows.numbers_of(runs).tolist()
