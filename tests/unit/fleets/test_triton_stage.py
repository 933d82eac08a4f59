"""The GPU's stages against the plain ones: on a GPU, or anywhere in Triton's interpreter (TRITON_INTERPRET=1).

Triton 3.5's interpreter needs numpy below 2.4.
"""

import os

import pytest
import torch

from hatdfed.fleets.kernels.torch_stage import StageShape, infer_stages, train_stage
from hatdfed.fleets.kernels.triton.stage import infer, supports, train, triton_available

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
EPSILON = 1e-5

needs_triton = pytest.mark.skipif(
    not triton_available() or not (INTERPRETED or torch.cuda.is_available()),
    reason="needs the package triton, and an NVIDIA GPU or TRITON_INTERPRET=1",
)
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the interpreter's, of numpy

TRAINED = {
    "one channel": (StageShape(1, 16, 6, 6, 1), [3, 0, 2]),
    "odd sizes": (StageShape(1, 16, 5, 7, 1), [3, 1]),
    "three channels, no padding, an odd edge": (StageShape(3, 8, 6, 5, 0), [2, 3]),
    "16 channels": (StageShape(16, 32, 4, 4, 1), [0, 3]),
    "32 channels, odd sizes": (StageShape(32, 20, 5, 6, 0), [3, 2]),
}


def draw(shape, servers, batch, seed=0):
    """Examples, weights, scale (of either sign) and shift."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(servers, batch, shape.height, shape.width, shape.channels_in, generator=g)
    weight = torch.randn(servers, shape.channels_out, shape.channels_in, 3, 3, generator=g) / 3
    scale, shift = torch.randn(2, servers, shape.channels_out, generator=g)
    return x, weight, scale, 0.5 * shift


def outcome(stage, drawn, counts, wants_input_gradient, device):
    """Pooled pixels, mean, variance and all gradients, on the CPU."""
    wanted = (wants_input_gradient, True, True, True)
    leaves = [t.to(device).requires_grad_(w) for t, w in zip((t.clone() for t in drawn), wanted, strict=True)]
    output = stage(*leaves, torch.tensor(counts, device=device), EPSILON)
    assert not output.mean.requires_grad
    assert not output.variance.requires_grad
    came = torch.randn(output.pooled.shape, generator=torch.Generator().manual_seed(7)).to(device)
    (output.pooled * came).sum().backward()
    return [t.detach().cpu() for t in (*output, *(leaf.grad for leaf in leaves if leaf.requires_grad))]


def plain(shape):
    return lambda *arguments: train_stage(shape, *arguments)


def on_gpu(shape, precision="ieee"):
    return lambda *arguments: train(shape, *arguments, precision=precision)


def assert_all_close(found, expected, tolerance):
    for index, (one, other) in enumerate(zip(found, expected, strict=True)):
        error = (one - other).abs().max() / other.abs().max().clamp(min=1e-3)
        assert error < tolerance, (index, error)


@needs_triton
@pytest.mark.parametrize(("shape", "counts"), TRAINED.values(), ids=TRAINED.keys())
def test_values_and_gradients_are_those_of_the_plain_stage(shape, counts):
    drawn = draw(shape, len(counts), 3)
    expected = outcome(plain(shape), drawn, counts, shape.channels_in > 3, "cpu")
    found = outcome(on_gpu(shape), drawn, counts, shape.channels_in > 3, DEVICE)
    assert_all_close(found, expected, 1e-5)
    for pooled, count in zip(found[0], counts, strict=True):
        assert not pooled[count:].any()


@needs_triton
def test_few_channels_have_an_input_gradient_too_if_asked():
    shape, counts = StageShape(1, 16, 6, 5, 1), [2, 1]
    drawn = draw(shape, 2, 2)
    expected = outcome(plain(shape), drawn, counts, True, "cpu")
    assert_all_close(outcome(on_gpu(shape), drawn, counts, True, DEVICE), expected, 1e-5)


@needs_triton
@pytest.mark.parametrize("shape", [StageShape(1, 16, 6, 6, 1), StageShape(16, 16, 4, 4, 1)])
def test_of_equal_pixels_the_first_gets_the_gradient(shape):
    # Small whole numbers: different patches give exactly the same value, and often.
    x, weight, scale, shift = draw(shape, 1, 2)
    drawn = ((x > 0.5).float(), (weight * 3).round().clamp(-1, 1), scale, shift.abs())
    expected = outcome(plain(shape), drawn, [2], shape.channels_in > 3, "cpu")
    assert_all_close(outcome(on_gpu(shape), drawn, [2], shape.channels_in > 3, DEVICE), expected, 1e-5)


@needs_triton
@pytest.mark.skipif(INTERPRETED, reason="the interpreter multiplies in float32, whatever it is told")
@pytest.mark.parametrize("shape", [StageShape(1, 32, 28, 28, 1), StageShape(32, 64, 14, 14, 0)])
def test_tf32_is_close_and_repeats_bit_for_bit(shape):
    counts = [60, 31, 7]
    drawn = draw(shape, 3, 60)
    expected = outcome(plain(shape), drawn, counts, shape.channels_in > 3, "cpu")
    found = outcome(on_gpu(shape, "tf32"), drawn, counts, shape.channels_in > 3, DEVICE)
    again = outcome(on_gpu(shape, "tf32"), drawn, counts, shape.channels_in > 3, DEVICE)
    assert all(torch.equal(one, other) for one, other in zip(found, again, strict=True))
    for one, other in zip(found, expected, strict=True):  # by norm: a position that flips is a large single difference
        assert (one - other).norm() < 0.03 * other.norm()


@needs_triton
@pytest.mark.parametrize("shared", [True, False], ids=["shared images", "own images"])
@pytest.mark.parametrize(
    "shapes",
    [
        [StageShape(1, 16, 8, 8, 1), StageShape(16, 32, 4, 4, 1)],
        [StageShape(3, 32, 9, 11, 1), StageShape(32, 20, 4, 5, 0)],
        [StageShape(8, 16, 5, 4, 1)],
    ],
)
def test_inference_is_that_of_the_plain_stages(shapes, shared):
    servers = 9 if shared and shapes[0].channels_in < 8 else 2  # 9: more than one group
    x, *_ = draw(shapes[0], 1 if shared else servers, 3)
    weights, biases = zip(*(draw(shape, servers, 1)[1::2] for shape in shapes), strict=True)
    expected = infer_stages(shapes, x, list(weights), list(biases))
    there = [[t.to(DEVICE) for t in tensors] for tensors in (weights, biases)]
    found = infer(shapes, x.to(DEVICE), *there, dtype=torch.float32).cpu()
    assert_all_close([found], [expected], 1e-5)
    coarse = torch.float16 if INTERPRETED else torch.bfloat16  # the interpreter cannot multiply bfloat16
    found = infer(shapes, x.to(DEVICE), *there, dtype=coarse).cpu()
    assert found.dtype == coarse
    assert_all_close([found.float()], [expected], 0.05)


def test_what_the_kernels_take():
    assert supports(StageShape(3, 64, 32, 32, 1))
    assert not supports(StageShape(128, 64, 32, 32, 1))
    assert not supports(StageShape(1, 16, 3, 3, 0))  # nothing left after pooling
