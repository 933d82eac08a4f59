"""Names of components, known without torch: a wrong one is answered before torch is imported, which takes seconds.

Components that need torch are listed here by name (a test compares the lists with the registries). Once a registry has
been imported, for things of a user's own, it says itself what it has.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import entry_points
from typing import Any, NamedTuple

from hatdfed.core.metrics import METRICS
from hatdfed.core.policies import POLICIES
from hatdfed.core.training import TRAINING
from hatdfed.data.partitioners import PARTITIONERS
from hatdfed.errors import OWN_THING, ConfigError, did_you_mean, require_one_of
from hatdfed.setup.methods import METHODS, method_named

FLEETS = ("auto", "stacked", "mailbox", "sharded")
DEVICES = ("auto", "cpu", "cuda")


class NeedsTorch(NamedTuple):
    """A registry whose import takes torch with it."""

    module: str
    name: str
    group: str
    built_in: tuple[str, ...]
    settings: Mapping[str, tuple[str, ...]] = {}  # a user's, of those that have some


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
    {
        "importance": ("loss_order", "loss_scale", "volume"),
        "best-by-samples": ("best",),
        "harmless-mean": ("bar",),
        "trimmed-mean": ("trim",),
        "multi-krum": ("liars", "kept"),
        "clipped-gossip": ("radius", "liars"),
        "balance": ("closeness", "own_share"),
        "ubar": ("honest_share", "own_share"),
    },
)
LOSS_NAMES = NeedsTorch(
    "hatdfed.server.losses",
    "LOSSES",
    "hatdfed.losses",
    ("cross-entropy", "label-prior"),
    {"label-prior": ("strength", "smoothing")},
)
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
# Fields of components that other settings and the simulated world fill.
FILLED = {
    "policy": ("group", "last_group", "change_at"),
    "training": (),
    "aggregator": ("quality_share", "guess_loss"),
    "loss": (),
    "split": ("label_concentration", "label_groups", "disjoint"),
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


def refuse_unknown_own_settings(settings: Mapping[str, Any]) -> None:
    """Refuse settings of components that these do not have, in settings that are complete."""
    for key in ("policy", "training", "aggregator", "loss"):
        component = settings.get(key)
        if isinstance(component, Mapping) and isinstance(name := component.get("name"), str):
            refuse_own_setting(key, name, set(component) - {"name"}, list_own_settings(key, name))
    options, split = settings.get("split_options"), settings.get("split")
    if isinstance(options, Mapping) and isinstance(split, str):
        refuse_own_setting("split", split, options, list_own_settings("split", split))


def refuse_own_setting(key: str, name: str, given: Iterable[str], known: Iterable[str] | None) -> None:
    """Refuse a setting that this component does not have; what is not known yet (None) is not refused."""
    for setting in given if known is not None else ():
        if setting not in (names := set(known or ())):
            hint = did_you_mean(setting, names) if names else "It has none."
            raise ConfigError(f"{key} {name!r} has no setting {setting!r}. {hint}")


def list_own_settings(key: str, name: str) -> list[str] | None:
    """The settings of one component by the name of the component; None where only an import would tell them."""
    known = _KNOWN[key if key == "split" else f"{key}.name"]
    if isinstance(known, NeedsTorch):
        if name in known.built_in:
            return list(known.settings.get(name, ()))
        known = getattr(sys.modules.get(known.module), known.name, {})
    if name not in known or not dataclasses.is_dataclass(known[name]):
        return None
    return [field.name for field in dataclasses.fields(known[name]) if field.name not in FILLED[key]]


def list_components(key: str) -> list[str]:
    """The names that a component such as `policy` can have."""
    return _list_names(_KNOWN[f"{key}.name"])


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
