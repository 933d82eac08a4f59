"""Resolves the user's settings to a complete `Config`, or explains in one sentence what is wrong with them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from hatdfed.core.coordinator import links_in_budget
from hatdfed.core.metrics import LONGEST_NAME, METRICS, MOST_METRICS
from hatdfed.data.datasets import DATASETS, DatasetKind, dataset_kind
from hatdfed.data.members import Members, draw_members
from hatdfed.data.own.dataset import FILE, is_own_data, open_own
from hatdfed.data.partitioners import PARTITIONERS
from hatdfed.data.traces.files import with_digest
from hatdfed.errors import OWN_THING, ConfigError, did_you_mean, require_one_of
from hatdfed.setup.component_names import refuse_unknown_components, refuse_unknown_own_settings
from hatdfed.setup.config import Component, Config, SupplyConfig, WorldConfig
from hatdfed.setup.machine_profiles import MachineProfile, shipped_profiles
from hatdfed.setup.methods import method_named
from hatdfed.setup.own_prices import check_own_prices, read_own_prices
from hatdfed.setup.plain_yaml import format_value, read_yaml
from hatdfed.setup.setting_list import suggest_setting
from hatdfed.setup.versions import fill_in

Layer = Mapping[str, Any]

# Other names of the same settings, as used in code and literature.
_SYNONYMS = {"num_servers": "servers", "num_devices": "devices"}
_COMPONENTS = ("policy", "aggregator", "loss", "training")

_BOUNDS = ("greater_than", "greater_than_equal", "less_than", "less_than_equal")
_WANTED = {
    "int_parsing": "be a whole number",
    "int_from_float": "be a whole number",
    "int_type": "be a whole number",
    "float_parsing": "be a number",
    "float_type": "be a number",
    "bool_parsing": "be true or false",
    "bool_type": "be true or false",
    "string_type": "be text",
}
_HINTS = {
    "link_share": " It is the share of all links that is drawn in a round; the paper uses 0.3.",
    "servers": " It must be between 2 and 1,000,000: one server has nobody to exchange models with.",
}
# Choices of earlier versions, and what to use instead. A folder that was played with one can still be read.
_REMOVED = {
    ("codec", "top-k"): "codec top-k was removed in version 0.2: use int8 or int4, which need no copies at both ends"
}
# Aggregators that make the same of the same models at every server, as one parameter server does.
_SAME_FOR_ALL = ("by-samples", "uniform", "median")


def resolve(user: Layer | None = None) -> Config:
    """Complete the user's settings by those of the method and the data set and the defaults."""
    layer = _read_profiles(_mark_traces(read_own_prices(name_own_data(_rename_synonyms(user or {})))))
    refuse_unknown(layer)
    _refuse_module(layer)
    method = method_named(str(layer.get("method", Config().method)))
    dataset = dataset_kind(str(layer.get("dataset", Config().dataset)), _options(layer))
    _refuse_other_task(layer, dataset)
    settings: dict[str, Any] = Config().model_dump()
    for part in (dataset.defaults, method.settings, layer):
        settings = overlay(settings, part)
    chosen = overlay(method.settings, layer).get("energy")
    is_priced = _is_priced(dataset, settings["network"]) and _sends_everything(settings["parameters"])
    if not is_priced and not (isinstance(chosen, Mapping) and "model_bits" in chosen):
        settings = overlay(settings, {"energy": {"model_bits": "actual"}})
    config = validate(settings)
    require_one_of("split", config.split, PARTITIONERS, OWN_THING)
    refuse_unknown_own_settings(settings)
    return _refuse_removed_choice(config)


def refuse_unknown_names(user: Layer, methods: Iterable[str] = ()) -> None:
    """Refuse settings, methods, data sets and components that do not exist; `resolve` finds out the rest."""
    layer = _rename_synonyms(user)
    refuse_unknown(layer)
    if layer.get("codec") not in [value for key, value in _REMOVED if key == "codec"]:
        refuse_unknown_components(layer)
    for method in methods:
        settings = overlay(overlay(Config().model_dump(), method_named(method).settings), layer)
        try:
            refuse_unknown_own_settings(settings)
        except ConfigError as error:
            raise ConfigError(f"With method {method}, {error}") from None
    given = layer.get("dataset")
    if isinstance(given, str) and not is_own_data(given):
        dataset_kind(given, _options(layer))


def refuse_set_by_itself(settings: Layer) -> None:
    """Refuse a method or a seed among the settings, which every run has of its own."""
    for key, option in (("method", "methods"), ("seed", "seeds")):
        if key in settings:
            raise ConfigError(
                f"A comparison sets {key!r} for each run by itself. Use --{option} instead ({option}=… in Python)."
            )


def name_own_data(layer: dict[str, Any]) -> dict[str, Any]:
    """The settings with a name in place of data, or of where they are."""
    given = layer.get("dataset", Config().dataset)
    if given is None:
        raise ConfigError(
            "dataset is None, but must be the name of a data set, a file, or data such as (x, y). Leave it out for "
            f"{Config().dataset}."
        )
    if (isinstance(given, str) and given in DATASETS) or not is_own_data(given):
        return layer
    task = layer.get("task")
    kind, options = open_own(given, _options(layer), None if task is None else str(task))
    if FILE not in options and kind.name not in DATASETS:
        DATASETS.add(kind.name, kind)
    return {**layer, "dataset": kind.name, "dataset_options": options, "task": kind.task}


def _mark_traces(layer: dict[str, Any]) -> dict[str, Any]:
    """The settings with digests behind the names of traces, so that they say what was used."""
    marked = dict(layer)
    for section in ("supply", "time"):
        if isinstance(settings := layer.get(section), Mapping):
            marked[section] = {key: _mark_trace(f"{section}.{key}", value) for key, value in settings.items()}
    return marked


def _mark_trace(name: str, value: object) -> object:
    return with_digest(name, value) if name.endswith("_trace") and isinstance(value, str) else value


def _read_profiles(layer: dict[str, Any]) -> dict[str, Any]:
    """The settings with the contents of profile files in place of their names, so that they are complete."""
    machines = layer.get("machines")
    given = machines.get("profiles") if isinstance(machines, Mapping) else None
    if not isinstance(given, list | tuple) or not isinstance(machines, Mapping):
        return layer
    return {**layer, "machines": {**machines, "profiles": [_read_profile(each) for each in given]}}


def _read_profile(given: object) -> object:
    """The contents of a profile where it is a file or written out; its name otherwise."""
    if isinstance(given, str) and Path(given).suffix in (".yaml", ".yml"):
        return read_profile(Path(given)).model_dump(mode="json")
    return _make_profile(given, "in machines.profiles").model_dump(mode="json") if isinstance(given, Mapping) else given


def read_profile(path: Path) -> MachineProfile:
    """Read the profile of a machine from a file of the user's own."""
    return _make_profile(read_yaml(path, "profile"), str(path))


def _make_profile(content: Mapping[str, Any], where: str) -> MachineProfile:
    try:
        return MachineProfile.model_validate(content)
    except ValidationError as error:
        told = describe_error(error) if error.errors()[0]["loc"] else "It must have training_gflops or sample_seconds."
        raise ConfigError(f"The profile {where} cannot be used: {told}") from None


def _check_calibrated(config: Config) -> None:
    """Calibrated joules are those of profiles in which training was measured."""
    if config.energy.source != "calibrated":
        return
    profiles = [
        each if isinstance(each, MachineProfile) else shipped_profiles()[each] for each in config.machines.profiles
    ]
    if not profiles:
        raise ConfigError(
            "energy.source is calibrated, but machines.profiles names no profile. Make one with `hatdfed calibrate` "
            "and name its file."
        )
    for profile in profiles:
        speed = profile.sample_seconds or profile.training_gflops
        if speed is None or {speed.how, profile.training_watts.how} != {"measured"}:  # watts may be the user's word
            raise ConfigError(
                f"energy.source is calibrated, but training was not measured in profile {profile.name!r}: its "
                f"watts are {profile.training_watts.how}. Make one with `hatdfed calibrate` and a meter there, or use "
                "energy.source: modelled."
            )


def _check_profiles(config: Config) -> None:
    names = [each for each in config.machines.profiles if isinstance(each, str)]
    for name in names:
        if name not in shipped_profiles():
            raise ConfigError(
                f"machines.profiles names {name!r}, but there is no such profile. "
                f"{did_you_mean(name, shipped_profiles())} A file with a profile of your own ends in .yaml."
            )


def _options(layer: Layer) -> Mapping[str, Any]:
    options = layer.get("dataset_options")
    return options if isinstance(options, Mapping) else {}


def _refuse_other_task(layer: Layer, dataset: DatasetKind) -> None:
    if layer.get("task") not in (None, dataset.task):
        raise ConfigError(f"task is {layer['task']!r}, but the data set {dataset.name} is for {dataset.task}.")


def resolve_over(earlier: Config, user: Layer) -> Config:
    """Complete the user's settings by those of a run that goes on with them."""
    layer = _rename_synonyms(user)
    refuse_unknown(layer)
    return _refuse_removed_choice(validate(overlay(earlier.model_dump(mode="json"), layer)))


def _rename_synonyms(layer: Layer) -> dict[str, Any]:
    return {_SYNONYMS.get(key, key): value for key, value in layer.items()}


def _refuse_removed_choice(config: Config) -> Config:
    removed = find_removed_choice(config)
    if removed is not None:
        raise ConfigError(f"{removed}.")
    return config


def find_removed_choice(config: Config) -> str | None:
    """Explain the first choice that this version does not have any more; None where there is none."""
    return next((said for (key, value), said in _REMOVED.items() if getattr(config, key) == value), None)


def _sends_everything(parameters: object) -> bool:
    """Whether no parameter is declared to stay at home."""
    return not (isinstance(parameters, Mapping) and any(parameters.values()))


def _is_priced(dataset: DatasetKind, network: object) -> bool:
    """Whether the prices that the data set brings are for this network."""
    return not dataset.priced_networks or network in dataset.priced_networks


def validate(settings: Layer) -> Config:
    """Check complete settings and return them as a `Config`; a `ConfigError` explains the first mistake."""
    refuse_unknown(settings)
    try:
        config = Config.model_validate(settings)
    except ValidationError as error:
        raise ConfigError(describe_error(error)) from None
    low, high = config.energy.link_kbit_per_joule
    if low > high:
        raise ConfigError(f"energy.link_kbit_per_joule is [{low}, {high}], but the first must not exceed the second.")
    _check_world(config)
    _check_supply(config)
    _check_uploads(config)
    _check_profiles(config)
    check_own_prices(config)
    _check_calibrated(config)
    _check_parameter_server(config)
    _check_time(config)
    _check_metrics(config)
    return config


def _check_time(config: Config) -> None:
    if config.time.asynchronous and config.time.deadline_seconds is not None:
        raise ConfigError(
            "time.asynchronous and time.deadline_seconds are both set, but servers that wait for nobody need no "
            "deadline. Leave one of them out."
        )
    for key in ("upload_trace", "uplink_trace"):
        if config.time.asynchronous and getattr(config.time, key) is not None:
            raise ConfigError(
                f"time.{key} and time.asynchronous are both set, but the schedule of asynchronous servers is made "
                "before the run, of rates that do not change. Leave one of them out."
            )


def _check_metrics(config: Config) -> None:
    """Refuse names that cannot stand in records; whether there are such metrics is known once the task is."""
    if len(config.metrics) > MOST_METRICS:
        raise ConfigError(f"metrics has {len(config.metrics)} names, but a run records at most {MOST_METRICS}.")
    for place, name in enumerate(config.metrics):
        if not name.isidentifier() or len(name) > LONGEST_NAME:
            raise ConfigError(
                f"metrics has {name!r}, but the name of a metric consists of letters, digits and underscores, at most "
                f"{LONGEST_NAME}. {did_you_mean(name, filter(str.isidentifier, METRICS))}"
            )
        if name in config.metrics[:place]:
            raise ConfigError(f"metrics has {name!r} twice. Name it once.")


def _check_parameter_server(config: Config) -> None:
    """Refuse what would make its models or its joules other than those of one server that averages all models."""
    if not config.has_parameter_server:
        return
    if config.aggregator.name not in _SAME_FOR_ALL:
        raise ConfigError(
            f"aggregator.name is {config.aggregator.name}, but a parameter server sends all servers the same model. "
            f"Use {', '.join(_SAME_FOR_ALL[:-1])} or {_SAME_FOR_ALL[-1]}."
        )
    refused = {
        "codec": config.codec != "float32",
        "world.link_loss": config.world.link_loss[1] > 0,
        "schedule.finish_rounds": config.schedule.finish_rounds > 0,
        "schedule.budget_joules": config.schedule.budget_joules is not None,
        "budget_joules": config.budget_joules is not None,
        "supply.battery_joules": config.supply.battery_joules is not None,
        "time.deadline_seconds": config.time.deadline_seconds is not None,
        "time.asynchronous": config.time.asynchronous,
    }
    for key in (key for key, is_set in refused.items() if is_set):
        raise ConfigError(
            f"{key} is set, but it is not simulated for policy parameter-server (method fedavg). Leave {key} out, or "
            "choose a decentralised method."
        )


def _check_world(config: Config) -> None:
    world = config.world
    low, high = world.link_loss
    if low > high:
        raise ConfigError(f"world.link_loss is [{low}, {high}], but the first must not exceed the second.")
    if world.groups > 1 and world.differ == "none":
        raise ConfigError(f"world.groups is {world.groups}, but nothing differs: set world.differ to inputs or labels.")
    if world.groups == 1 and world.differ != "none":
        raise ConfigError(f"world.differ is {world.differ}, but there is one group. Set world.groups to 2 or more.")
    if world.amount_ratio > 1 and config.split in PARTITIONERS and not _takes_amounts(config.split):
        able = " or ".join(name for name in PARTITIONERS.built_in if _takes_amounts(name))
        raise ConfigError(
            f"world.amount_ratio is for split: {able}; split: {config.split} decides by itself who has how much."
        )
    if world.changing and world.groups == 1:
        raise ConfigError(
            f"world.changing is {world.changing}, but there is one group. Set world.groups and world.differ."
        )
    if world != WorldConfig():
        config_members(config)


def _takes_amounts(split: str) -> bool:
    return bool(getattr(PARTITIONERS[split], "takes_amounts", False))


def _check_supply(config: Config) -> None:
    supply = config.supply
    sizes = {f"supply.{key}": getattr(supply, key) for key in ("battery_joules", "reserve_joules", "harvest_watts")}
    for key, value in {**sizes, "energy.idle_watts": config.energy.idle_watts}.items():
        if isinstance(value, tuple) and len(value) != config.servers:
            raise ConfigError(
                f"{key} has {len(value)} values, but there are {config.servers} servers. Give one number for all, or "
                "one for each."
            )
    if supply.battery_joules is None:
        unused = [key for key in ("harvest_watts", "harvest_trace", "reserve_joules") if getattr(supply, key)]
        unused += ["first_charge"] * (supply.first_charge != SupplyConfig().first_charge)
        if unused:
            raise ConfigError(f"supply.{unused[0]} is set, but servers have no battery. Set supply.battery_joules.")
    if supply.harvest_trace is not None and supply.harvest_watts:
        raise ConfigError("supply.harvest_watts and supply.harvest_trace are both set. Keep one of them.")


def _check_uploads(config: Config) -> None:
    uploads = config.uploads
    for key in ("memory_samples", "train_samples"):
        if getattr(uploads, key) is not None and uploads.keep == "none":
            raise ConfigError(f"uploads.{key} is set, but servers keep nothing. Set uploads.keep to samples.")
    if uploads.train_samples is not None and uploads.train_samples > config.samples_per_round:
        raise ConfigError(
            f"uploads.train_samples is {uploads.train_samples}, but samples_per_round is {config.samples_per_round}, "
            "the most that a server trains on in a round."
        )
    if uploads.train_samples is not None and config.privacy.clip is not None:
        raise ConfigError(
            "privacy.clip is set, but ε is not computed for uploads.train_samples, by which an image is trained on in "
            "rounds in which its device does not connect. Leave one of them out."
        )


def read_config(path: Path) -> Config:
    """Read the complete settings of a run folder, maybe of an earlier version; errors name the file."""
    settings = read_yaml(path)
    try:
        return validate(fill_in(settings))
    except ConfigError as error:
        raise ConfigError(f"The config file {path} cannot be used: {error}") from None


def merge_layers(*layers: Layer) -> dict[str, Any]:
    """Merge layers key by key; later ones win.

    A complete config already contains the settings of its method and its data set, so neither can be replaced on top.
    """
    merged: dict[str, Any] = {}
    for layer in layers:
        for key in ("method", "dataset"):
            if set(merged) >= set(Config.model_fields) and layer.get(key, merged[key]) != merged[key]:
                raise ConfigError(
                    f"These settings are complete and made for {key} {merged[key]!r}, so it cannot be replaced by "
                    f"{layer[key]!r}. Start from a config that holds only your own settings."
                )
        merged = overlay(merged, layer)
    return merged


def config_budget(config: Config) -> int:
    """Compute the number of links drawn in a round (D11)."""
    return links_in_budget(config.link_share, config.servers, considered_links(config))


def considered_links(config: Config) -> int | None:
    """Return d, the number of candidates; None where every server considers all others."""
    others = config.servers - 1
    return config.candidates if config.candidates is not None and config.candidates < others else None


def finish_rounds(config: Config) -> int:
    """Compute the number of rounds with every link at the end, at most half of the run."""
    return min(config.schedule.finish_rounds, (config.horizon or config.rounds) // 2)


def overlay(base: Layer, layer: Layer) -> dict[str, Any]:
    """Merge `layer` over `base`, key by key."""
    merged = dict(base)
    for key, value in layer.items():
        old = merged.get(key)
        if not (isinstance(old, Mapping) and isinstance(value, Mapping)):
            merged[key] = value
        elif key in _COMPONENTS and value.get("name", old.get("name")) != old.get("name"):
            merged[key] = dict(value)  # another component: the old one's settings do not apply to it
        else:
            merged[key] = overlay(old, value)
    return merged


def refuse_unknown(layer: Layer, model: type[BaseModel] = Config, path: str = "") -> None:
    """Refuse a setting that does not exist and suggest the one that may have been meant."""
    fields = model.model_fields
    for key, value in layer.items():
        if key not in fields:
            raise ConfigError(f"There is no setting {path + str(key)!r}. {suggest_setting(path + str(key))}")
        section = _find_section(fields[key].annotation)
        if section is None:
            continue
        if not isinstance(value, Mapping):
            example = f"{{name: {value}}}" if section is Component and isinstance(value, str) else "{…}"
            raise ConfigError(
                f"{path}{key} is {format_value(value)}, wanted a section of settings, as in {path}{key}: {example}."
            )
        if section is not Component:
            refuse_unknown(value, section, f"{path}{key}.")


def _refuse_module(layer: Layer) -> None:
    """A network is named: worker processes, edges and resumed runs must find it again."""
    if callable(network := layer.get("network")):
        kind = network.__name__ if isinstance(network, type) else type(network).__name__
        raise ConfigError(
            f"network is {'the class' if isinstance(network, type) else 'an object of class'} {kind}, but must be a "
            f"name. Register the class with NETWORKS.add('my-network', {kind}), and say network='my-network'."
        )


def _find_section(annotation: object) -> type[BaseModel] | None:
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def describe_error(error: ValidationError) -> str:
    """Describe the first mistake in one sentence."""
    first = error.errors(include_url=False)[0]
    parts = [part for part in first["loc"] if not str(part).startswith(("constrained-", "literal["))]
    wanted = first["msg"][0].lower() + first["msg"][1:]
    wanted = f"be {wanted.removeprefix('input should be ').removeprefix('input should ')}"
    wanted = _WANTED.get(first["type"], wanted)
    if first["type"] == "missing":
        if not isinstance(last := parts[-1], int):
            return f"{'.'.join(map(str, parts))} is missing."
        parts, wanted = parts[:-1], f"have at least {last + 1} values"
    elif first["type"] == "tuple_type":
        wanted = f"be a list, such as [{first['input']}]"
    elif first["type"] == "too_long":
        wanted = f"have at most {first['ctx']['max_length']} values"
    key = ".".join(map(str, parts))
    hint = _HINTS.get(key, "") if first["type"] in _BOUNDS else _suggest_choice(first)
    return f"{key} is {format_value(first['input'])}, but must {wanted}.{hint}"


def _suggest_choice(first: ErrorDetails) -> str:
    """The choice that a misspelt word comes near; empty for another mistake."""
    if first["type"] != "literal_error" or not isinstance(word := first["input"], str):
        return ""
    near = difflib.get_close_matches(word, re.findall(r"'([^']*)'", first["ctx"]["expected"]), n=1)
    return f" Did you mean {near[0]}?" if near else ""


def config_members(config: Config) -> Members:
    """Who belongs to which group, who lies and who has bad data, in the world of these settings."""
    world = config.world
    return draw_members(
        config.seed,
        config.servers,
        groups=world.groups,
        group_shares=world.group_shares,
        changing=world.changing if world.change_at < 1 else 0.0,
        liars=world.liars,
        bad_labels=world.bad_labels,
        broken_sensors=world.broken_sensors,
    )
