"""What every codec must satisfy."""

from __future__ import annotations

import pytest
import torch

from hatdfed.errors import WireError
from hatdfed.server.codecs.base import Codec, payload_bits


class CodecLaws:
    """Tests that every codec must pass."""

    relative_error: float = 0.0  # of a decoded model, in the Euclidean norm

    def codec(self) -> Codec:
        """Return the codec under test."""
        raise NotImplementedError

    def test_a_model_comes_back_as_exactly_as_promised(self) -> None:
        for seed in range(10):
            model = torch.randn(101, generator=torch.Generator().manual_seed(seed))
            payload, _ = self.codec().encode(model, self.codec().init(len(model)))
            decoded = self.codec().decode(payload, len(model))
            assert decoded.dtype == torch.float32
            assert float((decoded - model).norm()) <= self.relative_error * float(model.norm()) + 1e-12

    def test_encoding_leaves_its_arguments_alone(self) -> None:
        model = torch.randn(50, generator=torch.Generator().manual_seed(1))
        memory = self.codec().init(len(model))
        before = model.clone(), memory.clone()
        self.codec().encode(model, memory)
        assert torch.equal(model, before[0])
        assert torch.equal(memory, before[1])

    def test_no_more_bits_than_the_plain_model(self) -> None:
        model = torch.zeros(1000)
        payload, _ = self.codec().encode(model, self.codec().init(len(model)))
        assert 0 < payload_bits(payload) <= 32 * len(model)

    def test_a_payload_of_another_size_is_refused(self) -> None:
        payload, _ = self.codec().encode(torch.zeros(20), self.codec().init(20))
        with pytest.raises(WireError):
            self.codec().decode(payload, 21)
        with pytest.raises(WireError):
            self.codec().decode({}, 20)
