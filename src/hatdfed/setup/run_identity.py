"""When two runs are the same, may be resumed as one, meet the same world, or can share a fleet.

`SETTINGS` declares every setting once, by its dotted name, with the roles that it plays. Each question is asked of the
settings of one role:

    same_run            RESULT   everything that decides what a run brings
    resume_difference   RESUME   what must not change while a run is under way; rounds may be added
    same_world          WORLD    what a seed stands for, so that runs of one seed can be compared pair by pair (D20)
    fleet_key           FLEET    what runs must agree in to be played in one stacked fleet

Settings are a `Config`, or a mapping as a run folder has it, maybe of an earlier version. A setting that is added is
declared with the version that it came in and its neutral value, at which a run is what it was without it: there, old
runs keep their names, can be resumed and are compared with new ones.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from enum import Flag, IntEnum, auto
from typing import Any, NamedTuple

from pydantic import BaseModel

from hatdfed.data.traces.files import split_digest
from hatdfed.setup.config import Component, Config

Settings = Config | Mapping[str, Any]


class Role(Flag):
    """What a setting decides."""

    RESULT = auto()
    RESUME = auto()
    WORLD = auto()
    SOURCES = auto()  # the objects that bring each server its data: runs of one fleet that agree in all share them
    FLEET = auto()


class Since(IntEnum):
    """When a setting came. Names that were given before it did not know it."""

    FIRST_RESULTS = 0  # the runs that the paper's first committed results are of
    V0_1 = 1
    V0_2 = 2


class Setting(NamedTuple):
    """One setting's declaration."""

    roles: Role
    neutral: Any = None
    since: Since = Since.FIRST_RESULTS
    section: str | None = None  # left out of a name only together with all others of this section
    only_with: str | None = None  # means nothing while this other setting is neutral


_PLAIN = Role.RESULT | Role.RESUME
_WORLD = _PLAIN | Role.WORLD
_DATA = _WORLD | Role.SOURCES
_WORK = _PLAIN | Role.SOURCES
_SCHEDULE: Mapping[str, Any] = {"since": Since.V0_1, "section": "schedule"}

SETTINGS: dict[str, Setting] = {
    # What makes a method, by its name and part by part, is no part of a world.
    "method": Setting(_PLAIN),
    "policy": Setting(_PLAIN),
    "aggregator": Setting(_PLAIN),
    "loss": Setting(_PLAIN, {"name": "cross-entropy"}, Since.V0_1),
    "training": Setting(_PLAIN, {"name": "always"}, Since.V0_2),
    "budget_joules": Setting(_PLAIN, None, Since.V0_2),
    "utility.normalisation": Setting(_PLAIN),
    "utility.gain": Setting(_PLAIN),
    "utility.thrift": Setting(_PLAIN),
    "schedule.every": Setting(_PLAIN, 1, **_SCHEDULE),
    "schedule.finish_rounds": Setting(_PLAIN, 0, **_SCHEDULE),
    "schedule.budget_joules": Setting(_PLAIN, None, **_SCHEDULE),
    "codec": Setting(_PLAIN),
    "link_share": Setting(_PLAIN),
    "gain_share": Setting(_PLAIN),
    "quality_share": Setting(_PLAIN),
    "first_gain_from": Setting(_PLAIN),
    # Which links are considered changes how prices are stored, not what they are.
    "candidates": Setting(_PLAIN, None, Since.V0_1),
    "refresh_every": Setting(_PLAIN, 10, Since.V0_1, only_with="candidates"),
    # Runs of a fleet take their steps together, each with its own step length.
    "learner.optimiser": Setting(_PLAIN | Role.FLEET),
    "learner.optimiser_settings": Setting(_PLAIN | Role.FLEET, {}, Since.V0_2),
    "learner.learning_rate": Setting(_PLAIN | Role.FLEET),
    "learner.momentum": Setting(_PLAIN | Role.FLEET),
    "learner.cool_down": Setting(_PLAIN, 0.0, Since.V0_1),
    # Runs of a fleet are trained with the same clipping norm and noise.
    "privacy.clip": Setting(_PLAIN | Role.FLEET, None, Since.V0_2),
    "privacy.noise": Setting(_PLAIN | Role.FLEET, 1.0, Since.V0_2, only_with="privacy.clip"),
    "privacy.delta": Setting(_PLAIN, 1e-5, Since.V0_2, only_with="privacy.clip"),
    # A run of another number of samples or steps would keep the others of its fleet waiting.
    "local_passes": Setting(_WORK | Role.FLEET),
    "batch_size": Setting(_WORK | Role.FLEET),
    "probe_size": Setting(_WORK),
    "probe_top_up": Setting(_WORK),
    "probe_from": Setting(_WORK, "round", Since.V0_2),
    "probe_release": Setting(_WORK, 1.0, Since.V0_2, only_with="probe_from"),
    "uploads.keep": Setting(_WORK, "none", Since.V0_2),
    "uploads.memory_samples": Setting(_WORK, None, Since.V0_2, only_with="uploads.keep"),
    "uploads.train_samples": Setting(_WORK, None, Since.V0_2, only_with="uploads.keep"),
    "feedback": Setting(_WORK),  # says which images a server is measured on
    # What is recorded is part of what a run brings, and the same in all of its rounds.
    "metrics": Setting(_PLAIN, [], Since.V0_2),
    # Rounds may be added to a run, `horizon` keeps it what it was; runs of different lengths are not paired.
    # A world in which groups change or sleepers wake does so at a share of the run.
    "rounds": Setting(Role.RESULT | Role.WORLD | Role.SOURCES),
    "horizon": Setting(Role.RESULT | Role.SOURCES),
    "checkpoint_every": Setting(Role(0)),
    # Which world. Runs are paired seed by seed, so it does not say whether seeds mean the same.
    "seed": Setting(_PLAIN | Role.SOURCES),
    # Who holds which images, and who is there in a round.
    "dataset": Setting(_WORLD | Role.FLEET),
    "dataset_options": Setting(_WORLD | Role.FLEET),
    "task": Setting(_WORLD | Role.FLEET, None, Since.V0_2),
    "servers": Setting(_DATA),
    "devices": Setting(_DATA),
    "images_per_server": Setting(_DATA),
    "samples_per_round": Setting(_DATA | Role.FLEET),
    "label_concentration": Setting(_DATA),
    "label_groups": Setting(_DATA, 1, Since.V0_1),
    "split": Setting(_DATA),
    "split_options": Setting(_DATA, {}, Since.V0_2),
    "disjoint": Setting(_DATA),
    "validation_images": Setting(_DATA),
    "device_online_probability": Setting(_DATA),
    "churn": Setting(_DATA, 0.0, Since.V0_1),
    # How servers differ, who of them lies, and what their links do.
    "world.groups": Setting(_DATA, 1, Since.V0_2),
    "world.group_shares": Setting(_DATA, None, Since.V0_2),
    "world.differ": Setting(_DATA, "none", Since.V0_2),
    "world.changing": Setting(_DATA, 0.0, Since.V0_2),
    "world.change_at": Setting(_DATA, 0.5, Since.V0_2, only_with="world.changing"),
    "world.bad_labels": Setting(_DATA, 0.0, Since.V0_2),
    "world.bad_label_rate": Setting(_DATA, 0.8, Since.V0_2, only_with="world.bad_labels"),
    "world.broken_sensors": Setting(_DATA, 0.0, Since.V0_2),
    "world.amount_ratio": Setting(_DATA, 1.0, Since.V0_2),
    "world.liars": Setting(_DATA, 0.0, Since.V0_2),
    "world.attack": Setting(_DATA, "sign-flip", Since.V0_2, only_with="world.liars"),
    "world.link_loss": Setting(_WORLD, [0.0, 0.0], Since.V0_2),
    "world.price_drift": Setting(_WORLD, 1.0, Since.V0_2),
    # The initial models: a seed draws other ones for another network or initialisation, and one for all or one each.
    # The network is also in the prices, since a model of more numbers costs more to send.
    "network": Setting(_WORLD | Role.FLEET),
    "learner.initialisation": Setting(_WORLD | Role.FLEET),
    "parameters.shared": Setting(_WORLD | Role.FLEET, [], Since.V0_2),
    "parameters.personal": Setting(_WORLD | Role.FLEET, [], Since.V0_2),
    "parameters.frozen": Setting(_WORLD | Role.FLEET, [], Since.V0_2),
    "common_init": Setting(_WORLD),
    # Prices: joules of different price lists are different units.
    "energy.model_bits": Setting(_WORLD),
    "energy.weak_joules_per_sample": Setting(_WORLD),
    "energy.strong_joules_per_sample": Setting(_WORLD),
    "energy.training_per": Setting(_WORLD, "sample", Since.V0_2),
    "energy.device_kbit_per_joule": Setting(_WORLD),
    "energy.link_kbit_per_joule": Setting(_WORLD),
    "energy.link_joules": Setting(_WORLD, None, Since.V0_2),
    "energy.training_joules": Setting(_WORLD, None, Since.V0_2),
    "energy.source": Setting(_WORLD, "modelled", Since.V0_2),
    "energy.overhead_bits": Setting(_WORLD, 0.0, Since.V0_2),
    "energy.probe_joules": Setting(_WORLD, 0.0, Since.V0_2),
    "energy.merge_joules": Setting(_WORLD, 0.0, Since.V0_2),
    "energy.idle_watts": Setting(_WORLD, 0.0, Since.V0_2),
    # Where energy comes from, and when servers are there.
    "supply.round_seconds": Setting(_WORLD, 60.0, Since.V0_2),
    "supply.battery_joules": Setting(_WORLD, None, Since.V0_2),
    "supply.first_charge": Setting(_WORLD, 1.0, Since.V0_2, only_with="supply.battery_joules"),
    "supply.reserve_joules": Setting(_WORLD, 0.0, Since.V0_2, only_with="supply.battery_joules"),
    "supply.harvest_watts": Setting(_WORLD, 0.0, Since.V0_2, only_with="supply.battery_joules"),
    "supply.harvest_trace": Setting(_WORLD, None, Since.V0_2, only_with="supply.battery_joules"),
    "supply.availability_trace": Setting(_WORLD, None, Since.V0_2),
    "supply.carbon_trace": Setting(_WORLD, None, Since.V0_2),
    "supply.tariff_trace": Setting(_WORLD, None, Since.V0_2),
    # Machines, and seconds in the same sense.
    "machines.profiles": Setting(_WORLD, [], Since.V0_2),
    "machines.assignment": Setting(_WORLD, "in-turn", Since.V0_2, only_with="machines.profiles"),
    "time.weak_seconds_per_sample": Setting(_WORLD, 0.05, Since.V0_2),
    "time.strong_seconds_per_sample": Setting(_WORLD, 0.025, Since.V0_2),
    "time.upload_mbit_per_second": Setting(_WORLD, 10.0, Since.V0_2),
    "time.uplink_mbit_per_second": Setting(_WORLD, 10.0, Since.V0_2),
    "time.latency_seconds": Setting(_WORLD, 0.02, Since.V0_2),
    "time.upload_trace": Setting(_WORLD, None, Since.V0_2),
    "time.uplink_trace": Setting(_WORLD, None, Since.V0_2),
    "time.deadline_seconds": Setting(_PLAIN, None, Since.V0_2),
    "time.asynchronous": Setting(_PLAIN, False, Since.V0_2),
}

# Methods whose first results were kept under another name, which is the one in their keys.
_FIRST_NAMES = {"hat-dfed-plus-0.1": "hat-dfed-plus"}


class Difference(NamedTuple):
    """A setting in which two runs differ."""

    key: str
    there: Any
    asked: Any

    def __str__(self) -> str:
        return f"has {self.key} {self.there!r}, but {self.asked!r} was asked for"


def same_run(one: Settings, other: Settings) -> bool:
    """Whether both describe one run, to the last round."""
    return run_difference(one, other) is None


def same_world(one: Settings, other: Settings) -> bool:
    """Whether a seed means the same under both settings, so that runs can be paired."""
    return _first_difference(one, other, Role.WORLD) is None


def run_difference(there: Settings, asked: Settings) -> Difference | None:
    """The first setting that makes another run of `asked`."""
    return _first_difference(there, asked, Role.RESULT)


def resume_difference(there: Config, asked: Config) -> Difference | None:
    """The first setting that keeps a run from going on: another horizon, or any that decides its rounds.

    How many rounds there must be at least is for those to say who know how many were played.
    """
    horizon, wanted = there.horizon or there.rounds, continued(there, asked)
    if (wanted.horizon or wanted.rounds) != horizon:
        return Difference("horizon", horizon, asked.horizon)
    return _first_difference(there, asked, Role.RESUME)


def continued(there: Config, asked: Config) -> Config:
    """The settings that are `asked` for; if they name no horizon, with the one that the run was begun with."""
    horizon = there.horizon or there.rounds
    keeps = asked.horizon is not None or asked.rounds == horizon
    return asked if keeps else asked.model_copy(update={"horizon": horizon})


def run_key(config: Config) -> str:
    """A short name for everything that decides a run's result, as the paper's committed results have it.

    Defaults inside a policy or an aggregator that a configuration does not name are not in it.
    """
    named = {**config.model_dump(mode="json"), "method": _FIRST_NAMES.get(config.method, config.method)}
    return _digest(_select(named, Role.RESULT, known=Since.FIRST_RESULTS))


def resume_digest(config: Config) -> str:
    """A short name for what must not change while a run is under way; checkpoints and journals carry it."""
    return _digest(_select(config, Role.RESUME, known=Since.V0_1))


def is_resume_digest(digest: str, config: Config) -> bool:
    """Whether `digest` is that of `config`, from this version or from a journal of 0.1, which left nothing out."""
    everything = _select(config, Role.RESUME, known=Since.V0_1, with_unused=True)
    return digest in (resume_digest(config), _digest(everything))


def result_key(settings: Settings, *, but: Collection[str] = ()) -> str:
    """A text that is equal for equal runs; with `but=("seed",)`, for runs that differ by no more than their seed."""
    return _text(_select(settings, Role.RESULT, known=Since.V0_1, but=but))


def world_key(settings: Settings, *, but: Collection[str] = ()) -> str:
    """A text that is equal for settings under which a seed means the same."""
    return _text(world_settings(settings, but=but))


def world_settings(settings: Settings, *, but: Collection[str] = ()) -> dict[str, Any]:
    """The settings that say what a seed stands for, without those that are neutral and newer than 0.1."""
    return _select(settings, Role.WORLD, known=Since.V0_1, but=but)


def sources_key(settings: Settings) -> str:
    """A text that is equal for runs whose servers get the same data in the same batches."""
    return _text(_select(settings, Role.SOURCES, known=Since.V0_1))


def fleet_key(settings: Settings) -> str:
    """A text that is equal for runs that can share a fleet."""
    return _text(_select(settings, Role.FLEET, known=Since.V0_1))


def without_newer(settings: Settings, known: Since) -> dict[str, Any]:
    """The settings as a mapping, without those that came after `known` and are neutral."""
    plain, newer = _plain(settings), _neutral_since(_plain(settings), known)
    return {
        name: {key: each for key, each in value.items() if f"{name}.{key}" not in newer}
        if isinstance(value, Mapping)
        else value
        for name, value in plain.items()
        if name not in newer
    }


def setting_names(model: type[BaseModel] = Config, prefix: str = "") -> Iterator[str]:
    """The dotted names of all settings; a component, such as a policy with its settings, is one."""
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel) and not issubclass(kind, Component):
            yield from setting_names(kind, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def digest_of(content: Any, letters: int) -> str:
    """A few letters that stand for a value of plain types."""
    return hashlib.sha256(_text(content).encode()).hexdigest()[:letters]


def _digest(settings: Mapping[str, Any]) -> str:
    return digest_of(settings, 16)


def _text(content: Any) -> str:
    return json.dumps(content, sort_keys=True, default=str)


def _first_difference(there: Settings, asked: Settings, role: Role) -> Difference | None:
    there, asked = _plain(there), _plain(asked)
    unused = _find_unused(there) & _find_unused(asked)
    for key, setting in SETTINGS.items():
        before, now = _value(there, key), _value(asked, key)
        if role in setting.roles and key not in unused and before != now:
            return Difference(key, before, now)
    return None


def _select(
    settings: Settings, role: Role, *, known: Since, but: Collection[str] = (), with_unused: bool = False
) -> dict[str, Any]:
    """The settings of a role, in their sections, without those that say no more than what was `known` before them."""
    plain, kept = _plain(settings), dict[str, Any]()
    left_out = {*but, *_neutral_since(plain, known), *(() if with_unused else _find_unused(plain))}
    for key, setting in SETTINGS.items():
        if role in setting.roles and key not in left_out:
            section, _, name = key.rpartition(".")
            (kept.setdefault(section, {}) if section else kept)[name] = _value(plain, key)
    return kept


def _neutral_since(settings: Mapping[str, Any], known: Since) -> set[str]:
    """Settings that came after `known` and are neutral, those of one section all together."""
    later = {key: setting for key, setting in SETTINGS.items() if setting.since > known}
    away = [key for key, setting in later.items() if _value(settings, key) != setting.neutral]
    sections = {later[key].section for key in away} - {None}
    return {key for key, setting in later.items() if key not in away and setting.section not in sections}


def _find_unused(settings: Mapping[str, Any]) -> set[str]:
    """Settings that mean nothing here, and those at which they do."""
    switches = [(key, setting.only_with) for key, setting in SETTINGS.items() if setting.only_with is not None]
    off = [(key, other) for key, other in switches if _value(settings, other) == SETTINGS[other].neutral]
    return {key for pair in off for key in pair}


def _value(settings: Settings, key: str) -> Any:
    """The value of a dotted name; settings of a version that did not know it have the neutral one."""
    found: Any = _plain(settings)
    for part in key.split("."):
        if not isinstance(found, Mapping) or part not in found:
            return SETTINGS[key].neutral
        found = found[part]
    # Where own data lie is no part of what they are: a digest of their contents is in the data set's name.
    if key == "dataset_options" and isinstance(found, Mapping):
        return {name: value for name, value in found.items() if name != "file"}
    # The same holds for traces.
    if key.endswith("_trace") and isinstance(found, str):
        return split_digest(found)[1] or found
    return found


def _plain(settings: Settings) -> Mapping[str, Any]:
    return settings.model_dump(mode="json") if isinstance(settings, Config) else settings
