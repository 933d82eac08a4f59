"""A network of your own: any nn.Module that is made from an image shape and a number of classes.

    python examples/own_model.py             compares it with the built-in small-cnn
    python -m pytest examples/own_model.py   holds it to the laws of all networks

Nothing has to be said about parameters, buffers or messages: hatdfed reads them off the module. To use it with
`hatdfed run --set network=group-norm-cnn`, put it into a package that has this in its pyproject.toml:

    [project.entry-points."hatdfed.networks"]
    group-norm-cnn = "my_package.network:GroupNormCnn"
"""

import argparse

from torch import nn

import hatdfed
from hatdfed.server.networks import NETWORKS
from hatdfed.testing import NetworkLaws


class GroupNormCnn(nn.Sequential):
    """The small network without batch norm, whose running statistics suit the data of one server only."""

    def __init__(self, shape, num_classes):
        channels, height, width = shape
        super().__init__(
            *(nn.Conv2d(channels, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(32 * (height // 4) * (width // 4), num_classes)),
        )


class TestGroupNormCnn(NetworkLaws):
    """The laws that ship with hatdfed."""

    def maker(self):
        """The network under test."""
        return GroupNormCnn


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A network of one's own against the built-in one, on digits.")
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    NETWORKS.add("group-norm-cnn", GroupNormCnn)
    for network in ("small-cnn", "group-norm-cnn"):
        summary = hatdfed.run(network=network, rounds=rounds).summary
        print(f"{network:16} accuracy {summary['avg_accuracy']:5.1f} %   {1e3 * summary['total_energy_mj']:.2f} kJ")
