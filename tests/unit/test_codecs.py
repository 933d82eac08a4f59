import pytest
import torch

from hatdfed.codecs import CODECS, payload_bits
from hatdfed.errors import WireError

MODEL = torch.tensor([0.0, 1.5, -2.25, 1e-4, 3e4])


@pytest.mark.parametrize(("name", "bits", "error"), [("float32", 32, 0.0), ("float16", 16, 1e-3)])
def test_a_model_comes_back_as_exactly_as_the_format_allows(name, bits, error):
    codec = CODECS[name]
    payload, _ = codec.encode(MODEL, codec.init(len(MODEL)))
    assert payload_bits(payload) == bits * len(MODEL)
    torch.testing.assert_close(codec.decode(payload, len(MODEL)), MODEL, rtol=error, atol=1e-6)


def test_encoding_leaves_the_model_alone():
    before = MODEL.clone()
    CODECS["float16"].encode(MODEL, torch.zeros(0))
    assert torch.equal(MODEL, before)


def test_half_precision_does_not_overflow_to_infinity():
    payload, _ = CODECS["float16"].encode(torch.tensor([1e9, -1e9]), torch.zeros(0))
    assert torch.isfinite(CODECS["float16"].decode(payload, 2)).all()


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ({}, "wrong-shape"),
        ({"model": torch.zeros(4)}, "wrong-shape"),
        ({"model": torch.zeros(5, dtype=torch.float64)}, "wrong-shape"),
        ({"model": torch.tensor([0.0, 1, 2, 3, torch.nan])}, "not-finite"),
        ({"model": torch.tensor([0.0, 1, 2, 3, torch.inf])}, "not-finite"),
    ],
)
def test_what_is_no_model_is_refused(payload, reason):
    with pytest.raises(WireError) as caught:
        CODECS["float32"].decode(payload, 5)
    assert caught.value.reason == reason
