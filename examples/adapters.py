"""Adapters on a network pretrained on the digits 0 to 4: `python examples/adapters.py [--rounds 20]`."""

import argparse
import tempfile
from functools import partial

from safetensors.torch import save_file
from torch import nn, optim

import hatdfed
from hatdfed.data.datasets import load_dataset
from hatdfed.server.lora import lora
from hatdfed.server.networks import NETWORKS
from hatdfed.server.pretrained import load_weights
from hatdfed.setup.build.world import make_pools


def mlp(_shape, classes, weights=None, rank=0):
    """Three layers; with `rank`, the first two are frozen and have adapters."""
    hidden = [nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU()]
    network = nn.Sequential(nn.Flatten(), *hidden, nn.Linear(256, classes))
    if weights is not None:
        load_weights(network, weights, skip=["5.*"])  # the output layer of the file is for five classes
    return lora(network, rank=rank, trained=["5.*"]) if rank else network


if __name__ == "__main__":
    (parser := argparse.ArgumentParser()).add_argument("--rounds", type=int, default=20)
    (x, y), network = make_pools(load_dataset("digits")).train, mlp(None, 5)
    optimiser = optim.Adam(network.parameters())
    for _ in range(30):
        nn.functional.cross_entropy(network(x[y < 5]), y[y < 5]).backward()
        optimiser.step(), optimiser.zero_grad()
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
        save_file(network.state_dict(), file.name)
        for name, rank in (("all", 0), ("adapters", 4)):
            NETWORKS.add(name, partial(mlp, weights=file.name, rank=rank))
            run = hatdfed.run(network=name, rounds=parser.parse_args().rounds, learner={"initialisation": "module"})
            accuracy, joules = run.summary["avg_accuracy"], 1e6 * run.summary["link_energy_mj"]
            print(f"{name:8} accuracy {accuracy:5.1f} %, links {joules:7.0f} J")
