"""Lifted convolutions in every form against torch's, one server at a time."""

import pytest
import torch
from torch import nn
from torch.func import functional_call

from hatdfed.fleets.stacked import convolutions
from hatdfed.fleets.stacked.convolutions import FORMS, StackedConvolution, choose_form

SERVERS, SAMPLES = 3, 4
GEOMETRIES = [(5, 1, 2), (3, 2, 1), (3, 1, 0), (1, 2, 0), ((3, 1), (2, 1), (1, 0))]


def tensors(layer):
    generator = torch.Generator().manual_seed(0)
    shapes = {name: (SERVERS, *parameter.shape) for name, parameter in layer.named_parameters()}
    params = {name: torch.randn(shape, generator=generator).requires_grad_() for name, shape in shapes.items()}
    return params, torch.randn(SERVERS, SAMPLES, 3, 9, 8, generator=generator).requires_grad_()


def call(layer, params, x):
    return functional_call(layer, params, (x,))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("at_once", [1, 1 << 29])
def test_every_form_gives_the_outputs_and_gradients_of_torch(monkeypatch, form, geometry, at_once):
    monkeypatch.setattr(convolutions, "_PATCH_NUMBERS", at_once)
    kernel, stride, padding = geometry
    layer = nn.Conv2d(3, 6, kernel, stride, padding=padding)
    params, x = tensors(layer)
    leaves = [*params.values(), x]
    expected = torch.stack([call(layer, {n: p[s] for n, p in params.items()}, x[s]) for s in range(SERVERS)])
    wanted = torch.autograd.grad(expected.square().sum(), leaves)
    choose_form(layer, form)
    found = torch.vmap(lambda params, x: call(layer, params, x))(params, x)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    for gradient, reference in zip(torch.autograd.grad(found.square().sum(), leaves), wanted, strict=True):
        torch.testing.assert_close(gradient, reference, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("form", FORMS)
def test_samples_or_kernels_that_all_servers_share(form):
    layer = nn.Conv2d(3, 6, 3, padding=1, bias=False)
    params, x = tensors(layer)
    shared = torch.stack([call(layer, {"weight": weight}, x[0]) for weight in params["weight"]])
    frozen = torch.stack([layer(samples) for samples in x])
    choose_form(layer, form)
    lifted = torch.vmap(lambda params, x: call(layer, params, x), in_dims=(0, None))
    torch.testing.assert_close(lifted(params, x[0]), shared, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(torch.vmap(layer)(x), frozen, rtol=1e-5, atol=1e-5)


def test_outside_of_vmap_a_layer_computes_and_differentiates_as_before():
    layer = nn.Conv2d(3, 6, 3, stride=2, padding=1)
    x = torch.randn(2, 3, 9, 8, generator=torch.Generator().manual_seed(0))
    expected = layer(x)
    wanted = torch.autograd.grad(expected.square().sum(), list(layer.parameters()))
    choose_form(layer, "unfolded")
    assert type(layer) is StackedConvolution
    torch.testing.assert_close(layer(x), expected)
    torch.testing.assert_close(torch.autograd.grad(layer(x).square().sum(), list(layer.parameters())), wanted)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 4, 3, groups=2),
        nn.Conv2d(4, 4, 3, dilation=2),
        nn.Conv2d(4, 4, 3, padding="same"),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"),
    ],
)
def test_unusual_convolutions_remain_as_they_are(layer):
    choose_form(layer, "unfolded")
    assert type(layer) is nn.Conv2d
