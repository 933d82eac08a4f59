"""The exchange of a stacked fleet, without the fleet."""

import pytest
import torch

from hatdfed.fleets.stacked.merging import sent_models
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
