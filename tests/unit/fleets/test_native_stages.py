"""The C stages against the plain ones in torch, and what happens without a compiler."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from hatdfed.fleets.kernels.native import build, jobs
from hatdfed.fleets.kernels.native.stages import NativeStages, native_stages
from hatdfed.fleets.kernels.torch_stage import StageOutput, StageShape, infer_stages, train_stage

EPSILON = 1e-5
SHAPES = [
    StageShape(1, 32, 28, 28, 1),
    StageShape(32, 64, 14, 14, 0),
    StageShape(1, 16, 5, 5, 1),
    StageShape(3, 20, 7, 9, 0),
    StageShape(16, 32, 4, 4, 1),
    StageShape(16, 20, 8, 5, 0),
    StageShape(5, 48, 6, 13, 1),
    StageShape(20, 16, 7, 16, 1),
]


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all worker processes: compiling takes most of the time, and no shape need be compiled twice."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "cache"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(autouse=True)
def _private_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.delenv("HATDFED_NATIVE", raising=False)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def compiled(*shapes: StageShape) -> NativeStages:
    if build._compiler() is None:
        pytest.skip("no C compiler")
    stages = native_stages(shapes)
    assert stages is not None
    return stages


def numbers(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed))


def parameters(shape: StageShape, servers: int) -> tuple[Tensor, Tensor, Tensor]:
    """Weight, scale (some negative) and shift."""
    weight = numbers(servers, shape.channels_out, shape.channels_in, 3, 3) / (9 * shape.channels_in) ** 0.5
    scale, shift = numbers(servers, shape.channels_out, seed=1), numbers(servers, shape.channels_out, seed=2) / 2
    return weight, scale, shift


def images(shape: StageShape, servers: int, batch: int) -> Tensor:
    return numbers(servers, batch, shape.height, shape.width, shape.channels_in, seed=3) + 0.5


def trained(
    stages: NativeStages | None, shape: StageShape, x: Tensor, leaves: tuple[Tensor, ...], counts: Tensor, skip: int = 0
) -> tuple[StageOutput, list[Tensor]]:
    """Output and gradients of x, weight, scale and shift under a random gradient; without stages those of torch."""
    gradient = numbers(len(x) + skip, 40, *shape.pooled, shape.channels_out, seed=4)[skip:, : x.shape[1]]
    x, *leaves = (tensor.clone().requires_grad_() for tensor in (x, *leaves))  # type: ignore[assignment]
    if stages is None:
        out = train_stage(shape, x, *leaves, counts, EPSILON)  # type: ignore[call-arg]
    else:
        out = stages.train(0, x, *leaves, counts, EPSILON)  # type: ignore[call-arg]
    return out, list(torch.autograd.grad(out.pooled, (x, *leaves), gradient))


def assert_close(actual: Tensor, expected: Tensor, cancelled: float = 1.0) -> None:
    """`cancelled`: how many times larger the terms are than their sum."""
    scale = expected.abs().max().clamp(min=1e-3).item() if expected.numel() else 1.0
    torch.testing.assert_close(actual, expected, rtol=2e-4, atol=2e-5 * scale * cancelled)


def same(a: Tensor, b: Tensor) -> bool:
    return bool(torch.equal(a.view(torch.int32), b.view(torch.int32)))


@pytest.mark.parametrize("shape", SHAPES)
def test_training_agrees_with_torch(shape: StageShape) -> None:
    servers, batch = 4, 18
    counts = torch.tensor([batch, 0, 7, 1])
    given = images(shape, servers, batch), parameters(shape, servers), counts
    out, gradients = trained(compiled(shape), shape, *given)
    expected_out, expected_gradients = trained(None, shape, *given)
    for actual, expected in zip([*out, *gradients], [*expected_out, *expected_gradients], strict=True):
        assert_close(actual, expected)
    for server, count in enumerate(counts.tolist()):
        assert not out.pooled[server, count:].any()
        assert not gradients[0][server, count:].any()
    assert not out.mean.requires_grad
    assert not out.variance.requires_grad


@pytest.mark.parametrize("shape", [StageShape(1, 16, 5, 5, 1), StageShape(16, 20, 8, 5, 0)])
def test_first_of_equal_pixels_gets_the_gradient(shape: StageShape) -> None:
    x = torch.ones(2, 3, shape.height, shape.width, shape.channels_in)
    x[0, 1] = 2.0  # so that the batch has a variance
    weight, scale, shift = parameters(shape, 2)
    weight = (weight * 64).round() / 64  # sums of such numbers are exact in any order: equal pixels are equal in bits
    given = x, (weight, scale, shift), torch.tensor([3, 2])
    out, gradients = trained(compiled(shape), shape, *given)
    expected_out, expected_gradients = trained(None, shape, *given)
    assert_close(out.pooled[0], expected_out.pooled[0])
    for actual, expected in zip(gradients, expected_gradients, strict=True):
        assert_close(actual[0], expected[0], cancelled=10)  # without a border the other's variance is mere round-off


def test_padding_may_hold_anything() -> None:
    shape = StageShape(3, 20, 7, 9, 0)
    stages, counts = compiled(shape), torch.tensor([5, 2])
    x, leaves = images(shape, 2, 6), parameters(shape, 2)
    out, gradients = trained(stages, shape, x, leaves, counts)
    x[0, 5:], x[1, 2:] = float("nan"), float("inf")
    with_rubbish, gradients_with_rubbish = trained(stages, shape, x, leaves, counts)
    assert all(map(same, [*out, *gradients], [*with_rubbish, *gradients_with_rubbish]))


def test_variance_is_sound_far_from_zero() -> None:
    shape = StageShape(3, 20, 7, 9, 0)
    x, leaves, counts = images(shape, 1, 20) + 1000.0, parameters(shape, 1), torch.tensor([20])
    out, _ = trained(compiled(shape), shape, x, leaves, counts)
    exact = train_stage(shape, x.double(), *(leaf.double() for leaf in leaves), counts, EPSILON)
    torch.testing.assert_close(out.variance.double(), exact.variance, rtol=1e-3, atol=0)


def test_x_needs_no_gradient_and_nothing_need_be_contiguous() -> None:
    shape = StageShape(16, 32, 4, 4, 1)
    x, (weight, scale, shift), counts = images(shape, 3, 5), parameters(shape, 3), torch.tensor([5, 3, 4])
    strided = x.transpose(0, 1).contiguous().transpose(0, 1)
    weight = weight.transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
    pooled = compiled(shape).train(0, strided, weight, scale, shift, counts, EPSILON).pooled
    expected = train_stage(shape, x, weight, scale, shift, counts, EPSILON).pooled
    for actual, wanted in zip(
        torch.autograd.grad(pooled.sum(), weight), torch.autograd.grad(expected.sum(), weight), strict=True
    ):
        assert_close(actual, wanted)


@pytest.mark.parametrize(
    "shapes",
    [
        [StageShape(1, 32, 28, 28, 1), StageShape(32, 64, 14, 14, 0)],
        [StageShape(3, 32, 32, 32, 1), StageShape(32, 64, 16, 16, 0)],
        [StageShape(1, 16, 8, 8, 1), StageShape(16, 32, 4, 4, 1)],
        [StageShape(3, 20, 11, 23, 0), StageShape(20, 48, 4, 10, 1)],
        *([StageShape(32, 16, *size)] for size in [(8, 8, 0), (7, 9, 1), (4, 26, 0), (4, 4, 0)]),
    ],
)
def test_inference_agrees_with_torch(shapes: list[StageShape]) -> None:
    servers, stages = 3, compiled(*shapes)
    weights, _, biases = zip(*(parameters(shape, servers) for shape in shapes), strict=True)
    for batches in (servers, 1):  # one for each server, or one that they share
        x = images(shapes[0], batches, 11)
        expected = infer_stages(shapes, x, list(weights), list(biases))
        actual = stages.infer(x, weights, biases)
        torch.testing.assert_close(actual, expected, rtol=0, atol=5e-6 * expected.max().item())


@pytest.mark.parametrize("batch", [1, 3, 7, 17])
def test_images_get_the_same_answers_in_any_company(batch: int) -> None:
    shapes, servers = [StageShape(3, 32, 32, 32, 1), StageShape(32, 64, 16, 16, 0)], 2
    stages, x = compiled(*shapes), images(shapes[0], servers, 17)
    weights, _, biases = zip(*(parameters(shape, servers) for shape in shapes), strict=True)
    head = numbers(servers, 10, 7 * 7 * 64, seed=5) / 56, numbers(servers, 10, seed=6)
    features, answers = stages.infer(x, weights, biases), stages.infer(x, weights, biases, head)
    torch.set_num_threads(batch % 3 + 1)
    assert same(stages.infer(x[:, -batch:], weights, biases), features[:, -batch:])
    assert same(stages.infer(x[:, -batch:], weights, biases, head), answers[:, -batch:])
    plain = infer_stages(shapes, x, list(weights), list(biases)).flatten(2)
    expected = torch.baddbmm(head[1][:, None], plain, head[0].transpose(1, 2))
    assert_close(answers, expected)
    chosen = expected.gather(2, answers.argmax(2, keepdim=True))[..., 0]
    assert (expected.amax(2) - chosen).max() < 1e-5  # the same, or as good


@pytest.mark.parametrize("shape", [StageShape(1, 16, 5, 5, 1), StageShape(16, 32, 4, 4, 1)])
def test_bits_do_not_depend_on_threads_nor_on_other_servers(shape: StageShape, monkeypatch: pytest.MonkeyPatch) -> None:
    stages, servers, batch = compiled(shape), 3, 40
    x, leaves, counts = images(shape, servers, batch), parameters(shape, servers), torch.tensor([40, 17, 30])
    weight, _, bias = leaves
    results = []
    for threads in (1, 2, 3, 1, 2, 3):
        torch.set_num_threads(threads)
        if len(results) == 3:
            monkeypatch.setattr(jobs, "_team", None)  # as where torch has another OpenMP library or none
        out, gradients = trained(stages, shape, x, leaves, counts)
        results.append([*out, *gradients, stages.infer(x, [weight], [bias])])
    for other in results[1:]:
        assert all(map(same, results[0], other))
    alone, gradients = trained(stages, shape, x[1:2, :17], tuple(leaf[1:2] for leaf in leaves), counts[1:2], skip=1)
    assert same(alone.pooled[0], results[0][0][1, :17])
    assert all(same(own[0], of_all[1]) for own, of_all in zip(gradients[1:], results[0][4:7], strict=True))


def test_wrong_sizes_are_refused() -> None:
    shape = StageShape(1, 16, 8, 8, 1)
    stages, x, leaves = compiled(shape), images(shape, 1, 4), parameters(shape, 1)
    with pytest.raises(ValueError, match="counts"):
        stages.train(0, x, *leaves, torch.tensor([5]), EPSILON)
    with pytest.raises(ValueError, match="float32"):
        stages.train(0, x[..., :7, :], *leaves, torch.tensor([4]), EPSILON)
    with pytest.raises(ValueError, match="float32"):
        stages.infer(x.double(), [leaves[0]], [leaves[2]])


def test_empty_batches() -> None:
    shape = StageShape(1, 16, 8, 8, 1)
    stages, (weight, scale, shift) = compiled(shape), parameters(shape, 2)
    out, gradients = trained(stages, shape, images(shape, 2, 0), (weight, scale, shift), torch.tensor([0, 0]))
    assert out.pooled.shape == (2, 0, 4, 4, 16)
    assert not any(gradient.any() for gradient in gradients)
    assert stages.infer(images(shape, 2, 0), [weight], [shift]).shape == (2, 0, 4, 4, 16)


TINY = StageShape(1, 4, 4, 4, 1)


@pytest.fixture
def quick_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of where compiled code is kept: it need not be fast."""
    monkeypatch.setattr(build, "_FLAGS", ("-O0", "-fPIC", "-shared"))


def test_no_compiler_gives_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build.shutil, "which", lambda _name: None)
    assert native_stages([TINY]) is None


def test_failing_compiler_gives_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CC", "false")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert native_stages([TINY]) is None
    assert list(build.cache_folder().iterdir()) == []


def test_environment_turns_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HATDFED_NATIVE", "0")
    assert native_stages([TINY]) is None


def test_shapes_without_output_give_none() -> None:
    assert native_stages([StageShape(1, 4, 3, 8, 0)]) is None
    assert native_stages([]) is None


@pytest.mark.usefixtures("quick_compiler")
def test_second_build_uses_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compiled(TINY)
    assert stat.S_IMODE(build.cache_folder().stat().st_mode) == 0o700
    assert len(list(build.cache_folder().iterdir())) == 1

    def fail(*_arguments: object) -> bool:
        raise AssertionError("compiled again")

    monkeypatch.setattr(build, "_compile", fail)
    assert native_stages([TINY]) is not None


@pytest.mark.usefixtures("quick_compiler")
def test_a_file_of_someone_else_is_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compiled(TINY)
    (cached,) = build.cache_folder().iterdir()
    cached.unlink()
    cached.symlink_to("/nonexistent/code.so")  # a link is as little ours as a file of another user
    assert native_stages([TINY]) is not None
    assert not cached.is_symlink()


def refuse(*_arguments: object, **_options: object) -> None:
    raise PermissionError


@pytest.mark.usefixtures("quick_compiler")
@pytest.mark.parametrize("trouble", ["someone else's", "open to all", "a file", "unwritable"])
def test_no_cache_folder_is_not_fatal(trouble: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = build.cache_folder()
    folder.parent.mkdir()
    if trouble == "a file":
        folder.touch()
    else:
        folder.mkdir(mode=0o700)
    if trouble == "open to all":
        folder.chmod(0o777)
    if trouble == "someone else's":
        nobody = os.getuid() + 1
        monkeypatch.setattr(build.os, "getuid", lambda: nobody)
    if trouble == "unwritable":
        monkeypatch.setattr(Path, "mkdir", refuse)  # not by its mode: root may write anywhere
    compiled(TINY)
    assert folder.is_file() or list(folder.iterdir()) == []
