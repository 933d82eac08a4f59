"""A residual network of your own, with batch norm, on two arrays; on a machine with a GPU it runs there.

Servers are trained at once by torch.vmap (lifted), or one after another (looped), as the last line says.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn

import hatdfed
from hatdfed.server.networks import NETWORKS


class Residual(nn.Module):
    """Made, like every network, from the shape of a sample and the number of outputs."""

    def __init__(self, shape, num_classes, width=16):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(shape[0], width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
        self.inner = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width))
        self.head = nn.Linear(width * 4, num_classes)

    def forward(self, x):
        """[n, C, H, W] -> [n, classes]."""
        x = self.first(x)
        x = torch.relu(x + self.inner(x))
        return self.head(nn.functional.adaptive_avg_pool2d(x, 2).flatten(1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A residual network of one's own.")
    parser.add_argument("--rounds", type=int, default=20)
    x, y = load_digits(return_X_y=True)
    NETWORKS.add("residual", Residual)
    settings = {"network": "residual", "rounds": parser.parse_args().rounds}
    summary = hatdfed.run(settings, dataset=(x.reshape(-1, 1, 8, 8), y)).summary
    how = summary["computed_by"]
    print(f"accuracy {summary['avg_accuracy']:.1f} %, {how['kernels']} on {how['device']}: {how['because']}")
