import pytest
import torch
from torch import nn

from hatdfed.errors import ConfigError
from hatdfed.server.networks import NETWORKS, find_network
from hatdfed.server.networks.recurrent import Lstm


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


def test_lenet_has_the_parameters_that_are_reported_for_cifar():
    assert sum(p.numel() for p in NETWORKS["lenet-group-norm"]((3, 32, 32), 10).parameters()) == 89_834


def test_resnet_has_eleven_million_parameters():
    module = NETWORKS["resnet-18-group-norm"]((3, 32, 32), 10)
    assert sum(p.numel() for p in module.parameters()) == 11_173_962  # as with batch norm, of which it has as many


def test_the_decoder_sees_no_token_that_comes_later():
    module, tokens = NETWORKS["decoder"]((6,), 5).eval(), torch.tensor([[0, 1, 2, 3, 4, 0]])
    changed = tokens.clone()
    changed[0, 4] = 1
    before, after = module(tokens), module(changed)
    torch.testing.assert_close(before[:, :4], after[:, :4])
    assert not torch.allclose(before[:, 4], after[:, 4])


def test_the_lstm_computes_what_torchs_own_does():
    """With its gates in torch's order, and the open forget gates in a bias."""
    own = Lstm(3, 4)
    torchs = nn.LSTM(3, 4, batch_first=True)
    order = torch.cat([torch.arange(first, first + 4) for first in (0, 4, 12, 8)])  # enter, forget, candidate, leave
    with torch.no_grad():
        torchs.weight_ih_l0.copy_(own.inputs.weight[order])
        torchs.weight_hh_l0.copy_(own.recurrent.weight[order])
        torchs.bias_ih_l0.copy_(own.inputs.bias[order])
        torchs.bias_hh_l0.zero_()
        torchs.bias_hh_l0[4:8] = 1
    x = torch.randn(5, 7, 3)
    torch.testing.assert_close(own(x), torchs(x)[0])


@pytest.mark.parametrize(
    ("network", "shape", "sentence"),
    [
        ("lenet-group-norm", (1, 4, 4), "needs images of 8×8 or larger, but these have 4×4"),
        ("resnet-18-group-norm", (5,), "is for images .* a sample has the shape .5."),
        ("vit-tiny", (1, 30, 30), "sides are multiples of 4, but these have 30×30"),
        ("lstm", (1, 8, 8), "is for series .* a sample has the shape .1, 8, 8."),
        ("decoder", (6, 3), "is for sequences of token ids"),
    ],
)
def test_samples_that_a_network_is_not_for_are_refused_with_a_sentence(network, shape, sentence):
    with pytest.raises(ConfigError, match=sentence):
        NETWORKS[network](shape, 7)


@pytest.mark.parametrize("network", ["lstm", "decoder"])
def test_features_in_place_of_token_ids_are_refused_with_a_sentence(network):
    with pytest.raises(ConfigError, match=r"reads token ids, which are integers, but samples are torch\.float32"):
        NETWORKS[network]((6,), 7)(torch.zeros(2, 6))


IMAGE_NETWORKS = [name for name in NETWORKS if name not in ("lstm", "decoder")]


@pytest.mark.parametrize("name", IMAGE_NETWORKS)
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32)])
def test_every_network_answers_with_one_number_a_class(name, shape):
    assert NETWORKS[name](shape, 7).eval()(torch.zeros(2, *shape)).shape == (2, 7)


def test_an_unknown_network_is_refused():
    with pytest.raises(ConfigError, match="Did you mean small-cnn"):
        find_network("smal-cnn")
