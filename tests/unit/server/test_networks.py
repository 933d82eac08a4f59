import pytest
import torch
from torch import nn

from hatdfed.errors import ConfigError
from hatdfed.server.networks import NETWORKS, find_network


def counted_as_the_paper_does(module):
    """Weights and batch norm scales, without biases."""
    return sum(p.numel() for name, p in module.named_parameters() if name.endswith("weight"))


def test_the_fashion_mnist_network_has_exactly_the_papers_parameters():
    module = NETWORKS["paper-cnn"]((1, 28, 28), 10)
    assert counted_as_the_paper_does(module) == 1_474_416
    assert sum(p.numel() for p in module.parameters()) == 1_475_338


def test_the_cifar_network_comes_within_46_of_the_papers_4_224_288():
    assert counted_as_the_paper_does(NETWORKS["paper-cnn"]((3, 32, 32), 10)) == 4_224_242


def test_the_released_network_has_no_activation_between_its_fully_connected_layers():
    plain, relu = (NETWORKS[name]((1, 28, 28), 10) for name in ("paper-cnn", "paper-cnn-relu"))
    count = [sum(isinstance(layer, nn.ReLU) for layer in module.modules()) for module in (plain, relu)]
    assert count == [2, 4]


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32)])
def test_every_network_answers_with_one_number_a_class(name, shape):
    assert NETWORKS[name](shape, 7).eval()(torch.zeros(2, *shape)).shape == (2, 7)


def test_an_unknown_network_is_refused():
    with pytest.raises(ConfigError, match="Did you mean small-cnn"):
        find_network("smal-cnn")
