"""The machines of a cluster: what they have, whether a batch fits, whether they run the same code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hatdfed.errors import ClusterError, ConfigError
from hatdfed.version import __version__

ANSWER_SECONDS = 60.0  # that a machine has for starting a process and telling its versions


@dataclass(frozen=True)
class Node:
    """A machine that is alive."""

    name: str
    address: str
    cpus: float
    gpus: float


@dataclass(frozen=True)
class Need:
    """What one batch, or one shard, occupies while it is played."""

    cpus: float = 1.0
    gpus: float = 0.0

    def __post_init__(self) -> None:
        if self.cpus <= 0 or self.gpus < 0:
            raise ConfigError(
                f"A batch was given {self.cpus:g} CPUs and {self.gpus:g} GPUs, but needs more than 0 CPUs and at "
                "least 0 GPUs."
            )
        if self.gpus > 1 and self.gpus != int(self.gpus):
            raise ConfigError(f"A batch was given {self.gpus:g} GPUs; above 1 it must be a whole number.")

    def places(self, node: Node) -> int:
        """How many of them a machine has room for at once."""
        by_gpu = [int(node.gpus / self.gpus + 1e-6)] if self.gpus else []
        return min([int(node.cpus / self.cpus + 1e-6), *by_gpu])

    @property
    def threads(self) -> int:
        """For torch: one for each CPU."""
        return max(1, int(self.cpus))


def nodes_of(ray: Any) -> list[Node]:
    """All that are alive now."""
    return [
        Node(
            name=str(each["NodeID"]),
            address=str(each["NodeManagerAddress"]),
            cpus=float(each["Resources"].get("CPU", 0)),
            gpus=float(each["Resources"].get("GPU", 0)),
        )
        for each in ray.nodes()
        if each["Alive"]
    ]


def places(nodes: Sequence[Node], need: Need) -> int:
    """How many batches can be played at once; none at all would be waited for without end, so it is refused."""
    count = sum(need.places(node) for node in nodes)
    if count == 0:
        have = "; ".join(f"{node.address}: {node.cpus:g} CPUs, {node.gpus:g} GPUs" for node in nodes[:8]) or "none"
        raise ClusterError(
            f"A batch needs {need.cpus:g} CPUs and {need.gpus:g} GPUs, and no machine of the Ray cluster has so many "
            f"({have}). Ask for less with --cpus-per-batch and --gpus-per-batch, or start a larger machine."
        )
    return count


def check_versions(ray: Any, nodes: Sequence[Node]) -> None:
    """Refuse a cluster with a machine that has no hatdfed, or another one: its results would be others."""
    asked = ray.remote(num_cpus=0, max_retries=0)(_version_asker())
    strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    answers = {
        node: asked.options(scheduling_strategy=strategy(node_id=node.name, soft=False)).remote() for node in nodes
    }
    ready, _ = ray.wait(list(answers.values()), num_returns=len(answers), timeout=ANSWER_SECONDS)
    for node, answer in answers.items():
        if answer not in ready:
            raise ClusterError(
                f"The machine {node.address} of the Ray cluster did not start a process within {ANSWER_SECONDS:g} s. "
                "Look at its logs, or take it out of the cluster."
            )
        try:
            there = ray.get(answer)
        except ray.exceptions.RayError:
            continue  # it has just died: what is played there comes again elsewhere
        compare_versions(node.address, there)


def compare_versions(address: str, there: Mapping[str, str | None]) -> None:
    """One sentence where a machine lacks something, or has another hatdfed; torch differs with the kind of machine."""
    for package in ("hatdfed", "torch"):
        if there[package] is None:
            raise ClusterError(
                f"The machine {address} of the Ray cluster has no {package}. Run pip install "
                f"'hatdfed[sim,ray]=={__version__}' in the environment from which `ray start` is called there."
            )
    if there["hatdfed"] != __version__:
        raise ClusterError(
            f"The machine {address} of the Ray cluster has hatdfed {there['hatdfed']}, this one has {__version__}. "
            "Install the same version everywhere."
        )


def _version_asker() -> Callable[[], dict[str, str | None]]:
    """A function inside a function travels as code, so it also runs on a machine that does not have this module."""

    def versions() -> dict[str, str | None]:
        from importlib import import_module
        from importlib.util import find_spec

        installed = find_spec("hatdfed") is not None
        return {
            "hatdfed": import_module("hatdfed.version").__version__ if installed else None,
            "torch": "some" if find_spec("torch") is not None else None,
        }

    return versions
