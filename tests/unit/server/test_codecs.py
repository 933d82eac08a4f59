import pytest
import torch
from tests.small_runs import config

from hatdfed.errors import ConfigError, WireError
from hatdfed.fleets.stacked.merging import sent_models
from hatdfed.runs.calls import run
from hatdfed.server.codecs import CODECS, codec_for
from hatdfed.server.codecs.base import expect, message_share, payload_bits, sound
from hatdfed.server.codecs.block_quantised import Int4, Int8
from hatdfed.setup.layers import resolve

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


def test_eight_bits_and_a_scale_for_each_block():
    codec = Int8(block=128)
    payload, _ = codec.encode(torch.randn(1000), codec.init(1000))
    assert payload_bits(payload) == 8 * 1000 + 32 * 8
    assert message_share(codec, 1000) == pytest.approx((8 * 1000 + 32 * 8) / 32000)


@pytest.mark.parametrize("count", [1000, 1001])
def test_four_bits_and_half_a_scale_for_each_block(count):
    codec = Int4(block=64)
    payload, _ = codec.encode(torch.randn(count), codec.init(count))
    assert payload_bits(payload) == 8 * ((count + 1) // 2) + 16 * 16


@pytest.mark.parametrize("count", [1, 2, 15, 64, 129])
def test_every_level_of_four_bits_comes_back(count):
    model = (torch.arange(count) % 15 - 7).to(torch.float32)
    model[0] = -7.0
    payload, memory = Int4(block=256).encode(model, torch.zeros(count))
    assert torch.equal(Int4(block=256).decode(payload, count), model)
    assert not memory.any()


FEW_BITS = pytest.mark.parametrize("codec", [Int8(), Int4()], ids=["int8", "int4"])


@FEW_BITS
def test_what_rounding_takes_comes_back_with_later_messages(codec):
    """Σ of what was received = Σ of what was meant, but for what is remembered: nothing is lost over time."""
    generator = torch.Generator().manual_seed(0)
    memory, meant, received = codec.init(300), torch.zeros(300), torch.zeros(300)
    for _ in range(20):
        model = torch.randn(300, generator=generator)
        payload, memory = codec.encode(model, memory)
        meant, received = meant + model, received + codec.decode(payload, 300)
    torch.testing.assert_close(received + memory, meant, rtol=0, atol=1e-4)
    assert memory.abs().max() < 4 / codec.most


@FEW_BITS
def test_a_constant_smaller_than_a_level_arrives_on_average(codec):
    model = torch.tensor([1.0, 0.127 / codec.most])
    memory, received = codec.init(2), torch.zeros(2)
    for _ in range(100):
        payload, memory = codec.encode(model, memory)
        received += codec.decode(payload, 2) / 100
    torch.testing.assert_close(received, model, rtol=0.1, atol=0)


@FEW_BITS
def test_many_models_at_once_are_each_as_alone(codec):
    generator = torch.Generator().manual_seed(1)
    models, memories = torch.randn(4, 201, generator=generator), 0.01 * torch.randn(4, 201, generator=generator)
    payload, remembered = codec.encode(models, memories)
    for row in range(4):
        alone, memory = codec.encode(models[row], memories[row])
        assert torch.equal(codec.restore(payload, 201)[row], codec.decode(alone, 201))
        assert torch.equal(remembered[row], memory)


@FEW_BITS
@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_a_model_that_is_none_is_refused_and_leaves_no_trace(codec, poison):
    payload, memory = codec.encode(torch.tensor([1.0, poison, 2.0]), codec.init(3))
    assert torch.isfinite(memory).all()
    with pytest.raises(WireError) as caught:
        codec.decode(payload, 3)
    assert caught.value.reason == "not-finite"


@FEW_BITS
def test_a_large_finite_weight_is_sent_as_the_largest_there_is(codec):
    largest = codec.most * torch.finfo(codec.scale_format).max
    for weight in (1e5, 1e6, -1e9, 1e30):
        model = torch.randn(200)
        model[7] = weight
        memory = codec.init(200)
        for _ in range(20):
            payload, memory = codec.encode(model, memory)
            seen = codec.decode(payload, 200)
        assert seen[7] == pytest.approx(max(-largest, min(weight, largest)), rel=0.01)
        assert torch.isfinite(memory).all()
        model[7] = 0.5  # a weight that has come back is soon sent as it is: no debt was piled up
        for _ in range(10):
            payload, memory = codec.encode(model, memory)
        assert abs(codec.decode(payload, 200)[7]) < 2


@FEW_BITS
def test_zeros_stay_zeros(codec):
    payload, memory = codec.encode(torch.zeros(5), codec.init(5))
    assert torch.equal(codec.decode(payload, 5), torch.zeros(5))
    assert torch.equal(memory, torch.zeros(5))


@FEW_BITS
@pytest.mark.parametrize("sizes", [(2000, 3, 5, 1500), (4, 2000, 4), (4, 2000), (2000, 1), (2000,), (5, 5)])
def test_small_tensors_are_sent_as_they_are(codec, sizes):
    codec = codec.fitted(sizes)
    model = torch.cat([torch.full((size,), 100.0) if size > 9 else torch.rand(size) / 1000 for size in sizes])
    model[0] += 1
    payload, memory = codec.encode(model, codec.init(len(model)))
    decoded = codec.decode(payload, len(model))
    start = 0
    for size in sizes:
        if size <= 9 and max(sizes) > 9:
            assert torch.equal(decoded[start : start + size], model[start : start + size])
            assert not memory[start : start + size].any()
        start += size
    torch.testing.assert_close(decoded, model, rtol=0, atol=101 / codec.most / 2 + 0.1)
    assert payload_bits(payload) < 32 * len(model) or max(sizes) < 9


@FEW_BITS
def test_a_payload_without_its_plain_part_is_refused(codec):
    codec = codec.fitted((2000, 4))
    payload, _ = codec.encode(torch.randn(2004), codec.init(2004))
    with pytest.raises(WireError):
        codec.decode({name: part for name, part in payload.items() if name != "plain"}, 2004)


class Halves:
    """A codec of one's own, which takes one model at a time: every other number."""

    def init(self, num_params):
        return torch.zeros(0)

    def encode(self, model, memory):
        return {"even": model[::2].clone()}, memory

    def decode(self, payload, num_params):
        model = torch.zeros(num_params)
        model[::2] = expect(payload, "even", torch.float32, ((num_params + 1) // 2,))
        return sound(model)


def test_a_codec_of_ones_own_gives_the_same_run_in_every_fleet(monkeypatch):
    monkeypatch.setitem(CODECS._loaded, "halves", Halves())
    by_fleet = [run(config(codec="halves", rounds=3), fleet=fleet, device="cpu") for fleet in ("mailbox", "stacked")]
    mailbox, stacked = (result.summary for result in by_fleet)
    assert mailbox["accuracy_by_server"] == pytest.approx(stacked["accuracy_by_server"], abs=1e-6)
    assert mailbox["link_energy_mj"] == pytest.approx(stacked["link_energy_mj"])
    assert {row["bits"] for row in by_fleet[0].ledger if row["cause"] == "link"} != set()


def test_a_message_that_such_a_codec_refuses_is_a_model_that_is_not_merged():
    models = torch.stack([torch.ones(6), torch.full((6,), torch.inf)])
    sent = sent_models(Halves(), models, [torch.zeros(0)] * 2)
    assert torch.isfinite(sent.models).all(dim=1).tolist() == [True, False]


def test_a_codec_knows_the_tensors_of_its_model_where_it_asks_for_them():
    assert codec_for("int8", (2000, 4)).plain == ((2000, 2004),)
    assert codec_for("float16", (2000, 4)) is CODECS["float16"]


@pytest.mark.parametrize("thing", [Halves, "int4", object()])
def test_what_is_no_codec_is_refused(thing):
    with pytest.raises(ConfigError, match="must be an object"):
        CODECS.add("theirs", thing)


def test_a_codec_that_was_removed_is_refused_with_what_to_use_instead():
    with pytest.raises(ConfigError, match=r"^codec top-k was removed in version 0\.2: use int8 or int4, [^.]*\.$"):
        resolve({"codec": "top-k"})
