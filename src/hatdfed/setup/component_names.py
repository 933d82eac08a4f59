"""Names of components, known without torch: a wrong one is answered before torch is imported, which takes seconds.

Components that need torch are listed here by name (a test compares the lists with the registries). Once a registry has
been imported, for things of a user's own, it says itself what it has.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import entry_points
from typing import Any, NamedTuple

from hatdfed.core.metrics import METRICS
from hatdfed.core.policies import POLICIES
from hatdfed.core.training import TRAINING
from hatdfed.data.partitioners import PARTITIONERS
from hatdfed.errors import OWN_THING, require_one_of
from hatdfed.setup.methods import METHODS, method_named

FLEETS = ("auto", "stacked", "mailbox", "sharded")
DEVICES = ("auto", "cpu", "cuda")


class NeedsTorch(NamedTuple):
    """A registry whose import takes torch with it."""

    module: str
    name: str
    group: str
    built_in: tuple[str, ...]


NETWORK_NAMES = NeedsTorch(
    "hatdfed.server.networks",
    "NETWORKS",
    "hatdfed.networks",
    (
        "paper-cnn",
        "paper-cnn-relu",
        "small-cnn",
        "small-cnn-group-norm",
        "linear",
        "mlp",
        "lenet-group-norm",
        "resnet-18-group-norm",
        "vit-tiny",
        "lstm",
        "decoder",
    ),
)
AGGREGATOR_NAMES = NeedsTorch(
    "hatdfed.server.aggregation",
    "AGGREGATORS",
    "hatdfed.aggregators",
    (
        "importance",
        "uniform",
        "by-samples",
        "best-by-samples",
        "by-plan",
        "push-sum",
        "harmless-mean",
        "median",
        "trimmed-mean",
        "multi-krum",
        "clipped-gossip",
        "balance",
        "ubar",
    ),
)
LOSS_NAMES = NeedsTorch("hatdfed.server.losses", "LOSSES", "hatdfed.losses", ("cross-entropy", "label-prior"))
CODEC_NAMES = NeedsTorch("hatdfed.server.codecs", "CODECS", "hatdfed.codecs", ("float32", "float16", "int8", "int4"))
NEED_TORCH = (NETWORK_NAMES, AGGREGATOR_NAMES, LOSS_NAMES, CODEC_NAMES)
TASK_METRICS = ("perplexity", "rmse", "mae", "r2", "micro_f1")

_KNOWN: dict[str, NeedsTorch | Mapping[str, Any]] = {
    "network": NETWORK_NAMES,
    "codec": CODEC_NAMES,
    "split": PARTITIONERS,
    "policy.name": POLICIES,
    "training.name": TRAINING,
    "aggregator.name": AGGREGATOR_NAMES,
    "loss.name": LOSS_NAMES,
}


def refuse_unknown_components(layer: Mapping[str, Any]) -> None:
    """Refuse names of components in a user's settings that nothing has."""
    if isinstance(method := layer.get("method"), str) and method not in METHODS:
        method_named(method)
    for key, known in _KNOWN.items():
        name = _find(layer, key)
        if isinstance(name, str) and name not in (names := _list_names(known)):
            require_one_of(key, name, names, OWN_THING)
    metrics = layer.get("metrics")
    for name in metrics if isinstance(metrics, list | tuple) else ():
        if isinstance(name, str) and name.isidentifier() and not _may_have_own_task():
            require_one_of("metrics", name, [*METRICS, *TASK_METRICS], OWN_THING)


def _find(layer: Mapping[str, Any], key: str) -> object:
    found: object = layer
    for part in key.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _list_names(known: NeedsTorch | Mapping[str, Any]) -> list[str]:
    return list(_names_of(known) if isinstance(known, NeedsTorch) else known)


def _names_of(known: NeedsTorch) -> Iterator[str]:
    registry: Iterable[str] | None = getattr(sys.modules.get(known.module), known.name, None)
    if registry is not None:
        yield from registry
        return
    yield from known.built_in
    yield from (point.name for point in entry_points(group=known.group))


def _may_have_own_task() -> bool:
    """Tasks of a user's own may have metrics that are not listed."""
    return "hatdfed.server.tasks" in sys.modules or bool(entry_points(group="hatdfed.tasks"))
