"""Convolutions of many servers as matrix products: the same values and gradients as one by one."""

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.func import functional_call

from hatdfed.fleets.stacked import convolution
from hatdfed.fleets.stacked.convolution import ProductConvolution, convolve, use_products
from hatdfed.server.networks import NETWORKS

SERVERS, BATCH = 3, 4
CLOSE = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-5)


@pytest.fixture(params=[1, 1 << 31], ids=["one server at a time", "all at once"])
def _memory(request, monkeypatch):
    monkeypatch.setattr(convolution, "_PATCH_BYTES", request.param)


@pytest.mark.usefixtures("_memory")
@pytest.mark.parametrize(
    ("kernel", "padding"), [((5, 5), (2, 2)), ((3, 3), (0, 0)), ((1, 1), (0, 0)), ((3, 5), (1, 4))]
)
def test_a_product_is_the_convolution_of_every_server(kernel, padding):
    x, weight = torch.randn(SERVERS, BATCH, 2, 9, 7), torch.randn(SERVERS, 6, 2, *kernel)
    expected = [nn.functional.conv2d(*each, padding=padding) for each in zip(x, weight, strict=True)]
    CLOSE(convolve(x, weight, padding), torch.stack(expected))


@pytest.mark.usefixtures("_memory")
@pytest.mark.parametrize("images", ["own", "shared"])
def test_a_lifted_network_has_the_gradients_of_its_servers_one_by_one(images):
    module = NETWORKS["lenet-group-norm"]((3, 16, 16), 10)
    lifted = copy.deepcopy(module)
    use_products(lifted)
    assert sum(isinstance(layer, ProductConvolution) for layer in lifted.modules()) == 3
    models = {name: torch.randn(SERVERS, *each.shape).requires_grad_() for name, each in module.named_parameters()}
    x = torch.randn(*((SERVERS,) if images == "own" else ()), BATCH, 3, 16, 16)
    outputs = torch.vmap(partial(functional_call, lifted), in_dims=(0, 0 if images == "own" else None))(models, (x,))
    alone = [
        functional_call(module, {name: each[s] for name, each in models.items()}, (x[s] if images == "own" else x,))
        for s in range(SERVERS)
    ]
    CLOSE(outputs, torch.stack(alone))
    towards = torch.randn_like(outputs)
    gradients, expected = (
        torch.autograd.grad((found * towards).sum(), list(models.values())) for found in (outputs, torch.stack(alone))
    )
    for one, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3 * float(other.abs().max()))


def test_kernels_that_all_servers_share_are_one_convolution():
    layer = nn.Conv2d(2, 3, 3, padding=1)
    x = torch.randn(SERVERS, BATCH, 2, 5, 5, requires_grad=True)
    product = copy.deepcopy(layer)
    use_products(product)
    found = torch.vmap(product)(x)
    CLOSE(found, layer(x.flatten(0, 1)).unflatten(0, (SERVERS, BATCH)))
    assert torch.autograd.grad(found.sum(), x)[0].shape == x.shape


def test_without_servers_it_is_the_usual_layer():
    layer, x = nn.Conv2d(2, 3, 3, padding=1), torch.randn(BATCH, 2, 5, 5, requires_grad=True)
    product = copy.deepcopy(layer)
    use_products(product)
    CLOSE(product(x), layer(x))
    gradients, expected = (
        torch.autograd.grad(each(x).square().sum(), [x, *each.parameters()]) for each in (product, layer)
    )
    for one, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


def test_images_get_the_gradient_of_a_convolution():
    x = torch.randn(SERVERS, BATCH, 2, 6, 6, requires_grad=True)
    weight = torch.randn(SERVERS, 4, 2, 3, 3)
    layer = nn.Conv2d(2, 4, 3, padding=(1, 0), bias=False)
    use_products(layer)
    found = torch.vmap(lambda own, images: functional_call(layer, {"weight": own}, (images,)))(weight, x)
    alone = torch.stack([nn.functional.conv2d(a, w, padding=(1, 0)) for a, w in zip(x, weight, strict=True)])
    towards = torch.randn_like(found)
    CLOSE(torch.autograd.grad((found * towards).sum(), x)[0], torch.autograd.grad((alone * towards).sum(), x)[0])


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(2, 2, 3, stride=2), nn.Conv2d(2, 2, 3, dilation=2), nn.Conv2d(2, 2, 3, groups=2),
        nn.Conv2d(2, 2, 3, padding="same"), nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular"),
        nn.Conv2d(2, 2, 3, padding=3),
    ],
)  # fmt: skip
def test_other_convolutions_stay_as_they_are(layer):
    use_products(layer)
    assert type(layer) is nn.Conv2d
