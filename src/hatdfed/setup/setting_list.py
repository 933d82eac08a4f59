"""Every setting with its default and its meaning, from the definition of `Config`."""

from __future__ import annotations

import ast
import difflib
import inspect
from itertools import pairwise
from typing import Any, NamedTuple

from pydantic import BaseModel

from hatdfed.setup.component_names import list_components, list_own_settings
from hatdfed.setup.config import Component, Config

# What settings are called in other programs and papers.
_ELSEWHERE = {
    "lr": "learner.learning_rate",
    "optimizer": "learner.optimiser",
    "epochs": "local_passes",
    "local_epochs": "local_passes",
    "clients": "servers",
    "num_clients": "servers",
    "nodes": "servers",
    "num_nodes": "servers",
    "num_rounds": "rounds",
    "model": "network",
    "data": "dataset",
    "topology": "policy.name",
    "aggregation": "aggregator.name",
    "compression": "codec",
    "alpha": "label_concentration",
    "gamma": "link_share",
}
_LISTED = "`hatdfed settings` lists all of them."


class SettingEntry(NamedTuple):
    """One setting, under the name that --set takes."""

    name: str
    default: Any
    meaning: str
    owners: tuple[str, ...] = ()  # the components that have it, where not all do: each has a default of its own


def list_settings(model: type[BaseModel] = Config, prefix: str = "") -> list[SettingEntry]:
    """All settings in the order of their definition, those of sections with dots in their names."""
    found: list[SettingEntry] = []
    meanings = _read_meanings(model)
    for name, field in model.model_fields.items():
        value = field.get_default()
        if isinstance(value, Component):
            meaning = f"Name of the {name}: one of {', '.join(list_components(name))}."
            found.append(SettingEntry(f"{prefix}{name}.name", value.name, meaning))
            found += _list_own_settings(name)
        elif isinstance(value, BaseModel):
            found += list_settings(type(value), f"{prefix}{name}.")
        else:
            meaning = " ".join(meanings.get(name, name.replace("_", " ").capitalize() + ".").split())
            found.append(SettingEntry(f"{prefix}{name}", value, meaning))
    return found


def _list_own_settings(key: str) -> list[SettingEntry]:
    """The settings that only some components of this kind have, each once."""
    owners: dict[str, list[str]] = {}
    for component in list_components(key):
        for setting in list_own_settings(key, component) or ():
            owners.setdefault(setting, []).append(component)
    defaults = " `hatdfed policies` has the defaults." if key == "policy" else ""
    return [
        SettingEntry(f"{key}.{setting}", None, f"A setting of {', '.join(names)}.{defaults}", tuple(names))
        for setting, names in owners.items()
    ]


def suggest_setting(name: str) -> str:
    """The setting that may have been meant by `name`, as the end of an error sentence.

    >>> suggest_setting("learning_rate")
    'Did you mean learner.learning_rate?'
    >>> suggest_setting("learner.momentm")
    'Did you mean learner.momentum?'
    >>> suggest_setting("zzz")
    '`hatdfed settings` lists all of them.'
    """
    names = _list_names(Config)
    section, _, leaf = name.rpartition(".")
    if leaf in _ELSEWHERE:
        return f"Did you mean {_ELSEWHERE[leaf]}?"
    same = [each for each in names if each.rpartition(".")[2] == leaf and leaf != "name"]
    if same:
        return f"Did you mean {' or '.join(same)}?"
    beside = [each for each in names if each.rpartition(".")[0] == section]
    for those in (beside, names):
        if near := difflib.get_close_matches(name, those, n=1, cutoff=0.7):
            return f"Did you mean {near[0]}?"
    leaves = {each.rpartition(".")[2]: each for each in reversed(names)}
    near = difflib.get_close_matches(leaf, leaves, n=1, cutoff=0.7)
    return f"Did you mean {leaves[near[0]]}?" if near else _LISTED


def _list_names(model: type[BaseModel], prefix: str = "") -> list[str]:
    """All names that settings and their sections have, those inside sections with dots."""
    names: list[str] = []
    for name, field in model.model_fields.items():
        names.append(f"{prefix}{name}")
        if isinstance(value := field.get_default(), Component):
            names.append(f"{prefix}{name}.name")
        elif isinstance(value, BaseModel):
            names += _list_names(type(value), f"{prefix}{name}.")
    return names


def _read_meanings(model: type[BaseModel]) -> dict[str, str]:
    """The string below each field, read only when settings are listed: with pydantic's own option, every start of the
    command would take a tenth longer."""
    fields = next(node.body for node in ast.parse(inspect.getsource(model)).body if isinstance(node, ast.ClassDef))
    meanings = {}
    for field, below in pairwise(fields):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                meanings[name] = text
    return meanings
