"""What adapters save: a network pretrained on five classes, adapted by servers that have ten.

A fully connected network is trained centrally on the digits 0 to 4, and saved as a .safetensors file. Five servers
then adapt it to all ten digits, each way of it with the same seeds: all parameters, or adapters of low rank and the
output layer, or the output layer alone. Each way has the learning rate of `RATES` that is best on validation images of
another seed. Where both factors of the adapters are trained, the factors are averaged, or their products, which are
then factored anew; how far the first is from the second is measured at every merge.

python benchmarks/adapters.py [--seeds 5] [--rounds 30] [--out benchmarks/results/adapters-cpu.json]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 (the usual name)
from safetensors.torch import save_file
from torch import Tensor, nn

import hatdfed
from hatdfed.data.datasets import load_dataset
from hatdfed.runs.records.folder import environment
from hatdfed.runs.summary import mean_and_deviation
from hatdfed.server.aggregation import AGGREGATORS, Importance
from hatdfed.server.inbox import Inbox, Merged, Probe
from hatdfed.server.learner import Learner
from hatdfed.server.lora import lora
from hatdfed.server.networks import NETWORKS
from hatdfed.server.optimisers import Sgd
from hatdfed.server.pretrained import load_weights
from hatdfed.setup.build.world import make_pools

SHAPE, CLASSES, KNOWN_CLASSES = (1, 8, 8), 10, 5
WIDTH = 1024
PRETRAINING = {"passes": 10, "batch_size": 50}
SETTINGS: dict[str, Any] = {
    "dataset": "digits",
    "servers": 5,
    "validation_images": 200,
    "common_init": True,
    "learner": {"initialisation": "module"},  # the weights that the network brings
}
RATES = (1e-3, 3e-3, 1e-2, 3e-2)
TUNING_SEED = 1000


def make_mlp(num_classes: int) -> nn.Module:
    """Three fully connected layers."""
    first = nn.Sequential(nn.Linear(SHAPE[1] * SHAPE[2], WIDTH), nn.ReLU())
    return nn.Sequential(nn.Flatten(), *first, nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, num_classes))


HEAD = "5.*"


def pretrain(path: Path) -> float:
    """Train on the known classes in one place, and save the weights; returns the accuracy on validation images."""
    torch.manual_seed(0)
    pools = make_pools(load_dataset(SETTINGS["dataset"]))
    network = make_mlp(KNOWN_CLASSES)
    optimiser = torch.optim.Adam(network.parameters())
    x, y = _known(pools.train)
    for _ in range(PRETRAINING["passes"]):
        for chosen in torch.split(torch.randperm(len(y)), PRETRAINING["batch_size"]):
            optimiser.zero_grad()
            loss: Tensor = F.cross_entropy(network(x[chosen]), y[chosen])
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    save_file(network.state_dict(), path)
    x, y = _known(pools.validation)
    with torch.no_grad():
        return float((network(x).argmax(dim=1) == y).float().mean())


def _known(batch: Any) -> tuple[Tensor, Tensor]:
    is_known = batch.y < KNOWN_CLASSES
    return batch.x[is_known], batch.y[is_known]


class Way(NamedTuple):
    """One way to adapt the network."""

    adapt: Callable[[nn.Module], nn.Module]
    aggregator: str = "importance"
    methods: tuple[str, ...] = ("hat-dfed",)


WAYS = {
    "all parameters": Way(lambda network: network, methods=("local", "hat-dfed")),
    "output layer": Way(lambda network: _freeze_all_but_head(network)),
    "adapters, rank 4, one A for all": Way(partial(lora, rank=4, trained=[HEAD]), methods=("local", "hat-dfed")),
    "adapters, rank 3, factors averaged": Way(
        partial(lora, rank=3, trained=[HEAD], both_factors=True), "importance-watched"
    ),
    "adapters, rank 3, products averaged": Way(
        partial(lora, rank=3, trained=[HEAD], both_factors=True), "importance-of-products"
    ),
}


def _freeze_all_but_head(network: nn.Module) -> nn.Module:
    network.requires_grad_(False)
    network.get_submodule(HEAD.removesuffix(".*")).requires_grad_(True)
    return network


def make_network(way: Way, weights: Path, _shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """The network as the servers adapt it."""
    network = make_mlp(num_classes)
    load_weights(network, weights, skip=[HEAD])
    return way.adapt(network)


class Factors(NamedTuple):
    """Where a model as it is sent has the two factors of an adapter."""

    up: tuple[slice, torch.Size]
    down: tuple[slice, torch.Size]

    def read(self, models: Tensor) -> tuple[Tensor, Tensor]:  # [D, P] -> [D, out, r], [D, r, in]
        """Both factors of all models."""
        up, down = (models[:, place].view(len(models), *shape) for place, shape in self)
        return up, down


def find_factors(learner: Learner) -> list[Factors]:
    """Where the adapters of a network are whose two factors are sent."""

    def place(name: str) -> tuple[slice, torch.Size]:
        start, shape = learner.layout[name]
        return slice(start - learner.sent.start, start - learner.sent.start + shape.numel()), shape

    adapters = [name.removesuffix("down") for name in learner.layout if name.endswith(".down")]
    return [Factors(place(f"{name}up"), place(f"{name}down")) for name in adapters]


FOUND: dict[str, list[Any]] = {"factors": [], "apart": [], "cut off": []}  # of the run that is being played


@dataclass(frozen=True)
class Watched(Importance):
    """The paper's rule; also notes how far the product of averages is from the average of products."""

    averages: ClassVar[bool] = False

    def __call__(self, probe: Probe | None, inbox: Inbox) -> Merged:
        """Merge as usual."""
        merged = super().__call__(probe, inbox)
        for factors in FOUND["factors"]:
            product, cut = average_products(factors.read(inbox.models), merged.importance)
            up, down = (part[0] for part in factors.read(merged.model[None]))
            norm = float(torch.linalg.norm(product))
            if len(inbox.models) > 1 and norm:
                FOUND["apart"].append(float(torch.linalg.norm(up @ down - product)) / norm)
                FOUND["cut off"].append(float(torch.linalg.norm(cut[0] @ cut[1] - product)) / norm)
        return merged


@dataclass(frozen=True)
class OfProducts(Importance):
    """The paper's rule, but products of factors are averaged, and factored again to the same rank."""

    averages: ClassVar[bool] = False

    def __call__(self, probe: Probe | None, inbox: Inbox) -> Merged:
        """Merge the products."""
        merged = super().__call__(probe, inbox)
        model = merged.model.clone()
        for factors in FOUND["factors"]:
            _, cut = average_products(factors.read(inbox.models), merged.importance)
            for (place, _), factor in zip(factors, cut, strict=True):
                model[place] = factor.reshape(-1)
        return merged._replace(model=model)


def average_products(factors: tuple[Tensor, Tensor], weights: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return Σ q·B·A, and the two factors of its best approximation of the same rank."""
    up, down = factors
    rank = up.shape[2]
    product = torch.einsum("d,dor,dri->oi", weights.float(), up, down)
    wide, tall = torch.linalg.qr(torch.cat(list(up), dim=1)), torch.linalg.qr(torch.cat(list(down)).T)
    u, s, v = torch.linalg.svd(wide.Q.T @ product @ tall.Q, full_matrices=False)
    root = s[:rank].sqrt()
    return product, (wide.Q @ u[:, :rank] * root, root[:, None] * (v[:rank] @ tall.Q.T))


def play(name: str, way: Way, method: str, seeds: range, rounds: int, weights: Path) -> dict[str, Any]:
    """Play all seeds of one way."""
    learner = Learner(partial(make_network, way, weights, SHAPE, CLASSES), Sgd())
    FOUND["factors"] = find_factors(learner)
    settings = {**SETTINGS, "method": method, "network": name, "rounds": rounds}
    if way.aggregator != "importance":
        settings["aggregator"] = {"name": way.aggregator}
    rate = max(RATES, key=lambda rate: validate(settings, rate))
    FOUND["apart"], FOUND["cut off"] = [], []
    runs = [hatdfed.run(with_rate({**settings, "seed": seed}, rate)).summary for seed in seeds]
    row = {
        "way": name,
        "method": method,
        "learning_rate": rate,
        "numbers_sent": learner.num_params,
        "numbers_trained": learner.num_trainable,
        "numbers_in_all": learner.num_total,
        "accuracy": mean_and_deviation([run["avg_accuracy"] for run in runs]),
        "link_kilojoules": mean_and_deviation([1e3 * run["link_energy_mj"] for run in runs]),
        "total_kilojoules": mean_and_deviation([1e3 * run["total_energy_mj"] for run in runs]),
    }
    if FOUND["apart"]:
        row["apart"], row["cut_off"] = (sum(FOUND[what]) / len(FOUND[what]) for what in ("apart", "cut off"))
    return row


def validate(settings: dict[str, Any], rate: float) -> float:
    """Return the accuracy on validation images after the last round of a seed that is not reported."""
    result = hatdfed.run(with_rate({**settings, "seed": TUNING_SEED}, rate))
    return float(result.rounds[-1]["avg_accuracy"])


def with_rate(settings: dict[str, Any], rate: float) -> dict[str, Any]:
    """The settings with a learning rate."""
    return {**settings, "learner": {**settings["learner"], "learning_rate": rate}}


def main() -> None:
    """Measure and write down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    AGGREGATORS.add("importance-watched", Watched)
    AGGREGATORS.add("importance-of-products", OfProducts)
    began, rows = time.perf_counter(), []
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "pretrained.safetensors"
        accuracy = pretrain(weights)
        print(f"pretrained: {accuracy:.3f} of the known classes", flush=True)
        for name, way in WAYS.items():
            NETWORKS.add(name, partial(make_network, way, weights))
            for method in way.methods:
                rows.append(play(name, way, method, range(options.seeds), options.rounds, weights))
                print(rows[-1], flush=True)
    result = {
        "settings": {**SETTINGS, "rounds": options.rounds},
        "seeds": options.seeds,
        "rates": RATES,
        "pretraining": {**PRETRAINING, "classes": KNOWN_CLASSES, "accuracy": accuracy},
        "rows": rows,
        "seconds": round(time.perf_counter() - began, 1),
        "machine": environment(),
    }
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
