"""How a module is computed is found out by trying, and the reason is told."""

import re
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (the usual name)
from torch import nn

from hatdfed.fleets.stacked import trial
from hatdfed.fleets.stacked.choose_model import choose_model
from hatdfed.fleets.stacked.lifted import LiftedModel, Lifting, liftable_operations
from hatdfed.fleets.stacked.looped import LoopedModel, put_channels_last
from hatdfed.fleets.stacked.model import BytesPerSample, ModelRows
from hatdfed.fleets.stacked.trial import measure_memory, try_lifting
from hatdfed.server.learner import Learner
from hatdfed.server.networks import NETWORKS
from hatdfed.server.optimisers import Adam, Sgd
from hatdfed.server.private_steps import PrivateSteps
from hatdfed.server.work import Batch, WorkPlan

CPU = torch.device("cpu")
POOL = Batch(torch.randn(20, 6, 4, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 5)


class Around(nn.Module):
    """A module, and what becomes of its input before a last layer."""

    def __init__(self, change, inner=None, width=24):
        super().__init__()
        self.inner = inner or nn.Identity()
        self.change = change
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        return self.head(self.change(self.inner, x).flatten(1))


def branching(_, x):
    return x * 2 if x.mean() > 0 else x


def dropping(_, x):
    return F.dropout(x, 0.5)  # by torch's generator, not by a layer


def centred(_, x):
    return x - x.mean(dim=0)


def last_output(inner, x):
    return inner(x)[0][:, -1]


def attending(inner, x):
    return inner(x, x, x, need_weights=False)[0]


def called(inner, x):
    return inner(x)


class Remembering(nn.Module):
    """Adds what it has seen before."""

    def __init__(self):
        super().__init__()
        self.head, self.seen = nn.Linear(24, 10), None

    def forward(self, x):
        outputs = self.head(x.flatten(1))
        if self.seen is not None:
            outputs = outputs + self.seen.mean()
        self.seen = outputs.detach()
        return outputs


class Squared(torch.autograd.Function):
    """A gradient of one's own, without a rule for vmap."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * ctx.saved_tensors[0] * gradient


LIFTED = {
    "layer norm": lambda: Around(called, nn.LayerNorm(4)),
    "attention": lambda: Around(attending, nn.MultiheadAttention(4, 2, batch_first=True)),
    "dropout": lambda: Around(called, nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))),
    "encoder": lambda: Around(called, nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)),
}
BY_SIZE = {
    "batch norm": lambda: Around(called, nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(6))),
    "centred": lambda: Around(centred),
    "time first": lambda: Around(
        lambda inner, x: inner(x.transpose(0, 1)).transpose(0, 1), nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    ),
}
LOOPED = {
    "control flow": (lambda: Around(branching), "data-dependent control flow"),
    "random numbers": (lambda: Around(dropping), "random operation"),
    "lstm": (lambda: Around(last_output, nn.LSTM(4, 24, batch_first=True)), "lstm"),
    "gru": (lambda: Around(last_output, nn.GRU(4, 24, batch_first=True)), "gru"),
    "state": (Remembering, "differ when it is lifted|cannot lift it"),
    "own gradient": (lambda: Around(lambda _, x: Squared.apply(x)), "cannot lift it"),
}


@pytest.mark.parametrize("name", LIFTED)
def test_modules_that_treat_every_sample_by_itself_are_lifted_with_padding(name):
    found = try_lifting(Learner(LIFTED[name], Adam()), POOL, CPU)
    assert (found.lifts, found.pads, found.reason) == (
        True,
        True,
        "torch.vmap lifts it: every sample is treated by itself",
    )


@pytest.mark.parametrize("name", BY_SIZE)
def test_modules_that_mix_samples_are_lifted_by_the_size_of_batches(name):
    found = try_lifting(Learner(BY_SIZE[name], Adam()), POOL, CPU)
    assert (found.lifts, found.pads) == (True, False)
    assert "batches of the same size" in found.reason


@pytest.mark.parametrize("name", LOOPED)
def test_modules_that_cannot_be_lifted_are_looped_over_and_the_reason_is_told(name):
    make, reason = LOOPED[name]
    learner = Learner(make, Adam())
    model = choose_model(learner, POOL, CPU)
    assert model.kernels == "looped"
    assert re.search(reason, model.reason)


def test_a_trial_leaves_no_trace_in_the_module():
    learner = Learner(Remembering, Adam())
    choose_model(learner, POOL, CPU)
    assert learner.module.seen is None
    assert learner.train_module.seen is None


def test_a_network_is_tried_once_for_a_shape(monkeypatch):
    calls = []
    real = trial._try_lifting
    monkeypatch.setattr(trial, "_try_lifting", lambda *given: calls.append(1) or real(*given))

    def make(width, outputs):
        return nn.Sequential(nn.Flatten(), nn.LayerNorm(width), nn.Linear(width, outputs))

    for _ in range(3):
        try_lifting(Learner(partial(make, 24, 10), Adam()), POOL, CPU)
    assert len(calls) == 1
    wide = Batch(torch.zeros(4, 7, 4), torch.zeros(4, dtype=torch.long))
    try_lifting(Learner(partial(make, 28, 10), Adam()), wide, CPU)
    assert len(calls) == 2


def test_a_wrong_lift_is_found_out(monkeypatch):
    """Here padding is taken for samples, as a mask that is forgotten would do."""
    monkeypatch.setattr(LiftedModel, "_loss", lambda self, *given: _unmasked(self, *given))
    learner = Learner(LIFTED["layer norm"], Adam(), xavier=False)
    found = trial._try_lifting(trial._for_trial(learner), POOL, CPU)
    assert found.pads is False


def _unmasked(model, tensors, x, y, count, offset, seed):
    outputs = torch.func.functional_call(model._train_module, dict(tensors), (x,))
    return model.learner.task.losses(outputs, y, offset).mean()


def test_the_memory_of_a_sample_is_that_of_its_activations():
    """Sixteen floats in and a ReLU of 1,000: what is kept grows by them with every sample."""
    make = partial(nn.Sequential, nn.Flatten(), nn.Linear(16, 1000), nn.ReLU(), nn.Linear(1000, 10))
    pool = Batch(torch.randn(6, 16), torch.arange(6) % 5)
    found = measure_memory(Learner(make, Adam()), pool, CPU)
    assert found.sample.kept == 16 * 4 + 8
    assert found.sample.judging == (16 + 10) * 4
    assert 2 * 4 * 1000 <= found.sample.training <= 2 * 4 * 3 * 1100
    assert measure_memory(Learner(make, Adam(), private=PrivateSteps(1.0, 1.0)), pool, CPU) == found


def test_large_layers_are_looped_over_on_a_cpu_and_small_ones_lifted():
    images = Batch(torch.randn(6, 3, 32, 32), torch.arange(6))
    small = Batch(torch.randn(6, 1, 8, 8), torch.arange(6))

    def chosen(pool):
        make = partial(NETWORKS["lenet-group-norm"], tuple(pool.x.shape[1:]), 10)
        return choose_model(Learner(make, Adam()), pool, CPU)

    assert (chosen(small).kernels, chosen(images).kernels) == ("lifted", "looped")
    assert chosen(images).reason == "on a CPU convolutions of this size are faster for one server at a time"


def test_convolutions_get_images_with_channels_last_unless_the_module_insists_on_the_usual_order():
    class Viewing(nn.Sequential):
        def forward(self, x):
            return self[1](self[0](x).view(len(x), -1))

    pool = Batch(torch.randn(6, 2, 5, 5), torch.arange(6))
    flat = partial(nn.Sequential, nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(27, 10))
    for make, expected in ((flat, True), (partial(Viewing, nn.Conv2d(2, 3, 3), nn.Linear(27, 10)), False)):
        learner = Learner(make, Adam())
        memory = measure_memory(learner, pool, CPU)
        assert memory.channels_last is expected
        model = LoopedModel(learner, CPU, memory.sample, "", channels_last=expected)
        params = torch.stack([learner.init(0), learner.init(1)])
        alone = torch.stack([learner.logits(each, pool.x) for each in params])
        torch.testing.assert_close(model.ready(params).logits(model.samples(pool).x[None]), alone)


def test_images_of_one_channel_are_put_channels_last():
    images = torch.arange(24.0).view(2, 1, 3, 4)
    there = put_channels_last(images)
    assert torch.equal(there, images)
    assert there.stride() == (12, 1, 4, 1)


def test_private_training_is_looped_over():
    make = partial(NETWORKS["linear"], (6, 4), 10)
    model = choose_model(Learner(make, Sgd(), private=PrivateSteps(1.0, 1.0)), POOL, CPU)
    assert (model.kernels, model.reason) == ("looped", "privacy.clip needs the gradient of every sample")


def test_networks_with_kernels_of_their_own_keep_them():
    pool = Batch(torch.randn(6, 1, 8, 8), torch.arange(6))
    for name in ("small-cnn", "paper-cnn", "linear", "mlp"):
        model = choose_model(Learner(partial(NETWORKS[name], (1, 8, 8), 10), Adam()), pool, CPU)
        assert model.kernels in ("native", "torch")
        assert model.reason is None


def test_a_server_without_a_batch_stays_as_it_is_in_that_step():
    learner = Learner(BY_SIZE["batch norm"], Adam())
    for pads in (True, False):
        model = LiftedModel(learner, CPU, BytesPerSample(1, 1, 1), "", pads=pads)
        start = torch.stack([learner.init(0), learner.init(1)])
        moments = (torch.zeros(2, learner.num_trainable) for _ in range(2))
        rows = ModelRows(start.clone(), *moments, np.zeros(2, dtype=np.int64))
        plans = [WorkPlan((np.arange(4), np.arange(5)), 4, 1, np.arange(2), 7), WorkPlan((), 0, 0, np.arange(2), 8)]
        model.fit(rows, model.samples(POOL), plans, np.ones(2), torch.zeros(2, 10))
        assert torch.equal(rows.params[1], start[1])
        assert not torch.equal(rows.params[0], start[0])
        assert rows.steps.tolist() == [2, 0]
        assert not rows.first[1].any()


def test_parameters_that_layers_share_are_one_in_every_form():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(24, 24), nn.Linear(24, 24)
            self.second.weight = self.first.weight
            self.head = nn.Linear(24, 10)

        def forward(self, x):
            return self.head(self.second(torch.tanh(self.first(x.flatten(1)))))

    learner = Learner(Tied, Adam())
    params = learner.init(3)
    module = Tied()
    module.load_state_dict(learner.state_dict(params), strict=False)
    torch.testing.assert_close(learner.logits(params, POOL.x), module(POOL.x).detach())
    assert try_lifting(learner, POOL, CPU).lifts


def test_inside_vmap_no_tensor_requires_a_gradient():
    """Why lifted attention is not fused: torch's kernels for CUDA would leave out what their gradients need."""
    seen = []

    def look(x):
        seen.append(x.requires_grad)
        return x

    torch.vmap(look)(torch.ones(2, 3, requires_grad=True))
    assert seen == [False]


def test_lifted_attention_is_computed_from_products_and_softmax():
    with liftable_operations():
        assert torch.backends.cuda.math_sdp_enabled()
        assert not torch.backends.cuda.mem_efficient_sdp_enabled()
        assert not torch.backends.cuda.flash_sdp_enabled()
        assert not torch.backends.cuda.cudnn_sdp_enabled()
        assert not torch.backends.mha.get_fastpath_enabled()
    assert torch.backends.cuda.mem_efficient_sdp_enabled()


def test_cudnn_times_its_algorithms_only_while_a_tuned_model_computes():
    learner, seen = Learner(LIFTED["layer norm"], Adam()), []
    for tuned in (False, True):
        model = LiftedModel(learner, CPU, BytesPerSample(1, 1, 1), "", pads=True, lifting=Lifting(tuned=tuned))
        with model._operations():
            seen.append(torch.backends.cudnn.benchmark)
    assert seen == [False, True]
    assert not torch.backends.cudnn.benchmark
