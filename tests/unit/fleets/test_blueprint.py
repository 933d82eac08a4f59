import pytest
import torch
from torch import nn

from hatdfed.fleets.kernels.blueprint import DropoutLayer, LinearLayer, Relu, read_blueprint
from hatdfed.fleets.kernels.torch_stage import StageShape
from hatdfed.fleets.stacked.model import NotStackableError
from hatdfed.server.learner import find_cancelled_biases
from hatdfed.server.networks import linear, paper_cnn, paper_cnn_relu, small_cnn


def stage(**changes):
    parts = {
        "convolution": nn.Conv2d(1, 4, 3, padding=1),
        "norm": nn.BatchNorm2d(4),
        "relu": nn.ReLU(),
        "pool": nn.MaxPool2d(2),
        **changes,
    }
    return nn.Sequential(*parts.values(), nn.Flatten(), nn.Linear(4 * 4 * 4, 3))


def test_the_papers_network():
    blueprint = read_blueprint(paper_cnn((1, 28, 28), 10), (1, 28, 28))
    assert [s.shape for s in blueprint.stages] == [StageShape(1, 32, 28, 28, 1), StageShape(32, 64, 14, 14, 0)]
    assert [s.weight for s in blueprint.stages] == ["0.weight", "4.weight"]
    assert blueprint.features == (64, 6, 6)
    kinds = [type(layer) for layer in blueprint.head]
    assert kinds == [LinearLayer, DropoutLayer, LinearLayer, LinearLayer]
    with_relu = read_blueprint(paper_cnn_relu((3, 32, 32), 10), (3, 32, 32))
    assert [type(layer) for layer in with_relu.head] == [
        LinearLayer,
        Relu,
        DropoutLayer,
        LinearLayer,
        Relu,
        LinearLayer,
    ]


@pytest.mark.parametrize("maker", [small_cnn, linear])
def test_the_other_networks_can_be_stacked(maker):
    assert read_blueprint(maker((1, 8, 8), 10), (1, 8, 8)).head


def test_nested_modules_keep_their_names():
    inner = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4))
    module = nn.Sequential(inner, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Sequential(nn.Linear(36, 2)))
    blueprint = read_blueprint(module, (1, 8, 8))
    assert blueprint.stages[0].weight == "0.0.weight"
    assert blueprint.stages[0].norm == "0.1"
    assert blueprint.head == (LinearLayer("4.0.weight", "4.0.bias"),)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (nn.Linear(4, 2), "layer of its top is a Linear where nn.Flatten should follow"),
        (stage(convolution=nn.Conv2d(1, 4, 5, padding=2)), "layer 0 is not a plain 3×3 convolution"),
        (stage(convolution=nn.Conv2d(1, 4, 3, padding=1, stride=2)), "layer 0 is not a plain"),
        (stage(convolution=nn.Conv2d(1, 4, 3, padding=1, padding_mode="reflect")), "layer 0 is not a plain"),
        (stage(norm=nn.GroupNorm(1, 4)), "layer 1 is a GroupNorm where a stage has a BatchNorm2d"),
        (stage(norm=nn.BatchNorm2d(4, affine=False)), "layer 1 is a batch norm without scale"),
        (stage(norm=nn.BatchNorm2d(4, momentum=None)), "layer 1 is a batch norm without scale"),
        (stage(relu=nn.Tanh()), "layer 2 is a Tanh where a stage has a ReLU"),
        (stage(pool=nn.MaxPool2d(3)), "layer 3 is not a 2×2 max pooling"),
        (stage(pool=nn.MaxPool2d(2, ceil_mode=True)), "layer 3 is not a 2×2 max pooling"),
        (nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)), "its last stage is not complete"),
        (nn.Sequential(nn.Flatten(), nn.Linear(4, 2), nn.Softmax(1)), "layer 2 is a Softmax; after nn.Flatten"),
        (nn.Sequential(), "nothing follows where nn.Flatten"),
    ],
)
def test_what_cannot_be_stacked_is_named(module, reason):
    with pytest.raises(NotStackableError, match=reason):
        read_blueprint(module, (1, 8, 8))


def test_biases_that_batch_norm_cancels():
    assert find_cancelled_biases(paper_cnn((1, 28, 28), 10)) == ["0.bias", "4.bias"]
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Conv1d(1, 1, 1, bias=False), nn.ReLU())
    assert find_cancelled_biases(nn.Sequential(module, nn.Linear(4, 2))) == ["0.0.bias"]
    # It is true: however such a bias is chosen, the network answers the same while it trains.
    network, x = paper_cnn((1, 28, 28), 10).train(), torch.randn(6, 1, 28, 28)
    for dropout in (layer for layer in network if isinstance(layer, nn.Dropout)):
        dropout.p = 0.0
    before = network(x)
    with torch.no_grad():
        network[0].bias += 3.0
    torch.testing.assert_close(network(x), before, rtol=0, atol=1e-4)


def head(*layers):
    return nn.Sequential(nn.Flatten(), *layers)


def test_a_relu_that_stands_twice_counts_twice():
    relu = nn.ReLU()
    blueprint = read_blueprint(head(nn.Linear(4, 4), relu, nn.Linear(4, 4), relu, nn.Linear(4, 2)), (1, 2, 2))
    assert [type(layer) for layer in blueprint.head] == [LinearLayer, Relu, LinearLayer, Relu, LinearLayer]


class Skip(nn.Sequential):
    def forward(self, x):
        return x + super().forward(x)


class Upside(nn.Flatten):
    def forward(self, x):
        return super().forward(x).flip(1)


SHARED = nn.Linear(4, 4)
GROUP = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (head(SHARED, nn.ReLU(), SHARED), "layer 3 has the parameters of an earlier one"),
        (head(GROUP, GROUP), "layer 2.0 has the parameters of an earlier one"),
        (head(Skip(nn.Linear(4, 4)), nn.Linear(4, 2)), "layer 1 is a Skip"),
        (nn.Sequential(Upside(), nn.Linear(4, 2)), "layer 0 is a Upside where nn.Flatten"),
        (nn.Sequential(nn.Flatten(0), nn.Linear(4, 2)), "layer 0 is a Flatten where nn.Flatten"),
        (head(nn.ReLU(), nn.Linear(4, 2)), "layer 1 is a ReLU with no fully connected layer before it"),
        (head(nn.Linear(4, 2), nn.ReLU()), "its last layer is not fully connected"),
        (head(), "its last layer is not fully connected"),
    ],
)
def test_what_only_looks_like_a_plain_network_is_refused(module, reason):
    with pytest.raises(NotStackableError, match=reason):
        read_blueprint(module, (1, 2, 2))


def test_a_bias_is_frozen_only_where_batch_norm_follows_it_at_once():
    relu = nn.ReLU()
    module = nn.Sequential(nn.Linear(4, 4), relu, nn.Linear(4, 4), relu, nn.BatchNorm1d(4))
    assert find_cancelled_biases(module) == []
    twice = nn.Linear(4, 4)
    assert find_cancelled_biases(nn.Sequential(twice, nn.BatchNorm1d(4), twice)) == []
